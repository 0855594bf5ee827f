"""A collective of one or more communicators, by any algorithm that can do it, on real numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from testbed.units import Size
from traffic.collectives.algorithms import algorithm_names, create_algorithm
from traffic.collectives.choice import DEFAULT_TABLE, AlgorithmRule
from traffic.collectives.communicators import Communicator, Verifier, place
from traffic.collectives.lowering import Rendezvous, lower
from traffic.collectives.request import (
    Collective,
    CollectiveRequest,
    ScheduleError,
    largest_buffer,
)
from traffic.collectives.schedule import Schedule
from traffic.locations import gpus_per_server
from traffic.plan import (
    MAX_MESSAGE_BYTES,
    DataType,
    MemoryPlan,
    Operation,
    Plan,
    PlanError,
    Reduction,
    WorkloadParameters,
)
from traffic.plan_builder import PlanBuilder, draw_uniform
from traffic.workloads.base import (
    NotifyingOperation,
    Reference,
    Workload,
    collective_reference,
    members,
    register_workload,
)

AUTOMATIC = "auto"

_Jobs = tuple[tuple[int, ...], ...]
"""The GPUs of every job, in the order of its ranks."""


class AlgorithmRuleParameters(BaseModel):
    """A row of the table that ``auto`` chooses by."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    algorithm: str = Field(description="name of the algorithm")
    up_to: Size | None = Field(None, gt=0, description="largest size it is for; default: any")


class CollectiveParameters(WorkloadParameters):
    """What the ranks do together, and how."""

    collective: Collective = Field(Collective.ALL_REDUCE, description="what the ranks do together")
    algorithm: str = Field(
        AUTOMATIC, description="how: an algorithm's name, or 'auto' to choose by size"
    )
    algorithm_table: tuple[AlgorithmRuleParameters, ...] = Field(
        (), description="rules that 'auto' tries, in order, before its own"
    )
    size: Size = Field(
        8 * 2**20,
        gt=0,
        description="bytes of the largest buffer of a rank, as nccl-tests counts; a barrier has "
        "one element whatever this says",
    )
    dtype: DataType = Field(DataType.FLOAT32, description="type of the elements")
    reduction: Reduction = Field(Reduction.SUM, description="how elements are combined")
    channels: int = Field(
        1, ge=1, le=64, description="parts of the data that are worked on side by side"
    )
    chunk: Annotated[Size, Field(gt=0, le=MAX_MESSAGE_BYTES)] | None = Field(
        None,
        description="largest message of a pipelined algorithm; default: as NCCL has it for the "
        "algorithm",
    )
    in_flight: int | None = Field(
        None,
        ge=1,
        description="messages that a connection may have under way; default: 8, as NCCL_STEPS, or "
        "4 on rings, whose messages are two steps long",
    )
    rendezvous: Rendezvous = Field(
        Rendezvous.NONE,
        description="whether a message waits for its receiver's clear-to-send: 'cts', as in NCCL, "
        "or 'none'",
    )
    root: int = Field(0, ge=0, description="position among the ranks of the one that is special")
    ranks: tuple[int, ...] | None = Field(
        None,
        description="who takes part, in the communicator's order; default: all that have a GPU, "
        "one communicator for each job",
    )
    groups: tuple[tuple[int, ...], ...] | None = Field(
        None,
        description="instead of ranks: several communicators of one size that do it all at once",
    )
    gpus_per_server: int | None = Field(
        None,
        ge=1,
        description="how many ranks in a row the algorithm takes for one server's GPUs; 1 leaves "
        "everything to the network; default: as many as share a server in the fabric, 1 where that "
        "differs among the ranks",
    )
    imbalance: float = Field(
        0.5,
        ge=0,
        le=1,
        description="all-to-allv: how far the sizes for different ranks may lie from their mean; "
        "0 makes it an all-to-all",
    )
    operation: NotifyingOperation = Field(
        Operation.WRITE_WITH_IMM, description="verb that carries the messages"
    )


@register_workload
class CollectiveWorkload(Workload):
    """A schedule per communicator, lowered: one flow per connection and channel."""

    name = "collective"
    is_collective = True
    Parameters = CollectiveParameters

    def fill(self, builder: PlanBuilder, parameters: Any) -> None:
        """Give every rank its inputs, then its outputs and the schedules' scratch memory."""
        p: CollectiveParameters = parameters
        builder.dtype, builder.reduction = p.dtype, p.reduction
        try:
            communicators, memory = _communicators(p, builder.jobs, builder.server_of, builder.seed)
        except ScheduleError as error:
            raise PlanError(str(error)) from None
        for rank, needed in memory.items():
            builder.memory(rank, initialised=needed.initialised, total=needed.total)
        for c in communicators:
            lower(c.schedule, builder, buffers=c.buffers, ranks=c.ranks, operation=p.operation)
            if not any(c.schedule.sent_elements(rank) for rank in range(len(c.ranks))):
                raise PlanError(f"size: {p.size} bytes leave {p.collective} nothing to send")

    def reference(self, plan: Plan) -> Reference:
        """What algbw and busbw are computed from."""
        return collective_reference(plan, self.communicators(plan))

    def communicators(self, plan: Plan) -> Sequence[Communicator]:
        """All that do the collective, at once."""
        p: Any = plan.parameters
        return _communicators(p, plan.jobs, plan.servers, plan.seed)[0]

    def verify(self, plan: Plan, rank: int, memory: Any) -> int:
        """Compare with the numbers that numpy gives in the schedule's own order of additions.

        That order is known, so even floats must agree bit for bit.
        """
        p: Any = plan.parameters
        return sum(
            verifier.wrong_elements(plan, rank, memory)
            for verifier in _verifiers(p, plan.jobs, plan.servers, plan.seed)
        )


