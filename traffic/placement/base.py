"""Jobs, the GPUs they may run on, and the interface of placement strategies."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from testbed.topology.base import Topology


class PlacementError(ValueError):
    """The jobs do not fit; the message names the job, the value and what is allowed."""


@dataclass(frozen=True, slots=True)
class RankSlot:
    """A GPU of the fabric that a job may use.

    ``slot`` is its rank in the fabric, ``local_rank`` its place in its server, ``group`` the
    segment, zone or pod whose traffic to other groups has to cross the upper tiers.
    """

    slot: int
    server: str
    local_rank: int
    group: str


@dataclass(frozen=True)
class Job:
    """A job of ``size`` ranks.

    ``slots`` names the slot of every rank, for explicit placement only. ``traffic`` gives the
    bytes, or any weight, between pairs of the job's ranks; empty means a ring in rank order, what
    a ring all-reduce sends.
    """

    name: str
    size: int
    slots: tuple[int, ...] = ()
    traffic: Mapping[tuple[int, int], float] = field(default_factory=dict)

    def edges(self) -> list[tuple[int, int, float]]:
        """Pairs of ranks that talk, with their weight."""
        if self.traffic:
            return [(a, b, weight) for (a, b), weight in self.traffic.items() if a != b]
        if self.size < 2:
            return []
        return [(rank, (rank + 1) % self.size, 1.0) for rank in range(self.size)]


Order = tuple[int, ...]
"""Slot of every rank of a job."""


class Placement(abc.ABC):
    """Decides which job rank runs on which GPU; registered by ``name``, one file each."""

    name: ClassVar[str]

    @abc.abstractmethod
    def place(self, jobs: Sequence[Job], slots: Sequence[RankSlot]) -> list[Order]:
        """The slots of every job's ranks, in the order of ``jobs``.

        The arguments have been checked by ``place`` below. Raises PlacementError.
        """


_placements: dict[str, type[Placement]] = {}


def register_placement(cls: type[Placement]) -> type[Placement]:
    """Class decorator: make a placement strategy available under its name."""
    if cls.name in _placements:
        raise ValueError(f"placement {cls.name!r} is registered twice")
    _placements[cls.name] = cls
    return cls


def placement_names() -> list[str]:
    """Names of all strategies, sorted."""
    return sorted(_placements)


def create_placement(name: str) -> Placement:
    """A strategy by name. Raises ValueError that lists the allowed names."""
    if name not in _placements:
        raise ValueError(f"unknown placement {name!r}; allowed: {', '.join(placement_names())}")
    return _placements[name]()


def place(name: str, jobs: Sequence[Job], slots: Sequence[RankSlot]) -> list[Order]:
    """Place several jobs at once; no two ranks share a slot.

    Raises PlacementError when they do not fit, ValueError for an unknown strategy.
    """
    strategy = create_placement(name)
    _check(jobs, slots)
    orders = strategy.place(jobs, slots)
    used = [slot for order in orders for slot in order]
    if len(set(used)) != len(used) or [len(o) for o in orders] != [j.size for j in jobs]:
        raise AssertionError(f"placement {name!r} gave {orders}")
    return orders


def rank_slots(topology: Topology) -> tuple[RankSlot, ...]:
    """The GPUs of a fabric. A GPU's group is its leaf's, or the leaf itself if that has none."""
    found = []
    for rank in topology.gpu_ranks:
        leaf = topology.nodes[topology.leaf_of(rank.rank)]
        found.append(
            RankSlot(rank.rank, rank.server, rank.local_rank, leaf.group or leaf.name)
        )  # fmt: skip
    return tuple(found)


def _check(jobs: Sequence[Job], slots: Sequence[RankSlot]) -> None:
    numbers = [slot.slot for slot in slots]
    if len(set(numbers)) != len(numbers):
        twice = next(n for n in numbers if numbers.count(n) > 1)
        raise PlacementError(f"slots: slot {twice} is there twice")
    names = [job.name for job in jobs]
    for job in jobs:
        if names.count(job.name) > 1:
            raise PlacementError(f"job {job.name}: two jobs have this name")
        if job.size < 1:
            raise PlacementError(f"job {job.name}: size {job.size}; at least 1 rank")
        for pair in job.traffic:
            if not all(0 <= rank < job.size for rank in pair):
                raise PlacementError(
                    f"job {job.name}: traffic between ranks {pair[0]} and {pair[1]}; "
                    f"allowed: 0 to {job.size - 1}"
                )
    wanted = sum(job.size for job in jobs)
    if wanted > len(slots):
        raise PlacementError(
            f"jobs of {wanted} ranks in total; the fabric has {len(slots)} free GPUs"
        )
