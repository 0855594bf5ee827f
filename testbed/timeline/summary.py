"""The timeline of a result: small enough for ``result.json``, with sums that are exact."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from testbed.results import Activity, RankTimeline, TimelineResult
from testbed.results.timeline import WAITED_FOR
from testbed.timeline.intervals import Interval

RESOLUTION = 500
"""Pauses shorter than this part of the whole are closed: less than a pixel of a chart."""

DIGITS = 10
"""Of the seconds of a span: tenths of a nanosecond."""

Spans = npt.NDArray[np.float64]
"""Shape (n, 2): begin and end of spans that do not overlap, ascending."""

_SHARES: tuple[tuple[str, tuple[Activity, ...]], ...] = (
    ("compute", (Activity.COMPUTE, Activity.REDUCE, Activity.COPY)),
    ("nvlink", (Activity.NVLINK_SEND, Activity.NVLINK_RECEIVE)),
    ("send", (Activity.SEND,)),
    ("receive", (Activity.RECEIVE,)),
)
"""What a moment counts as: the first of these that is under way."""


def summarise(
    intervals: Mapping[int, Sequence[Interval]], servers: Sequence[str] = ()
) -> TimelineResult | None:
    """The timeline of all ranks; None if nothing began. ``servers`` is by rank."""
    every = [interval for own in intervals.values() for interval in own]
    if not every:
        return None
    begin = min(interval.begin for interval in every)
    end = max(interval.end for interval in every)
    resolution = (end - begin) / RESOLUTION
    ranks = [
        _rank(rank, own, begin, end, resolution, servers[rank] if servers else "")
        for rank, own in sorted(intervals.items())
        if own
    ]
    return TimelineResult(begin=begin, end=end, resolution=resolution, ranks=ranks)


def _rank(
    rank: int,
    own: Sequence[Interval],
    begin: float,
    end: float,
    resolution: float,
    server: str,
) -> RankTimeline:
    spans = {activity: union(i for i in own if i.activity is activity) for activity in Activity}
    shares, covered = {}, np.empty((0, 2))
    for name, activities in _SHARES:
        grown = merged(np.concatenate([covered, *(spans[activity] for activity in activities)]))
        shares[name] = _length(grown) - _length(covered)
        covered = grown
    shares["wait"] = _length(_pauses(covered, begin))
    shares["done"] = end - float(covered[-1, 1])
    return RankTimeline(
        rank=rank,
        server=server,
        spans={
            activity: merged(found, pause=resolution).ravel().round(DIGITS).tolist()
            for activity, found in spans.items()
            if len(found)
        },
        shares=shares,
        waits_for=_waits_for(own, spans, begin),
    )


def union(intervals: Iterable[Interval]) -> Spans:
    """The spans in which at least one of the intervals is under way."""
    return merged(np.array([(i.begin, i.end) for i in intervals], dtype=float).reshape(-1, 2))


def merged(spans: Spans, *, pause: float = 0.0) -> Spans:
    """Spans as they are when those that overlap, or lie no further than ``pause`` apart, join."""
    if not len(spans):
        return spans
    ordered = spans[np.argsort(spans[:, 0], kind="stable")]
    reached = np.maximum.accumulate(ordered[:, 1])
    first = np.flatnonzero(np.append(True, ordered[1:, 0] > reached[:-1] + pause))
    last = np.append(first[1:], len(ordered)) - 1
    return np.column_stack([ordered[first, 0], reached[last]])


def _length(spans: Spans) -> float:
    return float((spans[:, 1] - spans[:, 0]).sum())


def _pauses(spans: Spans, begin: float) -> Spans:
    """What lies between the spans, from ``begin`` on."""
    if not len(spans):
        return spans
    starts = np.append(begin, spans[:-1, 1])
    pauses = np.column_stack([starts, spans[:, 0]])
    return pauses[pauses[:, 1] > pauses[:, 0]]


def _waits_for(
    own: Sequence[Interval], spans: Mapping[Activity, Spans], begin: float
) -> dict[int, float]:
    """Seconds of waiting by the rank that ended it by sending something."""
    pauses = _pauses(merged(np.concatenate([spans[activity] for activity in WAITED_FOR])), begin)
    sender = {
        interval.begin: interval.peer
        for interval in own
        if interval.activity in (Activity.RECEIVE, Activity.NVLINK_RECEIVE)
    }
    waits: dict[int, float] = {}
    for start, end in pauses.tolist():
        if end in sender:
            waits[sender[end]] = waits.get(sender[end], 0.0) + end - start
    return waits
