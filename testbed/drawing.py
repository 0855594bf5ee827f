"""A topology as a picture: who is wired to whom, and which way the flows of a plan go.

Up to as many flows as there are colours are drawn one by one; more are drawn as link loads.
"""

from __future__ import annotations

import logging
import math
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from testbed.drawn_flows import DrawnFlow, finding, link_loads, number_of, summary
from testbed.report import fonts_listed_elsewhere
from testbed.report.canvas import COLOURS, DPI, GREY
from testbed.topology import NodeKind, RankRole, Topology
from testbed.topology.layout import (
    READABLE_CELL,
    Box,
    Layout,
    lay_out,
)

FORMATS = ("svg", "png")

POINT = 1 / 72
"""Inches."""

FLOW_COLOURS = (*COLOURS, "#8C6D31")
"""Eight, since a server has eight GPUs."""

LINK_COLOUR = "#cfcfcf"
PLANE_FILLS = ("#dbe9f6", "#fde3c8", "#d9f0e3", "#f3deec")
GROUP_FILL = "#f5f5f5"
SERVER_FILL = "#ffffff"
ROLE_FILLS = {
    RankRole.GPU: "#e6e6e6",
    RankRole.STORAGE: "#f7e7a9",
    RankRole.FRONT_END: "#d9d2ec",
}
LOAD_COLOURS = ("#7db8e0", "#0072B2", "#D55E00")
"""From the least to the most loaded link; the ends of the scale differ in lightness as well."""

MARK_STYLES: tuple[Mapping[str, Any], ...] = (
    {"color": "#111111", "linewidth": 1.3, "linestyle": (0, (2.5, 2.0))},
    {"color": "#111111", "linewidth": 1.3, "linestyle": (0, (0.8, 1.6))},
)
"""Dashed and dotted, for one kind of links to point out each."""

MARGIN = 0.35
LEGEND_LINE = 0.21
LEGEND_COLUMN = 1.95
LEAST_WIDTH = 8.0
GLYPH = 0.62
"""Mean width of a character over the font's size."""

SMALLEST = 0.72
"""Share of its size to which a label may shrink."""

FLOW_WIDTH = 1.8
UNCROWDED = 100
"""Used links up to which lines have their full width."""

LOADS_SHOWN = 5
"""In the legend."""

LINE_PER_FLOW, LEAST_LINE, WIDEST_LINE = 1.5, 0.7, 5.0
"""Points."""


class DrawingError(ValueError):
    """The drawing cannot be made; the message says what is allowed."""


