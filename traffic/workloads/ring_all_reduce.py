"""Ring all-reduce on real numbers: afterwards every rank holds the reduction over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from pydantic import Field

from testbed.units import Size
from traffic.collectives.algorithms import create_algorithm
from traffic.collectives.communicators import Communicator, Verifier
from traffic.collectives.lowering import buffer_offsets, lower
from traffic.collectives.request import Chunking, Collective, CollectiveRequest
from traffic.plan import DataType, Operation, Plan, PlanError, Reduction, WorkloadParameters
from traffic.plan_builder import PlanBuilder
from traffic.workloads.base import (
    NotifyingOperation,
    Reference,
    Workload,
    members,
    register_workload,
)

_ONE_MESSAGE_PER_STEP = Chunking(slice_bytes=2**40, slices_per_chunk=1, messages_in_flight=8)


class RingAllReduceParameters(WorkloadParameters):
    """What is reduced, and over how many rings."""

    size: Size = Field(8 * 2**20, gt=0, description="bytes of every rank's data")
    dtype: DataType = Field(DataType.FLOAT32, description="type of the elements")
    reduction: Reduction = Field(Reduction.SUM, description="how elements are combined")
    channels: int = Field(
        1, ge=1, le=64, description="rings that work side by side, each on a share of the data"
    )
    operation: NotifyingOperation = Field(
        Operation.WRITE_WITH_IMM, description="verb that carries the chunks"
    )
    ranks: tuple[int, ...] | None = Field(
        None, description="who takes part, in the ring's order; default: all that have a GPU"
    )


@register_workload
class RingAllReduce(Workload):
    """2(n - 1) steps, each rank to its neighbour; one flow per edge and channel."""

    name = "ring-all-reduce"
    is_collective = True
    Parameters = RingAllReduceParameters

    def fill(self, builder: PlanBuilder, parameters: Any) -> None:
        """Give every rank its data, followed by as much memory for partial sums and the result."""
        p: RingAllReduceParameters = parameters
        for rank in members(p.ranks, builder.gpu_ranks):
            builder.memory(rank, initialised=p.size, total=2 * p.size)
        add_rings(builder, p, result=p.size)

    def reference(self, plan: Plan) -> Reference:
        """S is one rank's data; the factor is 2(n - 1) / n."""
        p: Any = plan.parameters
        ranks = len(members(p.ranks, plan.gpu_ranks))
        return Reference(plan.payload_bytes, p.size, 2 * (ranks - 1) / ranks, ranks)

    def communicators(self, plan: Plan) -> Sequence[Communicator]:
        """The ring, with all its channels."""
        p: Any = plan.parameters
        return (_communicator(p, members(p.ranks, plan.gpu_ranks), p.size),)

    def verify(self, plan: Plan, rank: int, memory: Any) -> int:
        """Compare with the numbers that numpy gives in the ring's own order of addition.

        That order is known, so even floats must agree bit for bit.
        """
        return wrong_in_result(plan, rank, memory)


def add_rings(builder: PlanBuilder, p: RingAllReduceParameters, *, result: int) -> None:
    """Add all channels; the data are at offset 0 of each rank's memory, the sums at ``result``.

    Raises PlanError for a size that is no whole number of elements.
    """
    if p.size % p.dtype.itemsize:
        raise PlanError(
            f"size: {p.size} bytes are no whole number of {p.dtype} elements; "
            f"allowed: multiples of {p.dtype.itemsize}"
        )
    builder.dtype, builder.reduction = p.dtype, p.reduction
    ranks = members(p.ranks, builder.gpu_ranks)
    ring = _communicator(p, ranks, result)
    lower(ring.schedule, builder, buffers=ring.buffers, ranks=ranks, operation=p.operation)


def wrong_in_result(plan: Plan, rank: int, memory: Any) -> int:
    """Wrong elements in what a rank holds of the reduction; 0 for a rank that takes no part.

    The result is the first thing behind what the rank's memory holds at the start.
    """
    p: Any = plan.parameters
    ranks = members(p.ranks, plan.gpu_ranks)
    result = plan.memory[ranks[0]].initialised
    return _verifier(p, ranks, result, plan.seed).wrong_elements(plan, rank, memory)


@lru_cache(maxsize=2)
def _communicator(p: RingAllReduceParameters, ranks: tuple[int, ...], result: int) -> Communicator:
    request = CollectiveRequest(
        collective=Collective.ALL_REDUCE,
        ranks=len(ranks),
        elements=p.size // p.dtype.itemsize,
        itemsize=p.dtype.itemsize,
        channels=p.channels,
        chunking=_ONE_MESSAGE_PER_STEP,
    )
    schedule = create_algorithm("ring").schedule(request)
    buffers = buffer_offsets(schedule, rest=[result] * len(ranks))
    return Communicator(ranks, schedule, buffers)


@lru_cache(maxsize=1)
def _verifier(
    p: RingAllReduceParameters, ranks: tuple[int, ...], result: int, seed: int
) -> Verifier:
    # the seed is what the plan's data depend on, which the verifier remembers
    return Verifier(_communicator(p, ranks, result))
