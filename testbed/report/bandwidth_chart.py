"""The chart of a sweep over sizes: bus bandwidth and time of a collective, by algorithm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from testbed.coll.crossover import crossover_sentence, stretches, times_by_algorithm
from testbed.coll.sizes import binary_size, short_size
from testbed.report.canvas import COLOURS, GREY, LIGHT, LINE_STYLES, Sheet
from testbed.report.quantities import format_quantity, scale_for, three_digits
from testbed.results import CollectiveResult, RunResult

LEAST_SIZES = 3
"""Sizes of one algorithm from which on a line says more than bars."""


def collectives_by_algorithm(result: RunResult) -> dict[str, dict[int, CollectiveResult]]:
    """Algorithm as asked for -> bytes -> what was measured, sizes ascending."""
    found: dict[str, dict[int, CollectiveResult]] = {}
    for variant in result.variants:
        if variant.collective is not None:
            name = str(variant.overrides.get("workload.algorithm", variant.collective.algorithm))
            found.setdefault(name, {})[variant.collective.bytes] = variant.collective
    return {name: dict(sorted(sizes.items())) for name, sizes in found.items()}


def is_sweep(result: RunResult) -> bool:
    """Whether the variants are one collective over sizes, perhaps by several algorithms."""
    if any("workload.size" not in variant.overrides for variant in result.variants):
        return False
    measured = collectives_by_algorithm(result)
    operations = {c.operation for sizes in measured.values() for c in sizes.values()}
    count = sum(map(len, measured.values()))
    longest = max(map(len, measured.values()), default=0)
    return len(operations) == 1 and count == len(result.variants) and longest >= LEAST_SIZES


def bandwidth_finding(result: RunResult) -> str:
    """Where one algorithm overtakes another or, of a single one, what it reaches."""
    measured = collectives_by_algorithm(result)
    if len(measured) > 1:
        operation = next(iter(next(iter(measured.values())).values())).operation
        return f"{operation}: {crossover_sentence(stretches(times_by_algorithm(result)))}"
    ((name, sizes),) = measured.items()
    best = max(sizes.values(), key=lambda c: c.busbw)
    half = next(c for c in sizes.values() if c.busbw >= best.busbw / 2)
    return (
        f"{best.operation} ({name}) reaches a bus bandwidth of {_gigabytes(best.busbw)} at "
        f"{binary_size(best.bytes)}, and half of it from {binary_size(half.bytes)} on"
    )


def _gigabytes(rate: float) -> str:
    return f"{three_digits(rate / 8e9)} GB/s"


def bandwidth_chart(result: RunResult) -> Any | None:
    """Bus bandwidth over size beside time over size; None for what is no sweep."""
    if not is_sweep(result):
        return None
    measured = collectives_by_algorithm(result)
    sheet = Sheet.of(bandwidth_finding(result), columns=2, height=3.7)
    left, right = sheet.panels(2)
    for index, (name, sizes) in enumerate(measured.items()):
        style = {
            "color": COLOURS[index % len(COLOURS)],
            "linestyle": LINE_STYLES[index % len(LINE_STYLES)],
        }
        values = [c.busbw / 8e9 for c in sizes.values()]
        left.plot(list(sizes), values, "o", markersize=4, linewidth=1.8, label=name, **style)
        times = [c.time for c in sizes.values()]
        right.plot(list(sizes), times, "o", markersize=4, linewidth=1.8, label=name, **style)
        _model(left, right, sizes, style["color"])
    _link_rate(left, result)
    left.set_ylabel("bus bandwidth (GB/s)")
    left.set_ylim(0, 1.12 * left.get_ylim()[1])
    right.set_yscale("log")
    right.yaxis.set_major_formatter(lambda value, _: _round_time(value))
    right.yaxis.set_minor_formatter(lambda value, _: "")
    _time_ticks(right, [c.time for sizes in measured.values() for c in sizes.values()])
    right.set_ylabel("time")
    for ax in (left, right):
        _size_axis(ax, measured)
    right.legend(loc="upper left", fontsize=9, framealpha=0.9, edgecolor=LIGHT)
    sheet.place(left=0.07, right=0.985, wspace=0.22, bottom=0.55)
    return sheet.figure


def _model(left: Any, right: Any, sizes: Mapping[int, CollectiveResult], colour: str) -> None:
    """What the alpha-beta model expects, as a thin line."""
    known = [(size, c, c.model_time) for size, c in sizes.items() if c.model_time]
    if not known:
        return
    places = [size for size, _, _ in known]
    thin = {"color": colour, "linewidth": 0.9, "linestyle": ":", "zorder": 1.5}
    left.plot(places, [c.bytes * c.bus_factor / time / 1e9 for _, c, time in known], **thin)
    right.plot(places, [time for _, _, time in known], **thin)


def _time_ticks(ax: Any, times: Sequence[float]) -> None:
    """1, 2, 5 times powers of ten where there is room for them, else the powers alone."""
    from matplotlib.ticker import LogLocator

    few = max(times) < 100 * min(times)
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))


def _round_time(seconds: float) -> str:
    scale = scale_for(seconds, "s")
    return f"{seconds / scale.divisor:g} {scale.label}"


def _link_rate(ax: Any, result: RunResult) -> None:
    """The rate of a NIC's link, which no ring's bus bandwidth exceeds."""
    rates = result.topology.link_rates if result.topology else {}
    rate = next((rate for kind, rate in rates.items() if kind.startswith(("rank", "server"))), None)
    if rate is None:
        return
    ax.axhline(rate / 8e9, color=GREY, linestyle="--", linewidth=1, zorder=1)
    ax.text(
        0.995, rate / 8e9, f"NIC {format_quantity(rate, 'bit/s')}", fontsize=8.5, color=GREY,
        transform=ax.get_yaxis_transform(), va="bottom", ha="right",
    )  # fmt: skip


def _size_axis(ax: Any, measured: Mapping[str, Mapping[int, CollectiveResult]]) -> None:
    sizes = sorted({size for by_size in measured.values() for size in by_size})
    step = math.ceil(len(sizes) / 8)
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes[::step], [short_size(size) for size in sizes[::step]])
    ax.minorticks_off()
    ax.set_xlabel("size (bytes; K, M: 1024, 1024²)")
    ax.grid(color=LIGHT, linewidth=0.6)
    ax.set_axisbelow(True)
