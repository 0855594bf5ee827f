"""Charts of a result as PNG files, drawn by matplotlib without a display."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from testbed.report import findings
from testbed.report.bandwidth_chart import bandwidth_chart, is_sweep
from testbed.report.canvas import COLOURS, DPI, GREY, LIGHT, LINE_STYLES, Sheet, finish_time_axis
from testbed.report.link_chart import link_chart, shows_links
from testbed.report.quantities import format_quantity, in_words, scale_for
from testbed.report.timeaxis import FoldedAxis
from testbed.report.timeline_chart import timeline_chart
from testbed.results import METRICS, PsnTrace, RunResult, VariantResult, atomic_write

MAX_QUEUES = 3
"""Queues drawn per variant, deepest first."""

MAX_FAULTS = 8
"""Faults marked per variant, first ones first."""

FAULT_NAME_WIDTH = 0.02
"""Share of the time axis that a fault's name takes, written upwards."""

NAME_COLUMNS = 22
"""Characters of a variant's name beside its bars, before it goes on a second line."""

COMPARED = (
    "completion_time_median", "completion_time_max", "goodput", "dropped_packets",
    "retransmitted_bytes", "naks", "timeouts",
)  # fmt: skip

_PSN_STYLE: dict[str, tuple[str, str, str, float]] = {
    # event: legend, colour, marker, size; drawn in this order
    "receive": ("received", "#56B4E9", ".", 5),
    "send": ("sent", "#0072B2", ".", 8),
    "resend": ("sent again", "#E69F00", "s", 7),
    "nak": ("NAK", "#009E73", "v", 16),
    "drop": ("dropped", "#D55E00", "x", 11),
    "timeout": ("timeout", "#000000", "D", 24),
}

Chart = Callable[[RunResult], Any]


def draw_charts(result: RunResult, run_dir: Path) -> dict[str, Path]:
    """Draw every chart that the result has data for; returns the PNG files by chart name.

    A sweep over sizes has many variants, and its own chart instead of those that compare them.
    """
    charts: dict[str, Chart] = {
        "bandwidth": bandwidth_chart,
        "comparison": comparison_chart,
        "timeline": timeline_chart,
        "links": link_chart,
        "psn": psn_chart,
        "queues": queue_chart,
        "completion": completion_chart,
    }
    if is_sweep(result):
        charts = {name: charts[name] for name in ("bandwidth", "timeline")}
    paths = {}
    for name, draw in charts.items():
        figure = draw(result)
        if figure is None:
            continue
        path = run_dir / f"{name}.png"
        with atomic_write(path) as temporary:
            figure.savefig(temporary, format="png", dpi=DPI)
        paths[name] = path
    return paths


def comparison_chart(result: RunResult) -> Any | None:
    """One small panel of bars per compared metric; None for a single variant."""
    if len(result.variants) < 2:
        return None
    columns = 4
    metrics = compared_metrics(result)
    rows = math.ceil(len(metrics) / columns)
    panel = 0.30 * len(result.variants) + 0.05
    sheet = Sheet.of(
        findings.comparison_finding(result),
        rows=rows,
        columns=columns,
        height=rows * (panel + 0.4) + 0.15,
    )
    for metric, ax in zip(metrics, sheet.panels(len(metrics)), strict=True):
        _bars(ax, metric, result.variants, first=ax.get_subplotspec().is_first_col())
    widest = min(max(len(variant.name) for variant in result.variants), NAME_COLUMNS)
    left = 0.025 + 0.0085 * widest
    sheet.place(left=left, right=0.985, hspace=0.4 / panel, wspace=0.12, bottom=0.12)
    return sheet.figure


def compared_metrics(result: RunResult) -> list[str]:
    """What the chart compares: bus bandwidth where it is a collective, link loads where they can
    differ."""
    speed = findings.speed_metric(result)
    metrics = [speed if metric == "goodput" else metric for metric in COMPARED]
    return [*metrics, "link_load_ratio"] if shows_links(result) else metrics


def _bars(ax: Any, metric: str, variants: Sequence[VariantResult], *, first: bool) -> None:
    info = METRICS[metric]
    values = [variant.metrics.get(metric) for variant in variants]
    numbers = [float(v) if isinstance(v, (int, float)) else 0.0 for v in values]
    top = max(numbers) or 1.0
    places = range(len(variants))
    colours = [COLOURS[i % len(COLOURS)] for i in places]
    ax.barh(places, numbers, height=0.72, color=colours)
    for place, value, number in zip(places, values, numbers, strict=True):
        text = format_quantity(value, info.unit)
        inside = number > 0.5 * top
        ax.text(
            number - 0.02 * top if inside else number + 0.02 * top,
            place, text, va="center", ha="right" if inside else "left", fontsize=8.5,
            color="white" if inside else "black",
        )  # fmt: skip
    ax.set_xlim(0, top)
    ax.set_ylim(len(variants) - 0.45, -0.55)
    ax.set_yticks(
        list(places), [_in_two_lines(v.name) for v in variants] if first else [], fontsize=9
    )
    ax.set_xticks([])
    ax.tick_params(length=0)
    ax.set_title(in_words(metric), fontsize=9, loc="left", color=GREY, pad=4)
    for spine in ax.spines.values():
        spine.set_visible(False)