def picture_format(path: Path) -> str:
    """ "svg" or "png", by the file's name. Raises DrawingError."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        allowed = " or ".join(f".{name}" for name in FORMATS)
        raise DrawingError(f"{path}: is no picture's name; allowed: {allowed}")
    return kind


def draw_topology(
    topology: Topology,
    flows: Sequence[DrawnFlow],
    path: Path,
    kind: str,
    *,
    subtitle: str = "",
    marks: Mapping[str, str] | None = None,
) -> None:
    """Draw into a file of a ``picture_format``. Raises OSError.

    ``marks`` are links to point out, by one of their interfaces, and what the legend says of them.
    """
    # that a home directory cannot be written to, for its cache, is no news for our users
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with fonts_listed_elsewhere():
        import matplotlib as mpl

        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "rocelab"}):
            figure = _Picture(topology, flows, subtitle, marks or {}).figure
            metadata = {"Date": None} if kind == "svg" else None
            figure.savefig(path, format=kind, dpi=DPI, metadata=metadata)


class _Picture:
    """One figure whose data coordinates are inches, so that offsets are in points."""

    def __init__(
        self,
        topology: Topology,
        flows: Sequence[DrawnFlow],
        subtitle: str,
        marks: Mapping[str, str],
    ) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self._topology = topology
        self._flows = flows
        self._marks = marks
        self._styles = dict(zip(dict.fromkeys(marks.values()), cycle(MARK_STYLES), strict=False))
        self._layout = lay_out(topology)
        self._ends = _link_ends(topology, self._layout)
        self._loads = link_loads(flows)
        self._each = 0 < len(flows) <= len(FLOW_COLOURS)
        entries = self._legend_entries()
        width = max(LEAST_WIDTH, self._layout.width + 2 * MARGIN)
        columns = max(1, int((width - 2 * MARGIN) / LEGEND_COLUMN))
        rows = math.ceil(len(entries) / columns)
        title = textwrap.wrap(finding(topology, flows), int(width * 10.2))
        below = MARGIN + 0.1 + rows * LEGEND_LINE
        above = 0.55 + 0.22 * len(title)
        bottom, top = self._layout.bottom - below, self._layout.top + above
        left = (self._layout.width - width) / 2
        self.figure = Figure(figsize=(width, top - bottom))
        FigureCanvasAgg(self.figure)
        self._axes: Any = self.figure.add_axes((0, 0, 1, 1))
        self._axes.set_xlim(left, left + width)
        self._axes.set_ylim(bottom, top)
        self._axes.axis("off")
        self._text(left + 0.12, top - 0.1, "\n".join(title), size=12, weight="bold", va="top")
        under = f"{subtitle}, {summary(topology)}" if subtitle else summary(topology)
        self._text(
            left + 0.12, top - 0.14 - 0.22 * len(title), under, size=8.5, color=GREY, va="top"
        )
        self._draw_groups()
        self._draw_links()
        if self._each:
            self._draw_flows()
        else:
            self._draw_loads()
        self._draw_marks()
        self._draw_nodes()
        self._draw_legend(entries, columns, left + 0.12, bottom + 0.1 + (rows - 0.5) * LEGEND_LINE)

    def _text(self, x: float, y: float, text: str, *, size: float, **kwargs: Any) -> None:
        self._axes.text(x, y, text, fontsize=size, **kwargs)

    def _rectangle(self, box: Box, *, fill: str, edge: str, zorder: float, radius: float) -> None:
        from matplotlib.patches import FancyBboxPatch

        style = f"round,pad=0,rounding_size={min(radius, box.width / 4, box.height / 4)}"
        self._axes.add_patch(
            FancyBboxPatch(
                (box.left, box.bottom), box.width, box.height, boxstyle=style, facecolor=fill,
                edgecolor=edge, linewidth=0.8, zorder=zorder,
            )
        )  # fmt: skip

    def _draw_groups(self) -> None:
        groups: dict[str, list[str]] = defaultdict(list)
        for node in self._topology.nodes.values():
            if node.group:
                groups[node.group].append(node.name)
        for group, names in groups.items():
            box = self._layout.around(names, 0.13)
            self._rectangle(box, fill=GROUP_FILL, edge="#e2e2e2", zorder=0, radius=0.12)
            self._text(
                box.left + 0.05, box.bottom - 0.03, group, size=7.5, color=GREY, va="top", zorder=1
            )

    def _draw_links(self) -> None:
        from matplotlib.collections import LineCollection

        segments = [
            self._ends[name]
            for name, interface in self._topology.interfaces.items()
            if name < interface.peer
        ]
        width = 0.9 if len(segments) < 400 else 0.45
        self._axes.add_collection(
            LineCollection(segments, colors=LINK_COLOUR, linewidths=width, zorder=2)
        )

    def _draw_flows(self) -> None:
        """Each flow in its colour, side by side where they share a link."""
        users: dict[str, list[int]] = defaultdict(list)
        for number, flow in enumerate(self._flows):
            for name in sorted({name for way in flow.ways for name in way}):
                users[self._link(name)].append(number)
        for link, numbers in users.items():
            for number in set(numbers):
                slot = sorted(set(numbers)).index(number) - (len(set(numbers)) - 1) / 2
                start, end = _shifted(*self._ends[link], slot * (FLOW_WIDTH + 0.5) * POINT)
                several = len(self._flows[number].ways) > 1
                self._axes.plot(
                    (start[0], end[0]), (start[1], end[1]), color=FLOW_COLOURS[number],
                    linewidth=FLOW_WIDTH, zorder=4, solid_capstyle="round",
                    alpha=0.55 if several else 1,
                )  # fmt: skip

    def _draw_loads(self) -> None:
        """Every used link as thick as it is loaded; up and down side by side."""
        from matplotlib.collections import LineCollection

        least = min(self._loads.values(), default=1.0)
        most = max(self._loads.values(), default=1.0)
        thinner = _crowding(len(self._loads))
        ordered = sorted(self._loads, key=self._loads.__getitem__)
        segments, widths, colours = [], [], []
        for name in ordered:
            width = _load_width(self._loads[name], most) * thinner
            both = self._topology.interfaces[name].peer in self._loads
            shift = (width / 2 + 0.3) * POINT if both else 0.0
            segments.append(_shifted(*self._ends[name], shift))
            widths.append(width)
            colours.append(_load_colour(self._loads[name], least, most))
        self._axes.add_collection(
            LineCollection(segments, colors=colours, linewidths=widths, zorder=4)
        )

    def _draw_marks(self) -> None:
        """Links to point out, over whatever goes through them."""
        for name, words in self._marks.items():
            (x, y), (other_x, other_y) = self._ends[name]
            self._axes.plot((x, other_x), (y, other_y), zorder=4.5, **self._styles[words])

    def _draw_nodes(self) -> None:
        for node in self._topology.nodes.values():
            box = self._layout.nodes[node.name]
            if node.kind is NodeKind.SWITCH:
                fill = PLANE_FILLS[node.plane % len(PLANE_FILLS)]
                self._rectangle(box, fill=fill, edge="#777777", zorder=5, radius=0.05)
                self._label(box, node.name, size=7.5)
            else:
                self._rectangle(box, fill=SERVER_FILL, edge="#999999", zorder=5, radius=0.04)
                self._label(self._free_part(node.name), node.name, size=7)
        for rank in self._topology.ranks:
            box = self._layout.ranks[rank.rank]
            fill = ROLE_FILLS[rank.role]
            edge = "#999999" if box.width >= READABLE_CELL / 2 else fill
            self._rectangle(box, fill=fill, edge=edge, zorder=6, radius=0)
            if box.width >= READABLE_CELL:
                self._text(
                    box.x, box.y, str(rank.rank), size=6.5, ha="center", va="center", zorder=7
                )

    def _free_part(self, server: str) -> Box:
        """What the cells of a server's ranks leave of its box."""
        box = self._layout.nodes[server]
        cells = [self._layout.ranks[r.rank] for r in self._topology.ranks if r.server == server]
        top = min((cell.bottom for cell in cells if cell.y > box.y), default=box.top)
        bottom = max((cell.top for cell in cells if cell.y < box.y), default=box.bottom)
        return Box(box.x, (top + bottom) / 2, box.width, top - bottom)

    def _label(self, box: Box, name: str, *, size: float) -> None:
        """A name inside its box, smaller, without its word or not at all where it does not fit."""
        for text in (name, name.lstrip("abcdefghijklmnopqrstuvwxyz")):
            scale = min(1.0, box.width / (GLYPH * len(text) * size * POINT)) if text else 0.0
            if scale >= SMALLEST:
                self._text(
                    box.x, box.y, text, size=size * scale, ha="center", va="center", zorder=7
                )
                return

    def _legend_entries(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Texts and the line or patch that each explains."""
        entries: list[tuple[str, Mapping[str, Any]]] = []
        if self._each:
            for number, flow in enumerate(self._flows):
                entries.append(
                    (flow.label, {"color": FLOW_COLOURS[number], "linewidth": FLOW_WIDTH})
                )
        elif self._loads:
            least, most = min(self._loads.values()), max(self._loads.values())
            shown = _samples(self._loads.values())
            thinner = _crowding(len(self._loads))
            for load in shown:
                words = "flows" if load > 1 else "flow" if number_of(load) == "1" else "of a flow"
                style = {
                    "color": _load_colour(load, least, most),
                    "linewidth": _load_width(load, most) * thinner,
                }
                entries.append((f"{number_of(load)} {words}", style))
        entries += self._styles.items()
        planes = sorted({switch.plane for switch in self._topology.switches})
        if len(planes) > 1:
            entries += [
                (f"plane {plane}", {"fill": PLANE_FILLS[plane % len(PLANE_FILLS)]})
                for plane in planes[: len(PLANE_FILLS)]
            ]
        for role, words in (
            (RankRole.GPU, "GPU, with its rank"),
            (RankRole.FRONT_END, "front-end NIC"),
            (RankRole.STORAGE, "storage server"),
        ):
            if self._topology.ranks_of(role):
                entries.append((words, {"fill": ROLE_FILLS[role]}))
        return entries

    def _draw_legend(
        self, entries: Sequence[tuple[str, Mapping[str, Any]]], columns: int, x: float, y: float
    ) -> None:
        for position, (text, style) in enumerate(entries):
            row, column = divmod(position, columns)
            left, middle = x + column * LEGEND_COLUMN, y - row * LEGEND_LINE
            if "fill" in style:
                box = Box(left + 0.12, middle, 0.24, 0.12)
                self._rectangle(box, fill=style["fill"], edge="#999999", zorder=5, radius=0)
            else:
                self._axes.plot((left, left + 0.24), (middle, middle), **style)
            self._text(left + 0.32, middle, text, size=8, va="center")

    def _link(self, name: str) -> str:
        """One name for both ends of a link."""
        return min(name, self._topology.interfaces[name].peer)


Point = tuple[float, float]


def _link_ends(topology: Topology, layout: Layout) -> dict[str, tuple[Point, Point]]:
    """Transmitting interface -> where its link starts and ends on the drawing."""
    cells = {name: rank.rank for rank in topology.ranks for name in rank.interfaces}

    def end(name: str, upwards: bool) -> Point:
        if name in cells:
            box = layout.ranks[cells[name]]
        else:
            box = layout.nodes[topology.interfaces[name].node]
        return (box.x, box.top if upwards else box.bottom)

    def height(name: str) -> float:
        return layout.nodes[topology.interfaces[name].node].y

    return {
        name: (end(name, height(i.peer) > height(name)), end(i.peer, height(i.peer) < height(name)))
        for name, i in topology.interfaces.items()
    }


def _shifted(start: Point, end: Point, offset: float) -> tuple[Point, Point]:
    """The same line, ``offset`` inches to its left."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = math.hypot(dx, dy) or 1.0
    x, y = -dy / length * offset, dx / length * offset
    return (start[0] + x, start[1] + y), (end[0] + x, end[1] + y)


def _samples(loads: Iterable[float]) -> list[float]:
    """The loads that a legend shows: all if they are few, else some from least to most."""
    values = sorted({round(load, 6) for load in loads})
    if len(values) <= LOADS_SHOWN:
        return values
    step = (len(values) - 1) / (LOADS_SHOWN - 1)
    return [values[round(i * step)] for i in range(LOADS_SHOWN)]


def _load_width(load: float, most: float) -> float:
    """Points, in proportion to the load."""
    return max(LEAST_LINE, load * min(LINE_PER_FLOW, WIDEST_LINE / most))


def _crowding(links: int) -> float:
    """Factor of line widths, so that many lines do not become one area."""
    return min(1.0, max(0.25, math.sqrt(UNCROWDED / max(links, 1))))


def _load_colour(load: float, least: float, most: float) -> str:
    from matplotlib.colors import LinearSegmentedColormap, to_hex

    scale = LinearSegmentedColormap.from_list("load", list(LOAD_COLOURS))
    return str(to_hex(scale((load - least) / (most - least) if most > least else 0.5)))
