"""Jobs of a scenario on the GPUs of its topology, and how much of their traffic leaves its group.

Pure. What is said of groups is said of pods, segments or AI zones where the topology has any, else
of leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from testbed.schema import Placement
from testbed.topology import Topology
from traffic.placement import Job, RankSlot, cut, groups_spanned, place, rank_slots
from traffic.placement.base import Order
from traffic.plan import OpKind, Plan
from traffic.servers import RankEnvironment, rank_environments

TRAFFIC_AWARE = "topology-aware"
"""The strategy that looks at the traffic of the jobs, which must be planned to know it."""


@dataclass(frozen=True)
class PlacedJob:
    """A job on the fabric: the GPU of each of its ranks, and what its processes are told.

    ``crossing_bytes`` of its ``traffic_bytes`` are between different groups, of which it has GPUs
    in ``groups``.
    """

    name: str
    gpus: Order
    environments: tuple[RankEnvironment, ...]
    groups: int
    traffic_bytes: int
    crossing_bytes: int


def place_jobs(
    placement: Placement,
    topology: Topology,
    planned: Callable[[Sequence[Order]], Plan],
) -> list[Order]:
    """The GPU of every rank of every job. ``planned`` plans the traffic of jobs placed so.

    Raises traffic.placement.PlacementError, and what ``planned`` raises.
    """
    slots = rank_slots(topology)
    jobs = [
        Job(job.name, job.size or len(job.slots) or len(slots), job.slots)
        for job in placement.listed
    ]
    if placement.strategy != TRAFFIC_AWARE:
        return place(placement.strategy, jobs, slots)
    packed = place("packed", jobs, slots)
    traffic = traffic_between(planned(packed))
    jobs = [
        Job(job.name, job.size, job.slots, _within(order, traffic))
        for job, order in zip(jobs, packed, strict=True)
    ]
    return place(placement.strategy, jobs, slots)


def traffic_between(plan: Plan) -> Mapping[tuple[int, int], int]:
    """Bytes from each rank of the plan to each other, over network and NVLink."""
    found: dict[tuple[int, int], int] = {}
    for ops in plan.ops:
        for op in ops:
            if op.kind in (OpKind.SEND, OpKind.LOCAL_SEND):
                pair = op.rank, plan.destination(op)
                found[pair] = found.get(pair, 0) + op.length
    return found


def _within(order: Order, traffic: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], float]:
    """The traffic of a job, by its own ranks."""
    rank_of = {slot: rank for rank, slot in enumerate(order)}
    return {
        (rank_of[a], rank_of[b]): float(size)
        for (a, b), size in traffic.items()
        if a in rank_of and b in rank_of
    }


def placed_jobs(placement: Placement, topology: Topology, plan: Plan) -> list[PlacedJob]:
    """The plan's jobs, as they were placed."""
    slots = rank_slots(topology)
    traffic = traffic_between(plan)
    return [
        _placed(job.name, order, topology, slots, traffic)
        for job, order in zip(placement.listed, plan.jobs, strict=True)
    ]


def _placed(
    name: str,
    order: Order,
    topology: Topology,
    slots: Sequence[RankSlot],
    traffic: Mapping[tuple[int, int], int],
) -> PlacedJob:
    own = _within(order, traffic)
    # a job that sends nothing has no cut, rather than that of a ring
    crossing = cut(Job(name, len(order), traffic=own), order, slots) if own else 0
    return PlacedJob(
        name=name,
        gpus=order,
        environments=rank_environments([topology.ranks[slot].server for slot in order]),
        groups=groups_spanned(order, slots),
        traffic_bytes=int(sum(own.values())),
        crossing_bytes=int(crossing),
    )
