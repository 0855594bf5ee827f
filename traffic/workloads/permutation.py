"""Permutation: every rank sends to exactly one other and receives from exactly one.

No port of a NIC is oversubscribed, so whatever is slow was made slow by routing. With partners on
other leaves every flow crosses the fabric, which is where a hash lets flows collide.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from testbed.units import Duration
from traffic.plan import Operation, Plan, PlanError, WorkloadParameters
from traffic.plan_builder import PlanBuilder, draw, draw_uniform
from traffic.workloads.base import (
    MessageSize,
    Reference,
    Workload,
    members,
    receive_slots,
    register_workload,
)


class PermutationParameters(WorkloadParameters):
    """How much, and to whom."""

    message_size: MessageSize = Field(2**20, description="bytes of each message")
    messages: int = Field(1, ge=1, description="messages of each rank, posted at once")
    flows: int = Field(
        1, ge=1, le=256, description="connections from each rank to its partner, a flow on each"
    )
    shift: int | None = Field(
        None,
        description="rank r sends to r + shift modulo the number of ranks; default: a random "
        "permutation in which nobody sends to itself",
    )
    partners: Literal["any", "other-leaf"] = Field(
        "any",
        description="other-leaf: the ranks below a leaf have theirs below one other, at random; "
        "not with shift",
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
        slots = receive_slots(p.messages, p.message_size * p.flows)
        buffer = slots * p.message_size
        for rank, destination in _pairs(p, builder):
            # all flows send the same bytes, to places of their own
            builder.memory(rank, initialised=buffer, total=(1 + p.flows) * buffer)
            start = p.start_jitter * draw_uniform(builder.seed, "start", rank)
            for number in range(p.flows):
                flow = builder.flow(builder.connect(rank, destination))
                for message in range(p.messages):
                    offset = (message % slots) * p.message_size
                    builder.message(
                        flow,
                        operation=p.operation,
                        length=p.message_size,
                        offset=offset,
                        remote_offset=(1 + number) * buffer + offset,
                        start=start,
                    )

    def reference(self, plan: Plan) -> Reference:
        """S is what one rank sends, as in nccl-tests' sendrecv."""
        return Reference(plan.payload_bytes, plan.payload_bytes // len(plan.gpu_ranks), 1.0)


def _pairs(p: PermutationParameters, builder: PlanBuilder) -> list[tuple[int, int]]:
    """Every GPU's rank and that of its partner."""
    gpus = members(None, builder.gpu_ranks)
    if p.partners == "other-leaf":
        if p.shift is not None:
            raise PlanError(f"shift: {p.shift} does not go with partners other-leaf")
        return _across_leaves(builder, gpus)
    return [
        (rank, gpus[position])
        for rank, position in zip(gpus, _destinations(p, len(gpus), builder.seed), strict=True)
    ]


def _across_leaves(builder: PlanBuilder, gpus: Sequence[int]) -> list[tuple[int, int]]:
    below: dict[str, list[int]] = {}
    for rank in gpus:
        below.setdefault(builder.locations[rank].leaves[0], []).append(rank)
    if len(below) < 2 or len(set(map(len, below.values()))) > 1:
        counts = ", ".join(str(len(ranks)) for ranks in below.values())
        raise PlanError(
            f"partners: other-leaf needs several leaves with equally many GPUs, not {counts}"
        )
    generator = random.Random(draw(builder.seed, "other-leaf"))
    leaves = list(below.values())
    generator.shuffle(leaves)
    pairs: list[tuple[int, int]] = []
    for ranks, others in zip(leaves, (*leaves[1:], leaves[0]), strict=True):
        pairs += zip(ranks, generator.sample(others, len(others)), strict=True)
    return sorted(pairs)


def _destinations(p: PermutationParameters, world_size: int, seed: int) -> list[int]:
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
