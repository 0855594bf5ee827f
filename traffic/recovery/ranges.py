"""A set of integers kept as disjoint ranges, oldest first."""

from __future__ import annotations

from bisect import bisect_right


class RangeSet:
    """Integers as half-open ranges [start, stop), sorted, neither overlapping nor touching.

    Additions at the end, which is where nearly all of them go, cost constant time.
    """

    __slots__ = ("_starts", "_stops")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def add(self, start: int, stop: int) -> tuple[int, int]:
        """Add [start, stop), which is not empty; returns the range that now contains it."""
        starts, stops = self._starts, self._stops
        if not starts or start > stops[-1]:
            starts.append(start)
            stops.append(stop)
            return start, stop
        if start >= starts[-1]:
            stops[-1] = max(stops[-1], stop)
            return starts[-1], stops[-1]
        # First range that ends at or behind start, and first that starts behind stop.
        low = bisect_right(stops, start - 1)
        high = bisect_right(starts, stop)
        if low < high:
            start = min(start, starts[low])
            stop = max(stop, stops[high - 1])
        starts[low:high] = [start]
        stops[low:high] = [stop]
        return start, stop

    def discard_before(self, bound: int) -> None:
        """Remove all integers below ``bound``."""
        starts, stops = self._starts, self._stops
        if not starts or starts[0] >= bound:
            return
        keep = bisect_right(stops, bound)
        del starts[:keep], stops[:keep]
        if starts and starts[0] < bound:
            starts[0] = bound

    def next_missing(self, value: int) -> int:
        """The smallest integer >= ``value`` that is not in the set."""
        index = bisect_right(self._starts, value) - 1
        if index >= 0 and value < self._stops[index]:
            return self._stops[index]
        return value

    def first(self) -> tuple[int, int]:
        """The lowest range. Raises IndexError if the set is empty."""
        return self._starts[0], self._stops[0]

    @property
    def end(self) -> int | None:
        """One more than the largest integer, or None if the set is empty."""
        return self._stops[-1] if self._stops else None

    def __contains__(self, value: int) -> bool:
        index = bisect_right(self._starts, value) - 1
        return index >= 0 and value < self._stops[index]

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __repr__(self) -> str:
        return f"RangeSet({list(zip(self._starts, self._stops, strict=True))})"
