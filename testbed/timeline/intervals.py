"""From the operations of a plan and their times to what was under way at a rank, and when."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from testbed.results import Activity
from traffic.executor import Timeline
from traffic.plan import Op, OpKind, Plan
from traffic.schedule import match_messages

_ACTIVITIES = {
    OpKind.COMPUTE: Activity.COMPUTE,
    OpKind.REDUCE: Activity.REDUCE,
    OpKind.COPY: Activity.COPY,
    OpKind.SEND: Activity.SEND,
    OpKind.RECEIVE: Activity.RECEIVE,
    OpKind.LOCAL_SEND: Activity.NVLINK_SEND,
    OpKind.LOCAL_RECEIVE: Activity.NVLINK_RECEIVE,
}


@dataclass(frozen=True, slots=True)
class Interval:
    """An operation of a rank while it was under way, in seconds of emulated time.

    A message is, for both of its ends, from the moment at which its sender posted it. ``peer`` is
    the rank at the other end, -1 for work of one rank alone. An operation that never was complete
    ends with the run and is not ``finished``.
    """

    activity: Activity
    begin: float
    end: float
    op: Op
    peer: int = -1
    finished: bool = True


def intervals_of(
    plan: Plan, timelines: Mapping[int, Timeline], *, end: float = -math.inf
) -> dict[int, list[Interval]]:
    """By rank, for those that have a timeline: what began, in the order of the plan.

    ``end`` is when the run was over, if that was later than the last thing that began or finished.
    """
    senders = match_messages(plan)
    end = max(end, *map(_last, timelines.values())) if timelines else end
    found = {}
    for rank, timeline in timelines.items():
        own = found[rank] = list[Interval]()
        for op in plan.ops[rank]:
            began, finish, peer = timeline.started[op.op_id], timeline.finished[op.op_id], -1
            if op.kind.sends:
                peer = plan.destination(op)
            elif (rank, op.op_id) in senders:
                peer, send = senders[rank, op.op_id]
                began = timelines[peer].started[send] if peer in timelines else math.nan
            if math.isnan(began):
                continue
            done = not math.isnan(finish)
            last = max(finish if done else end, began)
            own.append(Interval(_ACTIVITIES[op.kind], began, last, op, peer, done))
    return found


def _last(timeline: Timeline) -> float:
    """The last thing that a rank began or finished."""
    times = (*timeline.started, *timeline.finished)
    return max((time for time in times if not math.isnan(time)), default=0.0)
