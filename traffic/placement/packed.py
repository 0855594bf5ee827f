"""Packed: jobs fill the fabric one after another, in the order of its ranks."""

from __future__ import annotations

from collections.abc import Sequence

from traffic.placement.base import Job, Order, Placement, RankSlot, register_placement


@register_placement
class Packed(Placement):
    """Ranks in order on slots in order; what a scheduler gives on an empty cluster."""

    name = "packed"

    def place(self, jobs: Sequence[Job], slots: Sequence[RankSlot]) -> list[Order]:
        """Take the next free slots for each job."""
        free = iter(slots)
        return [tuple(next(free).slot for _ in range(job.size)) for job in jobs]
