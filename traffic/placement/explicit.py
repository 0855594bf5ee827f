"""Explicit: the user names the slot of every rank."""

from __future__ import annotations

from collections.abc import Sequence

from traffic.placement.base import (
    Job,
    Order,
    Placement,
    PlacementError,
    RankSlot,
    register_placement,
)


@register_placement
class Explicit(Placement):
    """Uses ``Job.slots`` as they are, after checking them."""

    name = "explicit"

    def place(self, jobs: Sequence[Job], slots: Sequence[RankSlot]) -> list[Order]:
        """The jobs' own slots. Raises PlacementError for a wrong number, unknown or used slot."""
        known = {slot.slot for slot in slots}
        used: dict[int, str] = {}
        for job in jobs:
            if len(job.slots) != job.size:
                raise PlacementError(
                    f"job {job.name}: {len(job.slots)} slots for {job.size} ranks; one each"
                )
            for slot in job.slots:
                if slot not in known:
                    raise PlacementError(
                        f"job {job.name}: slot {slot} is none of the {len(known)} free GPUs"
                    )
                if slot in used:
                    raise PlacementError(
                        f"job {job.name}: slot {slot} already belongs to job {used[slot]}"
                    )
                used[slot] = job.name
        return [tuple(job.slots) for job in jobs]
