"""Incast: many ranks send to one at the same time, the pattern that overflows a switch port."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from testbed.units import Duration
from traffic.plan import Operation, Plan, PlanError, WorkloadParameters
from traffic.plan_builder import PlanBuilder, draw_uniform
from traffic.workloads.base import (
    MessageSize,
    Reference,
    Workload,
    receive_slots,
    register_workload,
)


class IncastParameters(WorkloadParameters):
    """Who sends how much to whom."""

    senders: Annotated[int, Field(ge=1)] | Literal["all"] = Field(
        "all",
        description="number of senders, or 'all' other ranks; they are taken in ascending order "
        "of rank, leaving out the receiver",
    )
    receiver: int = Field(0, ge=0, description="rank that everyone sends to")
    message_size: MessageSize = Field(2**20, description="bytes of each message")
    messages: int = Field(1, ge=1, description="messages of each sender, posted at once")
    start_jitter: Duration = Field(
        0.0, description="each sender starts at a random time between 0 and this"
    )
    operation: Operation = Field(
        Operation.WRITE_WITH_IMM, description="verb that carries the messages"
    )


@register_workload
class Incast(Workload):
    """N senders, one receiver; every sender is one flow on its own connection."""

    name = "incast"
    Parameters = IncastParameters

    def fill(self, builder: PlanBuilder, parameters: Any) -> None:
        """Give every sender a source buffer and the receiver one buffer for each of them."""
        p: IncastParameters = parameters
        senders = _senders(p, builder.gpu_ranks)
        receiver = builder.gpu_ranks[p.receiver]
        slots = receive_slots(p.messages, p.message_size * len(senders))
        size = p.message_size
        builder.memory(receiver, initialised=0, total=len(senders) * slots * size)
        for position, sender in enumerate(senders):
            builder.memory(sender, initialised=slots * size, total=slots * size)
            flow = builder.flow(builder.connect(sender, receiver))
            start = p.start_jitter * draw_uniform(builder.seed, "start", sender)
            for message in range(p.messages):
                slot = message % slots
                builder.message(
                    flow,
                    operation=p.operation,
                    length=size,
                    offset=slot * size,
                    remote_offset=(position * slots + slot) * size,
                    start=start,
                )

    def reference(self, plan: Plan) -> Reference:
        """S is all that reaches the receiver; nccl-tests' gather without a share of the root."""
        return Reference(plan.payload_bytes, plan.payload_bytes, 1.0)


def _senders(p: IncastParameters, gpu_ranks: Sequence[int]) -> list[int]:
    if not 0 <= p.receiver < len(gpu_ranks):
        raise PlanError(f"receiver: {p.receiver}; allowed: 0 to {max(0, len(gpu_ranks) - 1)}")
    others = [rank for place, rank in enumerate(gpu_ranks) if place != p.receiver]
    count = len(others) if p.senders == "all" else p.senders
    if not 1 <= count <= len(others):
        allowed = f"'all' or 1 to {len(others)}" if others else "none; 1 rank has no peer"
        raise PlanError(f"senders: {p.senders}; allowed: {allowed}")
    return others[:count]
