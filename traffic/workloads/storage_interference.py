"""An all-reduce while storage is read and written: what a shared network does to training.

Meta keeps storage and ingest on a front-end network and HPN on one of its own (SIGCOMM 2024); on a
shared network their bursts meet those of the gradients. The GPUs run a ring all-reduce. Meanwhile
every client reads its part of a data set and writes its checkpoint, again and again: clients are
the servers' front-end NICs where there are any, else the GPUs' own NICs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from testbed.topology import RankRole
from testbed.units import Duration, Size
from traffic.payload import verify_messages
from traffic.plan import Flow, Plan, PlanError
from traffic.plan_builder import PlanBuilder
from traffic.workloads.base import (
    Reference,
    Workload,
    members,
    receive_slots,
    register_workload,
)
from traffic.workloads.ring_all_reduce import (
    RingAllReduceParameters,
    add_rings,
    wrong_in_result,
)

_ALIGNMENT = 8
"""Bytes of the largest element; buffers begin at multiples of it."""


class StorageInterferenceParameters(RingAllReduceParameters):
    """The all-reduce, and what storage has to do in the meantime."""

    read_size: Size = Field(2**20, description="bytes that a client reads each time; 0: none")
    write_size: Size = Field(2**20, description="bytes that a client writes each time; 0: none")
    accesses: int = Field(
        4, ge=1, le=1000, description="how often each client reads and writes; each time anew"
    )
    period: Duration = Field(50e-6, description="time from one access to the next")
    start: Duration = Field(0.0, description="time of the first access")


@register_workload
class StorageInterference(Workload):
    """A ring all-reduce of the GPUs, and one flow per client and direction with storage."""

    name = "storage-interference"
    is_collective = True
    Parameters = StorageInterferenceParameters

    def fill(self, builder: PlanBuilder, parameters: Any) -> None:
        """GPUs: data, checkpoint, scratch, what is read. Storage: data set, what is written."""
        p: StorageInterferenceParameters = parameters
        storage = builder.ranks_of(RankRole.STORAGE)
        if not storage:
            raise PlanError("storage-interference: no rank is a storage server")
        if not p.read_size and not p.write_size:
            raise PlanError("write_size: 0, as read_size is; allowed: one of them above 0")
        for field in ("read_size", "write_size"):
            if getattr(p, field) % p.dtype.itemsize:
                raise PlanError(
                    f"{field}: {getattr(p, field)}; allowed: multiples of {p.dtype.itemsize}"
                )
        gpus = members(p.ranks, builder.gpu_ranks)
        clients = builder.ranks_of(RankRole.FRONT_END) or gpus
        data, checkpoint, data_set = map(_aligned, (p.size, p.write_size, p.read_size))
        shared = clients == gpus
        served = -(-len(clients) // len(storage))
        slots = receive_slots(p.accesses, max(p.read_size, served * p.write_size))
        for rank in gpus:
            builder.memory(rank, initialised=data, total=2 * data)
        for rank in clients:
            source = data * shared + checkpoint
            total = source + data * shared + slots * p.read_size
            builder.memory(rank, initialised=source, total=total)
        for rank in storage:
            total = data_set + served * slots * p.write_size
            builder.memory(rank, initialised=data_set, total=total)
        add_rings(builder, p, scratch=data + checkpoint * shared)
        for position, client in enumerate(clients):
            turn, index = divmod(position, len(storage))
            transfers = _Transfers(builder, p, slots)
            transfers.add(
                storage[index],
                client,
                length=p.read_size,
                offset=0,
                remote_offset=2 * data * shared + checkpoint,
            )
            transfers.add(
                client,
                storage[index],
                length=p.write_size,
                offset=data * shared,
                remote_offset=data_set + turn * slots * p.write_size,
            )

    def reference(self, plan: Plan) -> Reference:
        """S is one rank's data; the factor is 2(n - 1) / n, as in an all-reduce alone."""
        p: Any = plan.parameters
        ranks = len(members(p.ranks, plan.gpu_ranks))
        return Reference(plan.payload_bytes, p.size, 2 * (ranks - 1) / ranks, ranks)

    def collective_flows(self, plan: Plan) -> Sequence[Flow]:
        """Those between GPUs."""
        gpus = set(plan.gpu_ranks)
        return [
            flow
            for flow in plan.flows
            if {
                plan.connections[flow.connection].source_rank,
                plan.connections[flow.connection].destination_rank,
            }
            <= gpus
        ]

    def verify(self, plan: Plan, rank: int, memory: Any) -> int:
        """The reduction, and every block that storage and clients gave each other."""
        reduced = {flow.index for flow in self.collective_flows(plan)}
        others = {flow.index for flow in plan.flows} - reduced
        return wrong_in_result(plan, rank, memory) + verify_messages(
            plan, rank, memory, flows=others
        )


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


@dataclass(frozen=True, slots=True)
class _Transfers:
    """Adds flows that move the same bytes every period, to ``slots`` places in turn."""

    builder: PlanBuilder
    parameters: StorageInterferenceParameters
    slots: int

    def add(
        self, source: int, destination: int, *, length: int, offset: int, remote_offset: int
    ) -> None:
        """One flow; none for a length of 0."""
        if not length:
            return
        p = self.parameters
        flow = self.builder.flow(self.builder.connect(source, destination))
        for access in range(p.accesses):
            self.builder.message(
                flow,
                operation=p.operation,
                length=length,
                offset=offset,
                remote_offset=remote_offset + access % self.slots * length,
                start=p.start + access * p.period,
            )
