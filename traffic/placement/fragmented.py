"""Fragmented: a job's servers lie scattered over the groups, as on a cluster long in use."""

from __future__ import annotations

from collections.abc import Sequence

from traffic.placement.base import Job, Order, Placement, RankSlot, register_placement


@register_placement
class Fragmented(Placement):
    """Deals whole servers round-robin over the groups, so that neighbours lie in different ones.

    The GPUs of a server stay together: schedulers hand out servers (Meta's "fragmented racks",
    SIGCOMM'24, section 5.1).
    """

    name = "fragmented"

    def place(self, jobs: Sequence[Job], slots: Sequence[RankSlot]) -> list[Order]:
        """Take the first server of every group, then every second, and so on."""
        servers: dict[str, dict[str, list[int]]] = {}
        for slot in slots:
            servers.setdefault(slot.group, {}).setdefault(slot.server, []).append(slot.slot)
        columns = [list(group.values()) for group in servers.values()]
        depth = max((len(column) for column in columns), default=0)
        dealt = (
            slot
            for row in range(depth)
            for column in columns
            if row < len(column)
            for slot in column[row]
        )
        return [tuple(next(dealt) for _ in range(job.size)) for job in jobs]
