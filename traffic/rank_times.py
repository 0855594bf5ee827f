"""What ranks did with their time, from the timelines of a run: compute, communicate, wait.

At any moment a rank computes (a COMPUTE is under way); or it does not, and a message to or from it
is under way, on the network or on NVLink: that communication is exposed; or neither: it waits for
others, as in a pipeline's bubble or behind a straggler. A message is under way from its posting to
its completion at the end that is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from traffic.executor import Timeline
from traffic.plan import OpKind, Plan
from traffic.schedule import match_messages

Interval = tuple[float, float]
"""Begin and end in seconds."""


@dataclass(frozen=True, slots=True)
class RankTimes:
    """Seconds of emulated time of one rank; they add up to the duration of the whole plan."""

    rank: int
    compute: float
    exposed_communication: float
    waiting: float


def rank_times(
    plan: Plan, timelines: Mapping[int, Timeline], ranks: Sequence[int]
) -> tuple[RankTimes, ...] | None:
    """The times of ``ranks``, of which ``timelines`` has each; None if the plan did not end."""
    end = 0.0
    for rank in ranks:
        finished = timelines[rank].finished
        if any(time != time for time in finished):  # NaN
            return None
        end = max(end, max(finished, default=0.0))
    senders = match_messages(plan)
    return tuple(_times(plan, timelines, rank, senders, end) for rank in ranks)


def _times(
    plan: Plan,
    timelines: Mapping[int, Timeline],
    rank: int,
    senders: Mapping[tuple[int, int], tuple[int, int]],
    end: float,
) -> RankTimes:
    timeline = timelines[rank]
    computing: list[Interval] = []
    moving: list[Interval] = []
    for op in plan.ops[rank]:
        begin, finish = timeline.started[op.op_id], timeline.finished[op.op_id]
        if op.kind is OpKind.COMPUTE:
            computing.append((begin, finish))
        elif op.kind.sends:
            moving.append((begin, finish))
        elif (rank, op.op_id) in senders:
            sender, send = senders[rank, op.op_id]
            moving.append((timelines[sender].started[send], finish))
    compute = covered(computing)
    busy = covered([*computing, *moving])
    return RankTimes(rank, compute, busy - compute, end - busy)


def covered(intervals: Iterable[Interval]) -> float:
    """The length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        if end > reached:
            total += end - max(begin, reached)
            reached = end
    return total
