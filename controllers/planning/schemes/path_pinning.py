"""Path pinning over arrays: the destination's downlink index on its leaf, or its leaf, decides."""

from __future__ import annotations

import numpy as np

from controllers.planning.fabric import IntArray, count_up
from controllers.planning.flows import FlowArrays
from controllers.planning.placement import Hop, RoutedFabric
from controllers.planning.schemes.base import HopByHopPlanner, register_planner
from controllers.planning.schemes.static import choices_before, climbing


@register_planner
class PathPinningPlanner(HopByHopPlanner):
    """Slice mod K, at higher tiers leaf mod K; another live edge only if that one is down."""

    name = "path-pinning"

    def prepare(self, routed: RoutedFabric, flows: FlowArrays) -> None:
        """Number the NICs of every leaf; a NIC with two ports counts on its first leaf."""
        fabric = routed.fabric
        self._slices = count_up(fabric.nic_leaves[:, 0])
        below = choices_before(fabric)[1]
        # What tier 3 and above have to divide a leaf's number by.
        self._divisors = below // below[min(2, len(below) - 1)]

    def choose(self, routed: RoutedFabric, flows: FlowArrays, hop: Hop) -> IntArray:
        """Pinned among the members that there would be if all links were up."""
        groups = routed.groups
        destinations = flows.destinations[hop.flows]
        by_tier = np.maximum(
            routed.fabric.tiers[hop.switches] - np.where(climbing(routed, hop), 0, 2), 0
        )
        leaves = routed.fabric.nic_sets[destinations] // np.maximum(self._divisors[by_tier], 1)
        digits = np.where(by_tier > 1, leaves, self._slices[destinations])
        sizes = groups.sizes(hop.groups)
        edges = groups.member(hop.groups, digits % sizes)
        if not routed.healthy:
            several = np.flatnonzero(sizes > 1)
            edges[several] = _pinned(routed, flows, hop, several, digits[several], edges[several])
        return edges


def _pinned(
    routed: RoutedFabric,
    flows: FlowArrays,
    hop: Hop,
    which: IntArray,
    digits: IntArray,
    otherwise: IntArray,
) -> IntArray:
    """The pinned edge of some of a hop's flows, or ``otherwise`` where it is not live."""
    groups = hop.groups[which]
    sets = routed.fabric.nic_sets[flows.destinations[hop.flows[which]]]
    rows = routed.tables.rows(hop.switches[which], groups, sets)
    edges = otherwise.copy()
    distinct, inverse = np.unique(np.stack([rows, groups]), axis=1, return_inverse=True)
    for number, (row, group) in enumerate(distinct.T.tolist()):
        at = np.flatnonzero(inverse.ravel() == number)
        members = routed.tables.members(row)
        wanted = members[digits[at] % len(members)]
        live = np.isin(wanted, routed.groups.edges(group))
        edges[at[live]] = wanted[live]
    return edges