def _groups(p: CollectiveParameters, jobs: _Jobs) -> list[tuple[int, ...]]:
    """The GPUs of every communicator: one for each job unless the parameters say otherwise.

    Raises PlanError for groups that do not fit.
    """
    gpu_ranks = tuple(rank for job in jobs for rank in job)
    if p.groups is None and p.ranks is not None:
        return [members(p.ranks, gpu_ranks)]
    if p.groups is None:
        groups = [members(None, job) for job in jobs]
    elif p.ranks is not None or not p.groups:
        raise PlanError("groups: allowed: one list of ranks or more, and then no ranks beside it")
    else:
        groups = [members(group, gpu_ranks) for group in p.groups]
    if len({len(group) for group in groups}) > 1:
        what = "groups: they" if p.groups is not None else "groups: the jobs, which they are,"
        raise PlanError(f"{what} have different sizes; allowed: groups of one size")
    return groups


@lru_cache(maxsize=4)
def _communicators(
    p: CollectiveParameters, jobs: _Jobs, servers: tuple[str, ...], seed: int
) -> tuple[list[Communicator], dict[int, MemoryPlan]]:
    work = []
    for group in _groups(p, jobs):
        sharing = gpus_per_server([servers[rank] for rank in group])
        work.append((group, schedule_of(p, len(group), seed, sharing)))
    return place(work, rendezvous=p.rendezvous)


@lru_cache(maxsize=1)
def _verifiers(
    p: CollectiveParameters, jobs: _Jobs, servers: tuple[str, ...], seed: int
) -> tuple[Verifier, ...]:
    return tuple(map(Verifier, _communicators(p, jobs, servers, seed)[0]))


@lru_cache(maxsize=4)
def schedule_of(
    p: CollectiveParameters, ranks: int, seed: int, sharing_server: int = 1
) -> Schedule:
    """The schedule that the parameters ask for. Raises ScheduleError.

    ``sharing_server`` ranks in a row are on one server; the parameters may say otherwise.
    """
    gpus = p.gpus_per_server or sharing_server
    itemsize = p.dtype.itemsize
    if p.size % itemsize:
        raise ScheduleError(
            f"size: {p.size} bytes are no whole number of {p.dtype} elements; "
            f"allowed: multiples of {itemsize}"
        )
    elements, counts = p.size // itemsize, None
    if p.collective is Collective.BARRIER:
        elements = 1
    elif p.collective is Collective.ALL_TO_ALLV:
        counts = _counts(elements, ranks, p.imbalance, seed)
        elements = largest_buffer(counts)
    request = CollectiveRequest(
        collective=p.collective,
        ranks=ranks,
        elements=elements,
        itemsize=itemsize,
        root=p.root,
        channels=p.channels,
        gpus_per_server=gpus,
        counts=counts,
    )
    algorithm = create_algorithm(_algorithm(p, gpus))
    chunking = algorithm.chunking_of(request)
    if p.chunk is not None:
        chunking = replace(chunking, slice_bytes=p.chunk, slices_per_chunk=1)
    if p.in_flight is not None:
        chunking = replace(chunking, messages_in_flight=p.in_flight)
    return algorithm.schedule(replace(request, chunking=chunking))


def _algorithm(p: CollectiveParameters, gpus: int) -> str:
    if p.algorithm != AUTOMATIC:
        if p.algorithm not in algorithm_names():
            allowed = ", ".join([AUTOMATIC, *algorithm_names()])
            raise ScheduleError(f"algorithm: {p.algorithm!r}; allowed: {allowed}")
        return p.algorithm
    rules = tuple(
        AlgorithmRule(p.collective, rule.algorithm, rule.up_to) for rule in p.algorithm_table
    )
    return DEFAULT_TABLE.overridden(rules).choose(p.collective, p.size, gpus)


def _counts(elements: int, ranks: int, imbalance: float, seed: int) -> tuple[tuple[int, ...], ...]:
    """Elements from each rank to each other: its data, cut by weights drawn from the seed."""
    rows = []
    for source in range(ranks):
        weights = [
            1 + imbalance * (2 * draw_uniform(seed, "count", source, peer) - 1)
            for peer in range(ranks)
        ]
        # cut at rounded places, so that every rank has the same amount of data
        total, at = sum(weights), 0.0
        places = [0]
        for weight in weights:
            at += weight
            places.append(round(elements * at / total))
        rows.append(tuple(end - begin for begin, end in pairwise(places)))
    return tuple(rows)
