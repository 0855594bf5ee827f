"""Where flows go: walking all of them through the fabric together, and the load that they make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from controllers.planning.fabric import ArrayFabric, BoolArray, FloatArray, IntArray
from controllers.planning.flows import FlowArrays
from controllers.planning.members import MemberTables
from controllers.planning.routes import NO_GROUP, Groups, next_hops

NO_EDGE = -1


@dataclass(frozen=True)
class RoutedFabric:
    """A fabric with its next hops: ``groups`` over the links that are up, ``full`` over all."""

    fabric: ArrayFabric
    groups: Groups
    full: Groups
    live: BoolArray
    """Which links between switches are up."""

    @classmethod
    def of(cls, fabric: ArrayFabric) -> RoutedFabric:
        """Compute the next hops with all links up."""
        full = next_hops(fabric)
        return cls(fabric, full, full, np.ones(fabric.links, dtype=bool))

    def with_live(self, live: BoolArray) -> RoutedFabric:
        """The same fabric with only these links up."""
        if live.all():
            return self if self.healthy else RoutedFabric(self.fabric, self.full, self.full, live)
        return RoutedFabric(self.fabric, next_hops(self.fabric, live), self.full, live)

    @property
    def healthy(self) -> bool:
        """Whether all links are up."""
        return self.groups is self.full

    @cached_property
    def tables(self) -> MemberTables:
        """The switches' member tables."""
        return MemberTables(self.fabric, self.groups, self.full)


@dataclass(frozen=True)
class Hop:
    """Flows (by row of FlowArrays) at a switch each, and the group of edges each may take."""

    flows: IntArray
    switches: IntArray
    groups: IntArray


@dataclass(frozen=True)
class Placement:
    """The path of every flow: ``paths`` has a row of edges per flow, NO_EDGE where it has no more.

    ``lost`` are flows that no path leads to their destination; they load nothing.
    """

    fabric: ArrayFabric
    flows: FlowArrays
    paths: IntArray
    lost: BoolArray

    @cached_property
    def loads(self) -> FloatArray:
        """The bit/s that each edge is offered."""
        total = np.zeros(self.fabric.edges)
        for column in self.paths.T:
            on = column != NO_EDGE
            total += np.bincount(column[on], self.flows.rates[on], minlength=len(total))
        return total

    def worst(self, values: FloatArray) -> FloatArray:
        """By connection: the largest of ``values``, which are by edge, on any of its paths."""
        padded = np.append(values, 0.0)  # NO_EDGE is the last
        most = np.zeros(int(self.flows.connections.max()) + 1)
        np.maximum.at(most, self.flows.connections, padded[self.paths].max(axis=1))
        return most


def walk(routed: RoutedFabric, flows: FlowArrays, choose: Callable[[Hop], IntArray]) -> Placement:
    """Take every flow from its NIC to its destination, ``choose`` giving the edge of each hop."""
    fabric, groups = routed.fabric, routed.groups
    first = fabric.from_nic(flows.sources, flows.nic_ports)
    columns = [first]
    at = fabric.nic_leaves[flows.sources, flows.nic_ports]
    sets = fabric.nic_sets[flows.destinations]
    lost = np.zeros(len(flows), dtype=bool)
    # Up/down paths end: a flow that descends is nearer to its destination with every hop.
    while (moving := np.flatnonzero(~lost & (fabric.leaf_sets[at] != sets))).size:
        group = groups.table[at[moving], sets[moving]].astype(np.int64)
        lost[moving[group == NO_GROUP]] = True
        known = group != NO_GROUP
        moving, group = moving[known], group[known]
        if not moving.size:
            break
        column = np.full(len(flows), NO_EDGE)
        column[moving] = choose(Hop(moving, at[moving], group))
        at[moving] = fabric.targets[column[moving]]
        columns.append(column)
    return arrive(fabric, flows, columns, at, lost)


def arrive(
    fabric: ArrayFabric, flows: FlowArrays, columns: list[IntArray], at: IntArray, lost: BoolArray
) -> Placement:
    """The placement of flows that have come over ``columns`` of edges to their last leaf ``at``."""
    ports = (fabric.nic_leaves[flows.destinations] == at[:, None]).argmax(axis=1)
    paths = np.stack([*columns, fabric.to_nic(flows.destinations, ports)], axis=1)
    paths[lost] = NO_EDGE
    return Placement(fabric, flows, paths, lost)


def possible_edges(routed: RoutedFabric, flows: FlowArrays) -> BoolArray:
    """Which edges between switches lie on an equal-cost path of some flow, by edge."""
    fabric, groups = routed.fabric, routed.groups
    found = np.zeros(fabric.edges, dtype=bool)
    leaves = fabric.nic_leaves[flows.sources, flows.nic_ports]
    at = _pairs(fabric, leaves, fabric.nic_sets[flows.destinations])
    while at.size:
        switches, sets = np.divmod(at, fabric.sets)
        group = groups.table[switches, sets].astype(np.int64)
        ahead = (fabric.leaf_sets[switches] != sets) & (group != NO_GROUP)
        group, sets = group[ahead], sets[ahead]
        sizes = groups.sizes(group)
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        edges = groups.members[np.repeat(groups.offsets[group], sizes) + within]
        found[edges] = True
        at = _pairs(fabric, fabric.targets[edges], np.repeat(sets, sizes))
    return found


def _pairs(fabric: ArrayFabric, switches: IntArray, sets: IntArray) -> IntArray:
    """The different pairs of a switch and the prefix that packets there are on their way to."""
    reached = np.zeros(fabric.switches * fabric.sets, dtype=bool)
    reached[switches * fabric.sets + sets] = True
    return np.flatnonzero(reached)
