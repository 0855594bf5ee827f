"""How much of a placed job's traffic leaves its groups."""

from __future__ import annotations

from collections.abc import Sequence

from traffic.placement.base import Job, Order, RankSlot


def cut(job: Job, order: Order, slots: Sequence[RankSlot]) -> float:
    """Weight of the job's traffic between ranks in different groups."""
    group = {slot.slot: slot.group for slot in slots}
    return sum(w for a, b, w in job.edges() if group[order[a]] != group[order[b]])


def total_cut(jobs: Sequence[Job], orders: Sequence[Order], slots: Sequence[RankSlot]) -> float:
    """The cuts of all jobs together."""
    return sum(cut(job, order, slots) for job, order in zip(jobs, orders, strict=True))


def groups_spanned(order: Order, slots: Sequence[RankSlot]) -> int:
    """Number of groups that a job has ranks in."""
    group = {slot.slot: slot.group for slot in slots}
    return len({group[slot] for slot in order})
