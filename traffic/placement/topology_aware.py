"""Topology-aware: as little traffic as possible between groups.

A heuristic, as the problem (graph partitioning) is NP-hard: jobs take whole groups greedily, ranks
join the group that they talk to most, then exchanges of two ranks improve the cut until none
helps. The same input gives the same result.
"""

from __future__ import annotations

from collections.abc import Sequence

from traffic.placement.base import Job, Order, Placement, RankSlot, register_placement
from traffic.placement.cut import total_cut
from traffic.placement.packed import Packed

REFINEMENT_LIMIT = 512
"""Slots up to which ranks are exchanged; the effort grows with their square."""

_FREE = -1


@register_placement
class TopologyAware(Placement):
    """Fewest groups first, then exchanges; never worse than packed."""

    name = "topology-aware"

    def place(self, jobs: Sequence[Job], slots: Sequence[RankSlot]) -> list[Order]:
        """Improve several simple placements and take the best one."""
        greedy = _greedy(jobs, slots)
        starts = [greedy, _grown(jobs, greedy, slots), Packed().place(jobs, slots)]
        if len(slots) <= REFINEMENT_LIMIT:
            starts += [_Exchange(jobs, slots, start).improve() for start in list(starts)]
        best = min(starts, key=lambda orders: total_cut(jobs, orders, slots))
        return _by_server(best, slots)


def _greedy(jobs: Sequence[Job], slots: Sequence[RankSlot]) -> list[Order]:
    """The largest job first, into the tightest group that holds it, else into the emptiest ones."""
    free: dict[str, list[int]] = {}
    for slot in slots:
        free.setdefault(slot.group, []).append(slot.slot)
    orders: dict[int, Order] = {}
    for index in sorted(range(len(jobs)), key=lambda i: -jobs[i].size):
        order: list[int] = []
        while len(order) < jobs[index].size:
            missing = jobs[index].size - len(order)
            fitting = [group for group in free if len(free[group]) >= missing]
            if fitting:
                group = min(fitting, key=lambda g: len(free[g]))
            else:
                group = max(free, key=lambda g: len(free[g]))
            order += free[group][:missing]
            del free[group][:missing]
        orders[index] = tuple(order)
    return [orders[index] for index in range(len(jobs))]


def _grown(jobs: Sequence[Job], orders: Sequence[Order], slots: Sequence[RankSlot]) -> list[Order]:
    """The jobs on the same slots, each group filled from one rank along the heaviest traffic."""
    group = {slot.slot: slot.group for slot in slots}
    grown = []
    for job, order in zip(jobs, orders, strict=True):
        places: dict[str, list[int]] = {}
        for slot in order:
            places.setdefault(group[slot], []).append(slot)
        weights: list[dict[int, float]] = [{} for _ in range(job.size)]
        for a, b, weight in job.edges():
            weights[a][b] = weights[a].get(b, 0.0) + weight
            weights[b][a] = weights[b].get(a, 0.0) + weight
        slot_of: dict[int, int] = {}
        for free in places.values():
            attraction = {rank: 0.0 for rank in range(job.size) if rank not in slot_of}
            for slot in free:
                rank = min(attraction, key=lambda r: (-attraction[r], r))
                slot_of[rank] = slot
                del attraction[rank]
                for other, weight in weights[rank].items():
                    if other in attraction:
                        attraction[other] += weight
        grown.append(tuple(slot_of[rank] for rank in range(job.size)))
    return grown


class _Exchange:
    """Exchanges the occupants of two slots of different groups while that lessens the cut."""

    def __init__(
        self, jobs: Sequence[Job], slots: Sequence[RankSlot], start: Sequence[Order]
    ) -> None:
        position = {slot.slot: i for i, slot in enumerate(slots)}
        groups = {name: i for i, name in enumerate(dict.fromkeys(s.group for s in slots))}
        self._slots = slots
        self._sizes = [job.size for job in jobs]
        self._group = [groups[slot.group] for slot in slots]
        self._at = [position[slot] for order in start for slot in order]
        """Vertex, numbered through all jobs' ranks -> position of its slot."""
        self._occupant = [_FREE] * len(slots)
        for vertex, place in enumerate(self._at):
            self._occupant[place] = vertex
        self._neighbours: list[dict[int, float]] = [{} for _ in self._at]
        first = 0
        for job in jobs:
            for a, b, weight in job.edges():
                for one, other in ((first + a, first + b), (first + b, first + a)):
                    known = self._neighbours[one].get(other, 0.0)
                    self._neighbours[one][other] = known + weight
            first += job.size

    def improve(self) -> list[Order]:
        """Orders after which no exchange of two slots lessens the cut."""
        improved = True
        while improved:
            improved = False
            for vertex in range(len(self._at)):
                place, gain = self._best_exchange(vertex)
                if gain > 1e-9 * (1 + sum(self._neighbours[vertex].values())):
                    self._swap(self._at[vertex], place)
                    improved = True
        orders, first = [], 0
        for size in self._sizes:
            orders.append(tuple(self._slots[p].slot for p in self._at[first : first + size]))
            first += size
        return orders

    def _best_exchange(self, vertex: int) -> tuple[int, float]:
        """The slot whose exchange with the vertex's own gains most, and the gain."""
        own = self._group[self._at[vertex]]
        inside = self._weights(vertex)
        best, best_gain = self._at[vertex], 0.0
        for place, group in enumerate(self._group):
            if group == own:
                continue
            gain = inside.get(group, 0.0) - inside.get(own, 0.0)
            other = self._occupant[place]
            if other != _FREE:
                weights = self._weights(other)
                gain += weights.get(own, 0.0) - weights.get(group, 0.0)
                gain -= 2 * self._neighbours[vertex].get(other, 0.0)
            if gain > best_gain:
                best, best_gain = place, gain
        return best, best_gain

    def _weights(self, vertex: int) -> dict[int, float]:
        """Weight of a vertex's traffic by the group of its other end."""
        weights: dict[int, float] = {}
        for other, weight in self._neighbours[vertex].items():
            group = self._group[self._at[other]]
            weights[group] = weights.get(group, 0.0) + weight
        return weights

    def _swap(self, one: int, other: int) -> None:
        self._occupant[one], self._occupant[other] = self._occupant[other], self._occupant[one]
        for place in (one, other):
            if self._occupant[place] != _FREE:
                self._at[self._occupant[place]] = place


def _by_server(orders: Sequence[Order], slots: Sequence[RankSlot]) -> list[Order]:
    """The same groups for every rank, but within a group servers fill up in rank order."""
    group = {slot.slot: slot.group for slot in slots}
    free: dict[str, list[int]] = {}
    for slot in slots:
        free.setdefault(slot.group, []).append(slot.slot)
    return [tuple(free[group[slot]].pop(0) for slot in order) for order in orders]
