"""Up/down next hops of a whole fabric as arrays; the rules of ``controllers.routes``.

Every switch has a group of equal-cost edges per destination prefix; equal groups of a switch are
kept once. What a hop costs is one look-up for all flows together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from controllers.planning.fabric import ArrayFabric, BoolArray, IntArray

NO_GROUP = -1
"""The switch cannot reach the prefix, or has its NICs below itself."""

_FAR = 100
"""More hops than any path has."""


@dataclass(frozen=True)
class Groups:
    """``table`` is the group of each switch (row) towards each prefix (column).

    Group g has the edges ``members[offsets[g] : offsets[g + 1]]``, in port order.
    """

    table: npt.NDArray[np.int32]
    offsets: IntArray
    members: IntArray

    def sizes(self, groups: IntArray) -> IntArray:
        """Number of edges of each group."""
        sizes: IntArray = self.offsets[groups + 1] - self.offsets[groups]
        return sizes

    def edges(self, group: int) -> IntArray:
        """The edges of one group."""
        return self.members[self.offsets[group] : self.offsets[group + 1]]

    def member(self, groups: IntArray, links: IntArray) -> IntArray:
        """The edge that is link number ``links`` of each group."""
        edges: IntArray = self.members[self.offsets[groups] + links]
        return edges


def next_hops(fabric: ArrayFabric, live: BoolArray | None = None) -> Groups:
    """Equal-cost next hops of every switch towards every prefix; ``live`` is by link."""
    builder = _GroupBuilder(fabric, np.ones(fabric.links, dtype=bool) if live is None else live)
    order = np.argsort(fabric.tiers, kind="stable").tolist()
    # Bottom up: switches that have the prefix below them. Then top down: all others climb.
    for switch in order:
        builder.settle(switch, builder.down[switch])
    for switch in reversed(order):
        builder.settle(switch, builder.up[switch])
    return builder.groups()


class _GroupBuilder:
    """Distances to every prefix, and the groups found so far."""

    def __init__(self, fabric: ArrayFabric, live: BoolArray) -> None:
        links = np.flatnonzero(live)
        self.up = _by_switch(fabric.lower[links], links, fabric.switches)
        self.down = _by_switch(fabric.upper[links], links + fabric.links, fabric.switches)
        self._targets = fabric.targets
        self._distance = np.full((fabric.switches, fabric.sets), _FAR, dtype=np.int8)
        leaves = np.flatnonzero(fabric.leaf_sets >= 0)
        self._distance[leaves, fabric.leaf_sets[leaves]] = 0
        self._table = np.full((fabric.switches, fabric.sets), NO_GROUP, dtype=np.int32)
        self._members: list[IntArray] = []

    def settle(self, switch: int, edges: IntArray) -> None:
        """Give a switch groups over these edges for the prefixes that it has none for yet."""
        if not len(edges):
            return
        distances = self._distance[self._targets[edges]]
        nearest = distances.min(axis=0)
        wanted = np.flatnonzero((self._distance[switch] == _FAR) & (nearest < _FAR))
        if not len(wanted):
            return
        chosen = distances[:, wanted] == nearest[wanted]
        packed = np.ascontiguousarray(np.packbits(chosen, axis=0).T)
        _, first, inverse = np.unique(
            packed.view(f"V{packed.shape[1]}")[:, 0], return_index=True, return_inverse=True
        )
        self._table[switch, wanted] = inverse + len(self._members)
        self._members += [edges[chosen[:, column]] for column in first.tolist()]
        self._distance[switch, wanted] = nearest[wanted] + 1

    def groups(self) -> Groups:
        """Everything found."""
        sizes = [len(members) for members in self._members]
        return Groups(
            self._table,
            np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]),
            np.concatenate([np.zeros(0, dtype=np.int64), *self._members]),
        )


def _by_switch(switches: IntArray, edges: IntArray, count: int) -> list[IntArray]:
    """The edges of each switch, in order."""
    order = np.argsort(switches, kind="stable")
    bounds = np.searchsorted(switches[order], np.arange(1, count))
    return np.split(edges[order], bounds)


def path_counts(fabric: ArrayFabric, groups: Groups) -> IntArray:
    """Number of equal-cost paths from each switch (row) to each prefix (column); at least 1."""
    counts = np.ones(groups.table.shape, dtype=np.int64)
    order = np.argsort(fabric.tiers, kind="stable").tolist()
    # Who descends counts on lower switches, who climbs on upper ones.
    for climbing, switches in ((False, order), (True, order[::-1])):
        for switch in switches:
            row = groups.table[switch]
            for group in np.unique(row[row != NO_GROUP]).tolist():
                edges = groups.edges(group)
                if (edges[0] < fabric.links) == climbing:
                    sets = np.flatnonzero(row == group)
                    counts[switch, sets] = counts[fabric.targets[edges]][:, sets].sum(axis=0)
    return counts