def _in_two_lines(name: str) -> str:
    return "\n".join(textwrap.wrap(name, NAME_COLUMNS, max_lines=2, placeholder="…"))


def queue_chart(result: RunResult) -> Any | None:
    """Depth of the deepest queues over time, one panel per variant on the same axes."""
    drawn = [v for v in result.variants if v.queue_series and v.queue_series.depths]
    if not drawn:
        return None
    sheet = Sheet.of(
        findings.queue_finding(result),
        rows=len(drawn),
        height=1.75 * len(drawn) + 0.9,
        share=True,
    )
    panels = sheet.panels(len(drawn))
    busy = [_busy_times(v) for v in drawn]
    axis = FoldedAxis.of(np.concatenate(busy))
    peak = max(max(max(d) for d in v.queue_series.depths.values()) for v in drawn if v.queue_series)
    colour_of: dict[str, int] = {}
    limits = {p.interface: p.limit for v in drawn for p in v.ports}
    for variant, ax in zip(drawn, panels, strict=True):
        _queue_panel(ax, variant, axis, colour_of, limits)
    shown = [limit for name in colour_of if (limit := limits.get(name))]
    top = max([peak, *(limit for limit in shown if limit < 3 * peak)]) * 1.12
    scale = scale_for(top, "B")
    for ax in panels:
        ax.set_ylim(0, top)
        _scale_axis(ax.yaxis, scale.divisor)
        ax.set_ylabel(f"depth ({scale.label})")
    finish_time_axis(panels, axis)
    sheet.place(left=0.085, right=0.985, hspace=0.28)
    return sheet.figure


def _queue_panel(
    ax: Any,
    variant: VariantResult,
    axis: FoldedAxis,
    colour_of: dict[str, int],
    limits: dict[str, int | None],
) -> None:
    assert variant.queue_series is not None
    depths = variant.queue_series.depths
    times = np.array(variant.queue_series.times)
    deepest = sorted(depths, key=lambda name: (-max(depths[name]), name))[:MAX_QUEUES]
    for name in deepest:
        index = colour_of.setdefault(name, len(colour_of))
        style = {"color": COLOURS[index % len(COLOURS)], "zorder": 3 - 0.1 * index}
        label = f"{name} (max {format_quantity(max(depths[name]), 'B')})"
        xs, ys = _cut_at_folds(axis, times, np.array(depths[name], dtype=float))
        ax.step(xs, ys, where="post", linewidth=1.1, label=label, **style)
        if index == 0:
            ax.fill_between(xs, ys, step="post", alpha=0.15, linewidth=0, color=style["color"])
    for limit in {limits.get(name) for name in deepest} - {None}:
        ax.axhline(limit, color=GREY, linestyle="--", linewidth=1, zorder=1)
        ax.text(
            0.995, limit, f"limit {format_quantity(limit, 'B')}", fontsize=8.5, color=GREY,
            transform=ax.get_yaxis_transform(), va="bottom", ha="right", clip_on=True, zorder=13,
        )  # fmt: skip
    _mark_faults(ax, variant, axis)
    ax.set_title(variant.name, fontsize=10, loc="left", color=GREY, pad=3)
    ax.legend(
        loc="lower right", bbox_to_anchor=(1.005, 0.97), ncols=MAX_QUEUES, fontsize=8.5,
        frameon=False, borderaxespad=0.2, handlelength=1.4, columnspacing=1.2,
    )  # fmt: skip


def _mark_faults(ax: Any, variant: VariantResult, axis: FoldedAxis) -> None:
    """A line per fault, with its name where the one before leaves room for it."""
    free = 0.0
    for fault in [fault for fault in variant.faults if not fault.reaction][:MAX_FAULTS]:
        place = float(axis.position(np.array([fault.time]))[0])
        ax.axvline(place, color=GREY, linestyle=":", linewidth=1, zorder=2)
        if place >= free:
            free = place + FAULT_NAME_WIDTH * axis.width
            ax.text(
                place, 0.97, f" {fault.what} {fault.subject}".rstrip(), fontsize=8, color=GREY,
                transform=ax.get_xaxis_transform(), va="top", rotation=90, clip_on=True, zorder=13,
            )  # fmt: skip


