"""Schemes with labels over arrays: two slots per packet choose the whole path.

Tier-2 switches choose by the second slot, all others by the first, as in
``controllers.schemes.labelled``.
"""

from __future__ import annotations

import abc

import numpy as np

from controllers.planning.fabric import IntArray
from controllers.planning.flows import FlowArrays
from controllers.planning.placement import Hop, RoutedFabric
from controllers.planning.schemes.base import HopByHopPlanner
from controllers.schemes.labelled import SECOND_SLOT_TIER, LabelledScheme


class LabelledPlanner(HopByHopPlanner):
    """Subclasses say which slots a flow gets."""

    scheme: LabelledScheme

    def prepare(self, routed: RoutedFabric, flows: FlowArrays) -> None:
        """Give every flow its two slots."""
        self.labels = self.slots(routed, flows)

    @abc.abstractmethod
    def slots(self, routed: RoutedFabric, flows: FlowArrays) -> tuple[IntArray, IntArray]:
        """The first and the second slot of each flow."""

    def seeds(self, leaves: IntArray) -> tuple[IntArray, IntArray]:
        """The two seeds of each leaf; a switch's datapath id is its number + 1."""
        distinct, inverse = np.unique(leaves, return_inverse=True)
        pairs = np.array([self.scheme.seeds(leaf + 1) for leaf in distinct.tolist()])
        return pairs[inverse, 0], pairs[inverse, 1]

    def choose(self, routed: RoutedFabric, flows: FlowArrays, hop: Hop) -> IntArray:
        """Look the slot that belongs to the switch's tier up in its member table."""
        sets = routed.fabric.nic_sets[flows.destinations[hop.flows]]
        edges = routed.groups.member(hop.groups, np.zeros_like(hop.groups))
        several = np.flatnonzero(routed.groups.sizes(hop.groups) > 1)
        if several.size:
            switches = hop.switches[several]
            rows = routed.tables.rows(switches, hop.groups[several], sets[several])
            second = (routed.fabric.tiers[switches] == SECOND_SLOT_TIER).astype(np.int64)
            slots = np.stack(self.labels)[second, hop.flows[several]]
            edges[several] = routed.tables.edges(rows, slots)
        return edges
