"""All-to-all: every rank sends a different message to every other rank.

Rank r sends to r + 1, r + 2, ... so that at any time each rank is the target of one sender only,
as long as all keep pace.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from traffic.plan import Operation, Plan, WorkloadParameters
from traffic.plan_builder import PlanBuilder
from traffic.workloads.base import MessageSize, Reference, Workload, members, register_workload


class AllToAllParameters(WorkloadParameters):
    """How much, and how many at once."""

    message_size: MessageSize = Field(2**20, description="bytes from each rank to each other one")
    window: int | None = Field(
        None, ge=1, description="messages that a rank has outstanding at once; default: all"
    )
    operation: Operation = Field(
        Operation.WRITE_WITH_IMM, description="verb that carries the messages"
    )


@register_workload
class AllToAll(Workload):
    """n(n - 1) flows of one message each, every one on its own connection."""

    name = "all-to-all"
    is_collective = True
    Parameters = AllToAllParameters

    def fill(self, builder: PlanBuilder, parameters: Any) -> None:
        """Give every rank a send buffer of n blocks, then a receive buffer of n blocks.

        Block d of rank r's send buffer ends up as block r of rank d's receive buffer.
        """
        p: AllToAllParameters = parameters
        gpus = members(None, builder.gpu_ranks)
        ranks, size = len(gpus), p.message_size
        sends: list[list[int]] = [[] for _ in gpus]
        for own, rank in enumerate(gpus):
            builder.memory(rank, initialised=ranks * size, total=2 * ranks * size)
            builder.copy(rank, offset=(ranks + own) * size, source_offset=own * size, length=size)
        for distance in range(1, ranks):
            for own, rank in enumerate(gpus):
                peer = (own + distance) % ranks
                earlier = sends[own]
                blocked = p.window is not None and len(earlier) >= p.window
                send, _ = builder.message(
                    builder.flow(builder.connect(rank, gpus[peer])),
                    operation=p.operation,
                    length=size,
                    offset=peer * size,
                    remote_offset=(ranks + own) * size,
                    depends_on=[earlier[-(p.window or 1)]] if blocked else [],
                )
                earlier.append(send)

    def reference(self, plan: Plan) -> Reference:
        """S is a rank's whole buffer, its own block included; the factor is (n - 1) / n."""
        ranks = len(plan.gpu_ranks)
        size = plan.payload_bytes // (ranks - 1)
        return Reference(plan.payload_bytes, size, (ranks - 1) / ranks)