def psn_chart(result: RunResult) -> Any | None:
    """Packets of one queue pair over time, variants side by side on the same axes."""
    drawn = [(v.name, v.psn_trace) for v in result.variants if v.psn_trace and v.psn_trace.times]
    if not drawn:
        return None
    columns = min(len(drawn), 2)
    rows = math.ceil(len(drawn) / columns)
    sheet = Sheet.of(
        findings.psn_finding(result),
        rows=rows,
        columns=columns,
        height=3.5 * rows + 1.1,
        share=True,
    )
    panels = sheet.panels(len(drawn))
    axis = FoldedAxis.of(np.concatenate([np.array(trace.times) for _, trace in drawn]))
    for (name, trace), ax in zip(drawn, panels, strict=True):
        _psn_panel(ax, trace, axis)
        title = f"{name}: rank {trace.source_rank} to rank {trace.destination_rank}"
        ax.set_title(title, fontsize=10, loc="left", color=GREY, pad=4)
    for ax in sheet.axes[:, 0]:
        ax.set_ylabel("PSN from the flow's first")
    finish_time_axis(panels, axis, wanted=8 if columns == 1 else 6)
    handles = _psn_legend(trace for _, trace in drawn)
    sheet.figure.legend(
        handles=handles, loc="lower center", ncols=len(handles), fontsize=9, frameon=False,
        handletextpad=0.2, columnspacing=1.4, borderaxespad=0.15,
    )  # fmt: skip
    sheet.place(left=0.07, right=0.985, wspace=0.06, hspace=0.25, bottom=0.85)
    return sheet.figure


def _psn_panel(ax: Any, trace: PsnTrace, axis: FoldedAxis) -> None:
    times, psns = np.array(trace.times), np.array(trace.psns)
    events = np.array(trace.events)
    for event, (_, colour, marker, size) in _PSN_STYLE.items():
        chosen = events == event
        if chosen.any():
            ax.scatter(
                axis.position(times[chosen]), psns[chosen], s=size, c=colour, marker=marker,
                linewidths=0.9 if marker == "x" else 0, zorder=2 + list(_PSN_STYLE).index(event),
            )  # fmt: skip


def _psn_legend(traces: Any) -> list[Any]:
    from matplotlib.lines import Line2D

    present = {event for trace in traces for event in trace.events}
    return [
        Line2D([], [], color=colour, marker=marker, linestyle="", label=label,
               markersize=max(4.5, math.sqrt(size)))
        for event, (label, colour, marker, size) in _PSN_STYLE.items()
        if event in present
    ]  # fmt: skip


def completion_chart(result: RunResult) -> Any | None:
    """Distribution of flow completion times, variants overlaid; None if no flow completed."""
    times = {
        variant.name: np.sort([f.completion_time for f in variant.flows if not f.failed])
        for variant in result.variants
    }
    known = [values for values in times.values() if len(values)]
    if not known:
        return None
    sheet = Sheet.of(findings.completion_finding(result), height=3.4)
    (ax,) = sheet.panels(1)
    everything = np.concatenate(known)
    low, high = float(everything.min()), float(everything.max())
    wide = low > 0 and high > 20 * low
    scale = scale_for(math.sqrt(low * high) if wide else high, "s")
    for index, variant in enumerate(result.variants):
        values = times[variant.name] / scale.divisor
        share = np.arange(1, len(values) + 1) / len(variant.flows)
        failed = len(variant.flows) - len(values)
        label = f"{variant.name} ({len(values)} flows" + (f", {failed} failed)" if failed else ")")
        ax.step(
            np.append(values[:1], values), np.append(share[:1] * 0, share), where="post",
            color=COLOURS[index % len(COLOURS)], linestyle=LINE_STYLES[index % len(LINE_STYLES)],
            linewidth=2, label=label,
        )  # fmt: skip
        if len(values) <= 64:
            ax.plot(values, share, "o", markersize=3.5, color=COLOURS[index % len(COLOURS)])
    if wide:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.set_ylim(0, 1.03)
    ax.set_xlabel(f"flow completion time ({scale.label}{', logarithmic' if wide else ''})")
    ax.set_ylabel("share of flows")
    ax.grid(color=LIGHT, linewidth=0.6)
    ax.legend(loc="best", fontsize=9, framealpha=0.9, edgecolor=LIGHT)
    sheet.place(left=0.07, right=0.985)
    return sheet.figure


def _busy_times(variant: VariantResult) -> npt.NDArray[np.float64]:
    """Times of bins in which any queue was not empty, and of those next to them."""
    assert variant.queue_series is not None
    times = np.array(variant.queue_series.times)
    busy = np.any(np.array(list(variant.queue_series.depths.values())) > 0, axis=0)
    return times[busy | np.roll(busy, 1)] if busy.any() else times[:1]


def _cut_at_folds(
    axis: FoldedAxis, times: npt.NDArray[np.float64], values: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Positions and values with a break at each fold, so that no line crosses one."""
    pieces_x, pieces_y = [], []
    for start, end in axis.segments:
        inside = (times >= start) & (times <= end)
        pieces_x += [axis.position(times[inside]), np.array([np.nan])]
        pieces_y += [values[inside], np.array([np.nan])]
    return np.concatenate(pieces_x), np.concatenate(pieces_y)


def _scale_axis(axis: Any, divisor: float) -> None:
    axis.set_major_formatter(lambda value, _: f"{value / divisor:g}")
