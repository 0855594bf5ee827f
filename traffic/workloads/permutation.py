"""Permutation: every rank sends to exactly one other and receives from exactly one.

No port of a NIC is oversubscribed, so whatever is slow was made slow by routing.
"""

from __future__ import annotations

import random
from typing import Any

from pydantic import Field

from testbed.units import Duration
from traffic.plan import Operation, Plan, PlanError, WorkloadParameters
from traffic.plan_builder import PlanBuilder, draw, draw_uniform
from traffic.workloads.base import (
    MessageSize,
    Reference,
    Workload,
    receive_slots,
    register_workload,
)


class PermutationParameters(WorkloadParameters):
    """How much, and to whom."""

    message_size: MessageSize = Field(2**20, description="bytes of each message")
    messages: int = Field(1, ge=1, description="messages of each rank, posted at once")
    shift: int | None = Field(
        None,
        description="rank r sends to r + shift modulo the number of ranks; default: a random "
        "permutation in which nobody sends to itself",
    )
    start_jitter: Duration = Field(
        0.0, description="each rank starts at a random time between 0 and this"
    )
    operation: Operation = Field(
        Operation.WRITE_WITH_IMM, description="verb that carries the messages"
    )


@register_workload
class Permutation(Workload):
    """One flow out of and one flow into every rank."""

    name = "permutation"
    Parameters = PermutationParameters

    def fill(self, builder: PlanBuilder, parameters: Any) -> None:
        """Give every rank a source buffer followed by a receive buffer of the same size."""
        p: PermutationParameters = parameters
        slots = receive_slots(p.messages, p.message_size)
        buffer = slots * p.message_size
        for rank, destination in enumerate(_destinations(p, builder.world_size, builder.seed)):
            builder.memory(rank, initialised=buffer, total=2 * buffer)
            flow = builder.flow(builder.connect(rank, destination))
            start = p.start_jitter * draw_uniform(builder.seed, "start", rank)
            for message in range(p.messages):
                offset = (message % slots) * p.message_size
                builder.message(
                    flow,
                    operation=p.operation,
                    length=p.message_size,
                    offset=offset,
                    remote_offset=buffer + offset,
                    start=start,
                )

    def reference(self, plan: Plan) -> Reference:
        """S is what one rank sends, as in nccl-tests' sendrecv."""
        return Reference(plan.payload_bytes, plan.payload_bytes // plan.world_size, 1.0)


def _destinations(p: PermutationParameters, world_size: int, seed: int) -> list[int]:
    if world_size < 2:
        raise PlanError(f"world_size: a permutation needs 2 ranks or more, not {world_size}")
    if p.shift is not None:
        if p.shift % world_size == 0:
            raise PlanError(
                f"shift: {p.shift} makes ranks send to themselves; allowed: numbers that "
                f"are no multiple of {world_size}"
            )
        return [(rank + p.shift) % world_size for rank in range(world_size)]
    # Rejection keeps all derangements equally likely; about e shuffles are needed.
    generator = random.Random(draw(seed, "permutation"))
    destinations = list(range(world_size))
    while any(rank == destination for rank, destination in enumerate(destinations)):
        generator.shuffle(destinations)
    return destinations
