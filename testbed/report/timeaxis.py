"""A time axis that folds away idle spans, so that a 67 ms timeout does not hide 100 us of traffic.

Spans in which nothing happens for much longer than everything that does happen are drawn as a
narrow gap. Within the remaining segments one unit of time has the same width everywhere.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from testbed.report.quantities import scale_for, three_digits

MAX_GAPS = 24
"""Folds on one axis; more would leave no room for what happened between them."""

GAP_WORTH_FOLDING = 0.5
"""Idle spans are folded if each is longer than this share of what then remains."""

GAP_WIDTH, GAPS_WIDTH = 0.05, 0.3
"""Drawn width of a fold, and of all folds together at most, as a share of the time that stays."""

SHORTEST = 1e-9
"""Least extent of an axis in seconds, so that a single event has one."""

FROM_ZERO = 0.1
"""The axis begins at 0 if the first event comes within this share of the time that stays."""

PADDING = 0.01
"""Room at both ends of a segment, as a share of the time that stays."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class FoldedAxis:
    """Maps seconds to positions. ``segments`` are the spans (start, end) that stay, in order."""

    segments: list[tuple[float, float]]
    gap: float

    @classmethod
    def of(cls, activity: Floats) -> FoldedAxis:
        """The axis for events at these times; (0, 1 us) if there is none."""
        times = np.unique(activity)
        if len(times) == 0:
            return cls([(0.0, 1e-6)], 0.0)
        gaps = np.diff(times)
        longest = np.argsort(gaps)[::-1][:MAX_GAPS]
        total = float(times[-1] - times[0])
        # What would remain, by the number of gaps folded, from one.
        remaining = np.maximum(total - np.cumsum(gaps[longest]), SHORTEST)
        worth = np.flatnonzero(gaps[longest] > GAP_WORTH_FOLDING * remaining)
        count = int(worth[-1]) + 1 if len(worth) else 0
        folded = [int(index) for index in longest[:count]]
        kept = float(remaining[count - 1]) if count else max(total, SHORTEST)
        bounds = [-1, *sorted(folded), len(times) - 1]
        segments = [(float(times[a + 1]), float(times[b])) for a, b in itertools.pairwise(bounds)]
        if 0 < segments[0][0] < FROM_ZERO * kept:
            segments[0] = (0.0, segments[0][1])
        pad = PADDING * kept
        gap = min(GAP_WIDTH, GAPS_WIDTH / max(count, 1)) * kept
        return cls([(start - pad, end + pad) for start, end in segments], gap)

    @property
    def kept(self) -> float:
        """Seconds of time that stay on the axis."""
        return sum(end - start for start, end in self.segments)

    @property
    def width(self) -> float:
        """Position of the axis' end; it begins at 0."""
        return self.kept + self.gap * (len(self.segments) - 1)

    def starts(self) -> list[float]:
        """Position of each segment's start."""
        positions, position = [], 0.0
        for start, end in self.segments:
            positions.append(position)
            position += end - start + self.gap
        return positions

    def position(self, times: Floats) -> Floats:
        """Positions of times; those inside a fold get places inside the gap."""
        known_times: list[float] = []
        known_positions: list[float] = []
        for (start, end), position in zip(self.segments, self.starts(), strict=True):
            known_times += [start, end]
            known_positions += [position, position + end - start]
        return np.interp(times, known_times, known_positions)

    def folds(self) -> list[tuple[float, float, float]]:
        """Each fold as (left position, right position, seconds folded away)."""
        starts = self.starts()
        return [
            (starts[i] - self.gap, starts[i], self.segments[i][0] - self.segments[i - 1][1])
            for i in range(1, len(self.segments))
        ]

    def ticks(self, *, wanted: int = 8) -> tuple[list[float], list[str], str]:
        """(positions, labels, unit label): round times in the first segment's unit.

        A segment after a fold begins with its own start time and goes on with offsets from it.
        Ticks keep most of the distance that ``wanted`` of them would have. The unit label is
        empty where no tick needs it, because each is 0 or says its own unit.
        """
        step = _round_step(self.kept / wanted)
        room = 0.7 * self.width / wanted
        scale = scale_for(max(self.kept, abs(self.segments[0][1])), "s")
        ticks: list[tuple[float, str]] = []
        in_unit: set[str] = set()

        def add(place: float, label: str) -> None:
            if all(abs(place - other) >= room for other, _ in ticks):
                ticks.append((place, label))

        def add_in_unit(place: float, label: str) -> None:
            in_unit.add(label)
            add(place, label)

        spans = list(zip(self.segments, self.starts(), strict=True))
        for (start, _), place in spans[1:]:
            own = scale_for(start, "s")
            add(place, f"{three_digits(start / own.divisor)} {own.label}")
        (start, end), place = spans[0]
        for number in range(math.ceil(start / step), math.floor(end / step) + 1):
            add_in_unit(place + number * step - start, f"{number * step / scale.divisor:.6g}")
        for (start, end), place in spans[1:]:
            for offset in np.arange(step, end - start, step):
                add_in_unit(float(place + offset), f"+{offset / scale.divisor:.6g}")
        ticks.sort()
        # Far from 0 a double holds fewer digits of time than the axis shows: keep ticks on it.
        places = [min(max(place, 0.0), self.width) for place, _ in ticks]
        labels = [label for _, label in ticks]
        return places, labels, scale.label if in_unit.intersection(labels) - {"0"} else ""

    def scale_bar(self, *, share: float = 0.08) -> float:
        """A round number of seconds that takes about ``share`` of the axis."""
        return _round_step(self.width * share)


def _round_step(step: float) -> float:
    """The next larger of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step)) if step > 0 else 1e-9
    for factor in (1, 2, 5):
        if factor * power >= step * 0.999:
            return factor * power
    return 10 * power
