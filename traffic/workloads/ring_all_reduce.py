"""Ring all-reduce on real numbers: afterwards every rank holds the reduction over all ranks."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from testbed.units import Size
from traffic.collectives.ring import Chunk, Ring, split
from traffic.payload import count_wrong, elements_of, initial_slice
from traffic.plan import DataType, Operation, Plan, PlanError, Reduction, WorkloadParameters
from traffic.plan_builder import PlanBuilder
from traffic.workloads.base import Reference, Workload, members, register_workload


class RingAllReduceParameters(WorkloadParameters):
    """What is reduced, and over how many rings."""

    size: Size = Field(8 * 2**20, gt=0, description="bytes of every rank's data")
    dtype: DataType = Field(DataType.FLOAT32, description="type of the elements")
    reduction: Reduction = Field(Reduction.SUM, description="how elements are combined")
    channels: int = Field(
        1, ge=1, le=64, description="rings that work side by side, each on a share of the data"
    )
    operation: Literal[Operation.WRITE_WITH_IMM, Operation.SEND, Operation.SEND_WITH_IMM] = Field(
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
        """Give every rank its data, followed by as much scratch memory for partial sums."""
        p: RingAllReduceParameters = parameters
        for rank in members(p.ranks, builder.gpu_ranks):
            builder.memory(rank, initialised=p.size, total=2 * p.size)
        add_rings(builder, p, scratch=p.size)

    def reference(self, plan: Plan) -> Reference:
        """S is one rank's data; the factor is 2(n - 1) / n."""
        p: Any = plan.parameters
        ranks = len(members(p.ranks, plan.gpu_ranks))
        return Reference(plan.payload_bytes, p.size, 2 * (ranks - 1) / ranks, ranks)

    def verify(self, plan: Plan, rank: int, memory: Any) -> int:
        """Compare with the numbers that numpy gives in the ring's own order of addition.

        That order is known (see ``expected_result``), so even floats must agree bit for bit.
        """
        return wrong_in_result(plan, rank, memory)


def add_rings(builder: PlanBuilder, p: RingAllReduceParameters, *, scratch: int) -> None:
    """Add all channels; partial sums arrive ``scratch`` bytes behind the data, at offset 0.

    Raises PlanError for a size that is no whole number of elements.
    """
    if p.size % p.dtype.itemsize:
        raise PlanError(
            f"size: {p.size} bytes are no whole number of {p.dtype} elements; "
            f"allowed: multiples of {p.dtype.itemsize}"
        )
    builder.dtype, builder.reduction = p.dtype, p.reduction
    ranks = members(p.ranks, builder.gpu_ranks)
    for chunks in _channels(p, len(ranks)):
        if any(chunk.length for chunk in chunks):
            Ring(ranks, chunks, scratch=scratch, operation=p.operation).fill(builder)


def wrong_in_result(plan: Plan, rank: int, memory: Any) -> int:
    """Wrong elements in what a rank holds of the reduction; 0 for a rank that takes no part."""
    p: Any = plan.parameters
    if rank not in members(p.ranks, plan.gpu_ranks):
        return 0
    expected = expected_result(plan)
    return count_wrong(elements_of(plan, memory, 0, expected.nbytes), expected)


def expected_result(plan: Plan) -> NDArray[Any]:
    """What every rank must hold: chunk c combines position c + 1 first, then c + 2, ... c last."""
    p: Any = plan.parameters
    order = members(p.ranks, plan.gpu_ranks)
    ranks = len(order)
    combine = np.add if plan.reduction is Reduction.SUM else np.maximum
    result = np.empty(p.size // plan.dtype.itemsize, dtype=plan.dtype.value)
    for chunks in _channels(p, ranks):
        for index, chunk in enumerate(chunks):
            # chunk by chunk, so that never more than two chunks are in memory beside the result
            first = chunk.offset // plan.dtype.itemsize
            total = result[first : first + chunk.length // plan.dtype.itemsize]
            total[:] = initial_slice(plan, order[(index + 1) % ranks], chunk.offset, chunk.length)
            for distance in range(2, ranks + 1):
                rank = order[(index + distance) % ranks]
                combine(initial_slice(plan, rank, chunk.offset, chunk.length), total, out=total)
    return result


def _channels(p: RingAllReduceParameters, ranks: int) -> list[list[Chunk]]:
    """The chunks of every channel, one per rank."""
    itemsize = p.dtype.itemsize
    shares = split(p.size // itemsize, p.channels, itemsize)
    return [split(share.length // itemsize, ranks, itemsize, share.offset) for share in shares]
