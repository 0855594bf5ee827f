"""Central traffic engineering over arrays: CSPF, one demand after the other.

The order of the demands, the order of the paths and the arithmetic are those of
``controllers.schemes.te``, so the two agree to the last bit. What is done at once is to examine all
paths of a demand.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from controllers.planning.fabric import ArrayFabric, FloatArray, IntArray
from controllers.planning.flows import FlowArrays
from controllers.planning.placement import NO_EDGE, Placement, RoutedFabric, arrive
from controllers.planning.routes import NO_GROUP
from controllers.planning.schemes.base import SchemePlanner, register_planner
from controllers.schemes.te import Granularity, TrafficEngineering


@dataclass(frozen=True)
class _Demands:
    """Flows that share a path: the NIC edge that sends, the prefix, what stands for the entry's
    address (the prefix or the NIC), bit/s. ``of_flow`` is the demand of each flow."""

    senders: IntArray
    sets: IntArray
    keys: IntArray
    rates: FloatArray
    of_flow: IntArray


@register_planner
class TrafficEngineeringPlanner(SchemePlanner):
    """Every flow takes the path of its demand; all demands are placed, so nothing falls back."""

    name = "te"
    scheme: TrafficEngineering

    def place(self, routed: RoutedFabric, flows: FlowArrays) -> Placement:
        """Place the traffic matrix, then the flows on it."""
        fabric = routed.fabric
        whole = self.scheme.parameters.granularity is Granularity.PREFIX
        demands = _demands(fabric, flows, whole=whole)
        paths = _Placing(routed).place(demands)[demands.of_flow]
        at = fabric.nic_leaves[flows.sources, flows.nic_ports]
        for column in paths.T:
            at = np.where(column == NO_EDGE, at, fabric.targets[column])
        lost = fabric.leaf_sets[at] != fabric.nic_sets[flows.destinations]
        first = fabric.from_nic(flows.sources, flows.nic_ports)
        return arrive(fabric, flows, [first, *paths.T], at, lost)


def _demands(fabric: ArrayFabric, flows: FlowArrays, *, whole: bool) -> _Demands:
    """What the NICs would send if only they limited it, as ``controllers.schemes.te.demands_of``
    gives it where no flow's size is known."""
    senders = fabric.from_nic(flows.sources, flows.nic_ports)
    offered = fabric.capacities[senders] / np.bincount(senders)[senders]
    received = np.bincount(flows.destinations, offered, minlength=fabric.nics)
    line_rates = fabric.nic_rates * fabric.nic_ports
    fits = line_rates[flows.destinations] / received[flows.destinations]
    rates = offered * np.minimum(1.0, fits)
    sets = fabric.nic_sets[flows.destinations]
    keys = sets if whole else flows.destinations
    _, first, inverse = np.unique(
        np.stack([senders, sets, keys]), axis=1, return_index=True, return_inverse=True
    )
    of_flow = np.argsort(np.argsort(first))[inverse.ravel()]  # in order of appearance
    first = np.sort(first)
    summed = np.bincount(of_flow, rates).astype(np.float64)
    return _Demands(senders[first], sets[first], keys[first], summed, of_flow)


class _Placing:
    """The load so far, and the entries that later demands have to agree with."""

    def __init__(self, routed: RoutedFabric) -> None:
        self._fabric = routed.fabric
        self._groups = routed.groups
        self._load = np.zeros(routed.fabric.edges)
        self._entries: dict[int, dict[int, int]] = defaultdict(dict)
        """Key -> edge that leads to a switch -> edge that the switch sends to."""
        self._fixed = np.full(routed.fabric.edges, NO_EDGE)
        """The entries of one key at a time, by edge."""

    def place(self, demands: _Demands) -> IntArray:
        """The edges of each demand between the leaves, NO_EDGE where it needs no more."""
        fabric = self._fabric
        hops = 2 * (int(fabric.tiers.max()) - 1)
        placed = np.full((len(demands.rates), hops), NO_EDGE)
        leaves = fabric.nic_leaves.ravel()[demands.senders - 2 * fabric.links]
        # Largest first, and in order of appearance among equals.
        for number in np.argsort(-demands.rates, kind="stable").tolist():
            leaf, towards = int(leaves[number]), int(demands.sets[number])
            if fabric.leaf_sets[leaf] != towards:
                key, demand = int(demands.keys[number]), float(demands.rates[number])
                placed[number] = self._best(leaf, towards, key, demand, hops)
        return placed

    def _best(self, leaf: int, towards: int, key: int, demand: float, hops: int) -> IntArray:
        """The path whose busiest edge is then least loaded; it gets the demand and entries."""
        entries = self._entries[key]
        into = np.fromiter(entries.keys(), np.int64, len(entries))
        self._fixed[into] = np.fromiter(entries.values(), np.int64, len(entries))
        paths = self._paths(leaf, towards, hops)
        self._fixed[into] = NO_EDGE
        if not paths.shape[1]:
            return np.full(hops, NO_EDGE)
        used = np.append(self._load, -demand)[paths] + demand  # an edge too many carries nothing
        use = used / np.append(self._fabric.capacities, 1.0)[paths]
        most, total = use.max(axis=0), use[0]
        for row in use[1:]:
            total = total + row
        best = np.flatnonzero(most == most.min())
        path: IntArray = paths[:, best[total[best].argmin()]]
        taken = path[path != NO_EDGE]
        self._load[taken] += demand
        for before, edge in zip(taken[:-1].tolist(), taken[1:].tolist(), strict=True):
            entries[before] = edge
        return path

    def _paths(self, leaf: int, towards: int, hops: int) -> IntArray:
        """All shortest paths that agree with the entries, one per column, in port order."""
        fabric, groups = self._fabric, self._groups
        rows: list[IntArray] = []
        at = np.array([leaf])
        while True:
            arrived = fabric.leaf_sets[at] == towards
            if arrived.all():
                break
            group = groups.table[at, towards].astype(np.int64)
            if (group == NO_GROUP).any():
                return np.zeros((hops, 0), dtype=np.int64)
            sizes = groups.sizes(group)
            parent = np.repeat(np.arange(len(at)), sizes)
            link = np.arange(len(parent)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            edge = groups.member(group[parent], link)
            if rows:
                before = rows[-1][parent]
                fixed = self._fixed[before]
                keep = (fixed == NO_EDGE) | (fixed == edge)
                parent, edge = parent[keep], edge[keep]
            rows = [row[parent] for row in rows] + [edge]
            at = fabric.targets[edge]
        rows += [np.full(len(at), NO_EDGE)] * (hops - len(rows))
        return np.stack(rows)
