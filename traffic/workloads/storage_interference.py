"""An all-reduce while storage is read and written: what a shared network does to training.

Meta keeps storage and ingest on a front-end network and HPN on one of its own (SIGCOMM 2024); on a
shared network their bursts meet those of the gradients. The GPUs run a ring all-reduce. Meanwhile
every client reads its part of a data set and writes its checkpoint, again and again: clients are
the servers' front-end NICs where there are any, else the GPUs' own NICs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import Field

from testbed.topology import RankRole
from testbed.units import Duration, Size
from traffic.collectives.request import cut
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

    read_size: Size = Field(
        2**20, description="bytes that a server reads each time, its clients in equal shares"
    )
    write_size: Size = Field(
        2**20, description="bytes that a server writes each time, its clients in equal shares"
    )
    accesses: int = Field(
        4, ge=1, le=1000, description="how often each server reads and writes; each time anew"
    )
    period: Duration = Field(50e-6, description="time from one access to the next")
    start: Duration = Field(0.0, description="time of the first access")


class _Client(NamedTuple):
    """A client's rank, its storage server's, and its share of an access in bytes."""

    rank: int
    storage: int
    read: int
    write: int


@register_workload
class StorageInterference(Workload):
    """A ring all-reduce of the GPUs, and one flow per client and direction with storage."""

    name = "storage-interference"
    is_collective = True
    Parameters = StorageInterferenceParameters

    def fill(self, builder: PlanBuilder, parameters: Any) -> None:
        """GPUs: data, checkpoint, result, what is read. Storage: data set, what is written."""
        p: StorageInterferenceParameters = parameters
        _check(builder, p)
        gpus = members(p.ranks, builder.gpu_ranks)
        front_end = builder.ranks_of(RankRole.FRONT_END)
        clients = _clients(builder, p, front_end or gpus)
        # on their own NICs GPUs need place for both kinds of traffic
        data = 0 if front_end else _aligned(p.size)
        checkpoint = max(_aligned(client.write) for client in clients)
        data_set = max(_aligned(client.read) for client in clients)
        slots = receive_slots(p.accesses, max(p.read_size, p.write_size))
        for rank in gpus:
            builder.memory(rank, initialised=p.size, total=2 * _aligned(p.size))
        for client in clients:
            total = 2 * data + checkpoint + slots * client.read
            builder.memory(client.rank, initialised=data + checkpoint, total=total)
        add_rings(builder, p, result=p.size if front_end else data + checkpoint)
        ends = dict.fromkeys(builder.ranks_of(RankRole.STORAGE), data_set)
        transfers = _Transfers(builder, p, slots)
        for client in clients:
            transfers.add(
                client.storage,
                client.rank,
                length=client.read,
                offset=0,
                remote_offset=2 * data + checkpoint,
            )
            transfers.add(
                client.rank,
                client.storage,
                length=client.write,
                offset=data,
                remote_offset=ends[client.storage],
            )
            ends[client.storage] += slots * client.write
        for rank, end in ends.items():
            builder.memory(rank, initialised=data_set, total=end)

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


def _check(builder: PlanBuilder, p: StorageInterferenceParameters) -> None:
    if not builder.ranks_of(RankRole.STORAGE):
        raise PlanError("storage-interference: no rank is a storage server")
    if not p.read_size and not p.write_size:
        raise PlanError("write_size: 0, as read_size is; allowed: one of them above 0")
    for field in ("read_size", "write_size"):
        if getattr(p, field) % p.dtype.itemsize:
            raise PlanError(
                f"{field}: {getattr(p, field)}; allowed: multiples of {p.dtype.itemsize}"
            )


def _clients(
    builder: PlanBuilder, p: StorageInterferenceParameters, ranks: Sequence[int]
) -> list[_Client]:
    """All clients; servers take turns among the storage servers, and so do their clients."""
    storage = builder.ranks_of(RankRole.STORAGE)
    servers: dict[str, list[int]] = {}
    for rank in ranks:
        servers.setdefault(builder.locations[rank].server or str(rank), []).append(rank)
    item = p.dtype.itemsize
    clients: list[_Client] = []
    for position, own in enumerate(servers.values()):
        shares = zip(
            own,
            cut(p.read_size // item, len(own)),
            cut(p.write_size // item, len(own)),
            strict=True,
        )
        for number, (rank, read, write) in enumerate(shares):
            server = storage[(position + number) % len(storage)]
            clients.append(_Client(rank, server, read * item, write * item))
    return clients


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
