"""The sheet that a chart is drawn on: size, title, margins, colours and the shared time axis.

Colours are Okabe and Ito's, which colour-blind readers can tell apart. matplotlib is imported when
the first sheet is made, because that takes longer than everything else that ``rocelab`` imports.
"""

from __future__ import annotations

import logging
import textwrap
from dataclasses import dataclass
from typing import Any

from testbed.report.quantities import format_quantity, scale_for
from testbed.report.timeaxis import FoldedAxis

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINE_STYLES = ("-", "--", "-.", ":")
GREY, LIGHT = "#555555", "#dddddd"

WIDTH = 9.0
"""Inches; with DPI it gives images that are sharp on a laptop and small enough to inline."""

DPI = 110
TITLE_COLUMNS = 92
MANY_FOLDS = 6
"""Folds on an axis beyond which their labels are set smaller."""

SCALE_BAR_DROP = -26
"""Points from the axis to its scale bar, at the height of the axis' label."""

LINE = 0.22
"""Height of a title line in inches."""


@dataclass(frozen=True)
class Sheet:
    """A matplotlib figure with a finding as its title; ``axes`` is a 2-D array of panels."""

    figure: Any
    axes: Any
    top: float

    @classmethod
    def of(
        cls, title: str, *, rows: int = 1, columns: int = 1, height: float, share: bool = False
    ) -> Sheet:
        """A sheet of ``height`` inches below its title, whose panels may share their axes."""
        # that a home directory cannot be written to, for its cache, is no news for our users
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        lines = textwrap.wrap(title, TITLE_COLUMNS, break_on_hyphens=False)
        height += LINE * len(lines)
        figure = Figure(figsize=(WIDTH, height))
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=share)
        figure.text(
            0.012, 1 - 0.08 / height, "\n".join(lines), fontsize=12, weight="bold", va="top"
        )
        for ax in axes.flat:
            ax.spines[["top", "right"]].set_visible(False)
            ax.tick_params(labelsize=9)
        return cls(figure, axes, top=1 - (0.40 + LINE * len(lines)) / height)

    def panels(self, count: int) -> list[Any]:
        """The first ``count`` panels in reading order; the rest are blanked."""
        panels = list(self.axes.flat)
        for unused in panels[count:]:
            unused.axis("off")
        return panels[:count]

    def place(self, *, bottom: float = 0.52, **margins: float) -> None:
        """Fix the margins: ``bottom`` in inches, the rest in shares of the figure.

        A layout solver would find them too, for a second of CPU time per report.
        """
        height = self.figure.get_size_inches()[1]
        self.figure.subplots_adjust(top=self.top, bottom=bottom / height, **margins)


def finish_time_axis(axes: Any, axis: FoldedAxis, *, wanted: int = 8) -> None:
    """Ticks, folds and label of a folded time axis."""
    positions, labels, unit = axis.ticks(wanted=wanted)
    folds = axis.folds()
    fontsize = 8.5 if len(folds) <= MANY_FOLDS else 6.5
    for ax in axes:
        ax.set_xlim(0, axis.width)
        ax.set_xticks(positions, labels)
        ax.grid(color=LIGHT, linewidth=0.6)
        ax.set_axisbelow(True)
        for left, right, seconds in folds:
            ax.axvspan(
                left, right, facecolor="white", edgecolor="#bbbbbb", hatch="////", linewidth=0,
                zorder=1.5,
            )  # fmt: skip
            ax.text(
                (left + right) / 2, 0.5, f"{format_quantity(seconds, 's')} idle", rotation=90,
                transform=ax.get_xaxis_transform(), ha="center", va="center", fontsize=fontsize,
                color=GREY, zorder=12,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
            )  # fmt: skip
        if ax.get_subplotspec().is_last_row():
            ax.set_xlabel(f"time ({unit})" if unit else "time")
            if not unit:
                _draw_scale_bar(ax, axis)


def _draw_scale_bar(ax: Any, axis: FoldedAxis) -> None:
    """How long what lies between two folds takes, right of the axis' label."""
    from matplotlib.transforms import offset_copy

    length = axis.scale_bar()
    scale = scale_for(length, "s")
    below = offset_copy(ax.get_xaxis_transform(), ax.figure, y=SCALE_BAR_DROP, units="points")
    start, end = axis.width - length, axis.width
    ax.plot(
        [start, end], [0, 0], color=GREY, linewidth=1, marker="|", markersize=5,
        transform=below, clip_on=False,
    )  # fmt: skip
    ax.text(
        start - 0.01 * axis.width, 0, f"{length / scale.divisor:g} {scale.label}", fontsize=8.5,
        transform=below, ha="right", va="center", color=GREY,
    )  # fmt: skip
