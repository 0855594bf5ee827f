"""Disjoint paths over arrays: source ports by which a pair's QPs spread, then plain ECMP.

The ports tried, the order of the ways and the costs are those of ``controllers.schemes.disjoint``;
what is done at once is to try all ports, and to weigh all ways of a flow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from controllers.planning.fabric import IntArray, count_up
from controllers.planning.flows import FlowArrays
from controllers.planning.placement import Placement, RoutedFabric
from controllers.planning.routes import path_counts
from controllers.planning.schemes.base import register_planner
from controllers.planning.schemes.ecmp import EcmpPlanner
from controllers.schemes.disjoint import FIRST_PORT, LAST_PORT, PASSES, TRIES_PER_PATH

PATH_LIMIT = 256
"""Paths of a pair of NICs; 16 384 pairs that try 16 ports for each take some seconds."""

_ROWS = 1 << 19
"""Packets walked at a time, which bounds the memory."""


@dataclass(frozen=True)
class _Ways:
    """What a pair of NICs may choose from: per way its links that not all ways share (a row), and
    the source ports that lead over it, in the order in which they were tried."""

    links: IntArray
    ports: list[IntArray]


@register_planner
class DisjointPlanner(EcmpPlanner):
    """ECMP over source ports that the NICs choose while all links are up."""

    name = "disjoint"

    def place(self, routed: RoutedFabric, flows: FlowArrays) -> Placement:
        """Choose ports, then walk. Raises ValueError where there are too many paths to try."""
        whole = routed.with_live(np.ones(routed.fabric.links, dtype=bool))
        ports = _choose_ports(self, whole, flows)
        return super().place(routed, dataclasses.replace(flows, source_ports=ports))

    def try_ports(self, routed: RoutedFabric, probes: FlowArrays) -> IntArray:
        """The edges of each probe after its NIC."""
        paths: IntArray = super().place(routed, probes).paths[:, 1:]
        return paths


def _choose_ports(planner: DisjointPlanner, routed: RoutedFabric, flows: FlowArrays) -> IntArray:
    """The UDP source port of each flow."""
    ends = np.stack([flows.sources, flows.nic_ports, flows.destinations])
    _, first, inverse = np.unique(ends, axis=1, return_index=True, return_inverse=True)
    pair = np.argsort(np.argsort(first))[inverse.ravel()]  # in order of appearance
    position = count_up(pair)
    ways = list(_explore(planner, routed, flows, np.sort(first), most=int(position.max()) + 1))
    placed = _spread(routed.fabric.edges, ways, pair, position)
    ports = np.empty(len(flows), dtype=np.int64)
    turns: dict[tuple[int, int], int] = {}
    for flow in np.lexsort((position, pair)).tolist():
        key = int(pair[flow]), int(placed[flow])
        choices = ways[key[0]].ports[key[1]]
        ports[flow] = choices[turns.get(key, 0) % len(choices)]
        turns[key] = turns.get(key, 0) + 1
    return ports


def _explore(
    planner: DisjointPlanner,
    routed: RoutedFabric,
    flows: FlowArrays,
    firsts: IntArray,
    *,
    most: int,
) -> Iterator[_Ways]:
    """The ways of every pair, which is given by its first flow.

    Each has ports enough for ``most`` flows that are dealt out evenly over the ways.
    """
    fabric = routed.fabric
    leaves = fabric.nic_leaves[flows.sources[firsts], flows.nic_ports[firsts]]
    counts = path_counts(fabric, routed.groups)[leaves, fabric.nic_sets[flows.destinations[firsts]]]
    if counts.max() > PATH_LIMIT:
        raise ValueError(
            f"disjoint tries ports for at most {PATH_LIMIT} paths between two NICs; "
            f"{fabric.name} has {counts.max()}: allowed are two tiers"
        )
    tries = np.minimum(TRIES_PER_PATH * counts, LAST_PORT - FIRST_PORT + 1)
    chunks = np.split(np.arange(len(firsts)), _cuts(tries))
    for chunk in chunks:
        probes = _probes(flows, firsts[chunk], tries[chunk])
        paths = planner.try_ports(routed, probes)
        bounds = np.cumsum(tries[chunk])[:-1]
        for part, count in zip(np.split(paths, bounds), counts[chunk].tolist(), strict=True):
            yield _ways(part, count, need=-(-most // count))


def _cuts(tries: IntArray) -> IntArray:
    """Where to cut the pairs so that about ``_ROWS`` packets are walked at a time."""
    return np.flatnonzero(np.diff(np.cumsum(tries) // _ROWS)) + 1


def _probes(flows: FlowArrays, rows: IntArray, tries: IntArray) -> FlowArrays:
    """Every row of some flows with so many source ports."""
    columns = {
        field.name: np.repeat(getattr(flows, field.name)[rows], tries)
        for field in dataclasses.fields(flows)
    }
    starts = np.repeat(np.cumsum(tries) - tries, tries)
    columns["source_ports"] = FIRST_PORT + np.arange(len(starts)) - starts
    return FlowArrays(**columns)


def _ways(paths: IntArray, count: int, *, need: int) -> _Ways:
    """Group tried ports by path, stopping as soon as all ``count`` have ``need`` ports."""
    key = np.zeros(len(paths), dtype=np.int64)
    for column in paths.T:
        codes = np.unique(column, return_inverse=True)[1]
        key = np.unique(key * len(paths) + codes, return_inverse=True)[1]
    turn = count_up(key)
    enough = np.flatnonzero(turn == need - 1)
    if len(enough) == count:
        key = key[: enough.max() + 1]
    _, first = np.unique(key, return_index=True)
    order = np.sort(first)
    links = paths[order]
    varying = (links != links[0]).any(axis=0)
    return _Ways(
        links[:, varying], [FIRST_PORT + np.flatnonzero(key == key[index]) for index in order]
    )


def _spread(edges: int, ways: list[_Ways], pair: IntArray, position: IntArray) -> IntArray:
    """The way of each flow: first flows of all pairs first; then each may move again."""
    load = np.zeros(edges, dtype=np.int64)
    used = np.zeros(edges, dtype=np.int64)
    placed = np.full(len(pair), -1)
    by_pair = np.split(np.argsort(pair, kind="stable"), np.cumsum(np.bincount(pair))[:-1])
    for _ in range(1 + PASSES):
        moved = False
        for flow in np.lexsort((pair, position)).tolist():
            before, own = int(placed[flow]), ways[pair[flow]].links
            if before >= 0:
                load[own[before]] -= 1
            siblings = [int(placed[s]) for s in by_pair[pair[flow]] if s != flow and placed[s] >= 0]
            for way in siblings:
                used[own[way]] += 1
            best = _cheapest(load, used, own, before)
            for way in siblings:
                used[own[way]] = 0
            load[own[best]] += 1
            placed[flow] = best
            moved = moved or best != before
        if not moved:
            break
    return placed


def _cheapest(load: IntArray, used: IntArray, own: IntArray, before: int) -> int:
    """The first way of least cost: links shared within the pair, the busiest link, all links.

    A flow stays where it was if nothing is better.
    """
    if not own.shape[1]:
        return 0
    loads = load[own]
    cost = (used[own].sum(axis=1), loads.max(axis=1), loads.sum(axis=1))
    best = int(np.lexsort(cost[::-1])[0])
    if before >= 0 and all(values[before] == values[best] for values in cost):
        return before
    return best
