"""The chart of link loads: a bar per link that may carry a flow, grouped by switch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from testbed.report import findings
from testbed.report.canvas import COLOURS, GREY, LIGHT, Sheet
from testbed.report.quantities import Scale, format_quantity, scale_for
from testbed.results import PortResult, RunResult, VariantResult, links, load_ratio

LAYERS = ((1, 2), (2, 3))
"""The layers of up links, by tier; where paths part."""

MOST_LABELS = 20
"""Switches across a sheet whose names still fit below an axis."""

MOST_LINKS = 64
"""Bars across a sheet that still have room for a line around them."""

_LINK_NAME = re.compile(r"^(?P<switch>[a-z]+\d+)-")


def link_chart(result: RunResult) -> Any | None:
    """One panel per variant and layer of up links; None where no switch has a choice of links."""
    layers = _layers(result)
    if not layers:
        return None
    variants = result.variants
    sheet = Sheet.of(
        findings.link_finding(result),
        rows=len(variants),
        columns=len(layers),
        height=1.15 * len(variants) + 0.75,
    )
    panels = sheet.panels(len(variants) * len(layers))
    same = all(_places_of(variant) == _places_of(variants[-1]) for variant in variants)
    for column, layer in enumerate(layers):
        loads = [links(variant, *layer) for variant in variants]
        peak = max((port.data_bytes for ports in loads for port in ports), default=0)
        scale = scale_for(peak, "B")
        for row, (variant, ports) in enumerate(zip(variants, loads, strict=True)):
            ax = panels[row * len(layers) + column]
            crowded = len(ports) > MOST_LINKS // len(layers)
            _bars(ax, ports, colour=COLOURS[row % len(COLOURS)], crowded=crowded)
            _scale(ax, scale, top=1.05 * max(peak, 1))
            _name(ax, variant, ports)
            ax.set_ylabel(scale.label)
            most = MOST_LABELS // len(layers)
            named = row == len(variants) - 1 or not same
            _name_switches(ax, ports, most=most, named=named)
    hspace = 0.38 if same else 0.62
    sheet.place(left=0.07, right=0.985, hspace=hspace, wspace=0.14, bottom=0.34)
    return sheet.figure


def shows_links(result: RunResult) -> bool:
    """Whether there is a choice of links, so that their loads say something."""
    return bool(_layers(result))


def _layers(result: RunResult) -> list[tuple[int, int]]:
    """Layers in which some switch of some variant has two links or more that may carry a flow."""
    found = []
    for layer in LAYERS:
        for variant in result.variants:
            switches = [switch_of(port) for port in links(variant, *layer)]
            if len(switches) > len(set(switches)):
                found.append(layer)
                break
    return found


def switch_of(port: PortResult) -> str:
    """The switch whose port it is."""
    match = _LINK_NAME.match(port.interface)
    return match["switch"] if match else port.interface


def _bars(ax: Any, ports: Sequence[PortResult], *, colour: str, crowded: bool) -> None:
    """The links' bars, a cross on those without a load, and the mean as a dashed line."""
    if not ports:
        return
    places = _places(ports)
    ax.bar(
        places, [port.data_bytes for port in ports], width=0.82, color=colour,
        linewidth=0 if crowded else 0.4, edgecolor="white", zorder=2,
    )  # fmt: skip
    if not crowded:
        idle = [place for place, port in zip(places, ports, strict=True) if not port.data_bytes]
        ax.plot(idle, [0] * len(idle), "x", color="#D55E00", markersize=5, clip_on=False, zorder=4)
    ax.axhline(_mean(ports), color="black", linestyle="--", linewidth=1, zorder=3)
    ax.set_xlim(-0.8, places[-1] + 0.8)


def _scale(ax: Any, scale: Scale, *, top: float) -> None:
    ax.set_ylim(0, top)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value / scale.divisor:g}")
    ax.locator_params(axis="y", nbins=3)
    ax.grid(axis="y", color=LIGHT, linewidth=0.6)
    ax.set_axisbelow(True)


def _name(ax: Any, variant: VariantResult, ports: Sequence[PortResult]) -> None:
    layer = f", {ports[0].layer}" if ports else ""
    ax.set_title(f"{variant.name}{layer}", fontsize=10, loc="left", color=GREY, pad=3)
    ratio = load_ratio(ports)
    if ratio is not None:
        mean = format_quantity(_mean(ports), "B")
        text = f"mean {mean}, max {format_quantity(ratio, 'ratio')}"
        ax.set_title(text, fontsize=8.5, loc="right", pad=3)


def _mean(ports: Sequence[PortResult]) -> float:
    return sum(port.data_bytes for port in ports) / len(ports)


def _places(ports: Sequence[PortResult]) -> list[float]:
    """A bar's width each, and one more between two switches."""
    places: list[float] = []
    for index, port in enumerate(ports):
        gap = 0 if index == 0 else 1 + (switch_of(port) != switch_of(ports[index - 1]))
        places.append((places[-1] if places else 0) + gap)
    return places


def _places_of(variant: VariantResult) -> list[list[str]]:
    """By layer, the switch of each bar."""
    return [[switch_of(port) for port in links(variant, *layer)] for layer in LAYERS]


def _name_switches(ax: Any, ports: Sequence[PortResult], *, most: int, named: bool) -> None:
    """A switch's name below the middle of its bars, unless a lower panel has the same names."""
    middles, names = [], []
    pairs = zip(_places(ports), map(switch_of, ports), strict=True)
    for name, group in groupby(pairs, key=lambda pair: pair[1]):
        places = [place for place, _ in group]
        middles.append((places[0] + places[-1]) / 2)
        names.append(name)
    step = max(1, -(-len(names) // most))
    ax.set_xticks(middles[::step], names[::step] if named else [], fontsize=8.5)
    ax.tick_params(axis="x", length=0)
