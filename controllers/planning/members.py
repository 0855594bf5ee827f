"""Member tables over arrays: among which edges a switch chooses if all links were up, and which
edge each of the 64 slots of a label leads to; the rules of ``RoutingView.members`` and
``controllers.labels.deal_slots``.
"""

from __future__ import annotations

import numpy as np

from controllers.labels import SLOTS, deal_slots
from controllers.planning.fabric import ArrayFabric, IntArray
from controllers.planning.routes import NO_GROUP, Groups


class MemberTables:
    """Built as they are asked for; a group belongs to one switch."""

    def __init__(self, fabric: ArrayFabric, groups: Groups, full: Groups) -> None:
        self._fabric = fabric
        self._groups = groups
        self._full = full
        self._found: dict[tuple[int, int], int] = {}
        self._members: list[IntArray] = []
        self._slots = np.zeros((0, SLOTS), dtype=np.int64)
        self.up_edges = _up_edges(fabric)
        """By switch, all edges to the tiers above, whether up or down."""

    def rows(self, switches: IntArray, groups: IntArray, sets: IntArray) -> IntArray:
        """The number of the member table of each (switch, its group, destination prefix)."""
        climbing = self._groups.member(groups, np.zeros_like(groups)) < self._fabric.links
        healthy = np.where(climbing, NO_GROUP, self._full.table[switches, sets])
        keys = np.stack([groups, healthy, switches], axis=1)
        distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
        numbers = [self._row(*key) for key in distinct.tolist()]
        return np.array(numbers, dtype=np.int64)[inverse.ravel()]

    def members(self, row: int) -> IntArray:
        """The edges of a member table while all links are up."""
        return self._members[row]

    def edges(self, rows: IntArray, slots: IntArray) -> IntArray:
        """The edge of a slot of each table."""
        found: IntArray = self._slots[rows, slots]
        return found

    def _row(self, group: int, healthy: int, switch: int) -> int:
        key = group, healthy
        if key not in self._found:
            live = self._groups.edges(group)
            if live[0] < self._fabric.links:
                members = self.up_edges[switch]
            else:
                members = live if healthy == NO_GROUP else self._full.edges(healthy)
            self._found[key] = len(self._members)
            self._members.append(members)
            dealt = deal_slots(members.tolist(), live.tolist())
            self._slots = np.vstack([self._slots, dealt])
        return self._found[key]


def _up_edges(fabric: ArrayFabric) -> list[IntArray]:
    order = np.argsort(fabric.lower, kind="stable")
    bounds = np.searchsorted(fabric.lower[order], np.arange(1, fabric.switches))
    return np.split(order, bounds)
