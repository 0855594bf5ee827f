"""Flows: an explicit list of who sends what to whom, and when."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from testbed.units import Duration
from traffic.plan import Operation, Plan, PlanError, WorkloadParameters
from traffic.plan_builder import PlanBuilder
from traffic.workloads.base import (
    MessageSize,
    Reference,
    Workload,
    receive_slots,
    register_workload,
)


class FlowSpec(BaseModel):
    """One entry of the list."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: int = Field(ge=0, description="the fabric's rank that sends, wherever jobs are placed")
    destination: int = Field(ge=0, description="the fabric's rank that receives")
    size: MessageSize = Field(2**20, description="bytes of each message")
    messages: int = Field(1, ge=1, description="messages, the first posted at start")
    start: Duration = Field(0.0, description="emulated time of the first posting")
    period: Duration = Field(0.0, description="time from one posting to the next; 0: all at once")
    qps: int | None = Field(
        None, ge=1, le=128, description="queue pairs; default: nic.qps_per_connection"
    )


class FlowsParameters(WorkloadParameters):
    """The list, and what carries it."""

    flows: tuple[FlowSpec, ...] = Field(min_length=1, description="flows, each on a connection")
    operation: Operation = Field(
        Operation.WRITE_WITH_IMM, description="verb that carries the messages"
    )


@register_workload
class Flows(Workload):
    """One connection per entry, in order; ranks of any role may take part."""

    name = "flows"
    Parameters = FlowsParameters

    def fill(self, builder: PlanBuilder, parameters: Any) -> None:
        """Give every rank one source buffer, then a receive buffer for each flow to it."""
        p: FlowsParameters = parameters
        _check(p, builder.world_size)
        slots = [_slots(p, spec) for spec in p.flows]
        sources = [0] * builder.world_size
        for spec, count in zip(p.flows, slots, strict=True):
            sources[spec.source] = max(sources[spec.source], count * spec.size)
        ends = list(sources)
        places = []
        for spec, count in zip(p.flows, slots, strict=True):
            places.append(ends[spec.destination])
            ends[spec.destination] += count * spec.size
        for rank, (source, end) in enumerate(zip(sources, ends, strict=True)):
            builder.memory(rank, initialised=source, total=end)
        for spec, count, place in zip(p.flows, slots, places, strict=True):
            flow = builder.flow(builder.connect(spec.source, spec.destination, spec.qps))
            for message in range(spec.messages):
                offset = (message % count) * spec.size
                builder.message(
                    flow,
                    operation=p.operation,
                    length=spec.size,
                    offset=offset,
                    remote_offset=place + offset,
                    start=spec.start + message * spec.period,
                )

    def reference(self, plan: Plan) -> Reference:
        """S is all that is sent."""
        return Reference(plan.payload_bytes, plan.payload_bytes, 1.0)


def _slots(p: FlowsParameters, spec: FlowSpec) -> int:
    arriving = sum(other.size for other in p.flows if other.destination == spec.destination)
    return receive_slots(spec.messages, arriving)


def _check(p: FlowsParameters, world_size: int) -> None:
    for position, spec in enumerate(p.flows):
        for end in ("source", "destination"):
            rank = getattr(spec, end)
            if rank >= world_size:
                raise PlanError(
                    f"flows.{position}.{end}: {rank}; allowed: ranks 0 to {world_size - 1}"
                )
        if spec.source == spec.destination:
            raise PlanError(f"flows.{position}.destination: {spec.source} sends to itself")
