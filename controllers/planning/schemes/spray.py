"""Packet spraying over arrays: every leaf deals packets out over its uplinks one by one.

A connection is planned as ``PACKETS`` packets that leave one after the other; more would only
come nearer to an even share.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from controllers.labels import SLOTS
from controllers.planning.fabric import IntArray, count_up
from controllers.planning.flows import FlowArrays
from controllers.planning.placement import Placement, RoutedFabric
from controllers.planning.schemes.base import register_planner
from controllers.planning.schemes.labelled import LabelledPlanner

PACKETS = 64

_FIRST_PACKET = 0xFFFF
"""Bits of a leaf's seed that its count of packets begins with, as in the hash engine."""


@register_planner
class SprayPlanner(LabelledPlanner):
    """As the hash engine in mode ``spray``: packet n takes uplink n mod their number."""

    name = "spray"

    def place(self, routed: RoutedFabric, flows: FlowArrays) -> Placement:
        """Walk the packets of all flows."""
        qps = max(1, int(np.bincount(flows.connections).max()))
        return super().place(routed, _packets(flows, -(-PACKETS // qps)))

    def slots(self, routed: RoutedFabric, flows: FlowArrays) -> tuple[IntArray, IntArray]:
        """A slot of the packet's uplink, and the number of rounds before it."""
        leaves = routed.fabric.nic_leaves[flows.sources, flows.nic_ports]
        number = count_up(leaves) + (self.seeds(leaves)[0] & _FIRST_PACKET)
        first = np.zeros(len(flows), dtype=np.int64)
        turn = np.zeros(len(flows), dtype=np.int64)
        for leaf in np.unique(leaves).tolist():
            uplinks = routed.tables.up_edges[leaf]
            usable = np.flatnonzero(routed.live[uplinks])
            if usable.size:
                at = np.flatnonzero(leaves == leaf)
                turn[at] = number[at] // len(usable)
                member = usable[number[at] % len(usable)]
                slots = (SLOTS - 1 - member) // len(uplinks) + 1
                first[at] = member + len(uplinks) * (turn[at] % slots)
        return first, turn % SLOTS


def _packets(flows: FlowArrays, count: int) -> FlowArrays:
    """Every flow as ``count`` flows of equal shares."""
    columns = {
        field.name: np.repeat(getattr(flows, field.name), count)
        for field in dataclasses.fields(flows)
    }
    columns["rates"] = columns["rates"] / count
    return FlowArrays(**columns)
