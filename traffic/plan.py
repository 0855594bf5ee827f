"""Work as data: which rank sends which bytes to whom over which queue pair, and after what.

A plan is a pure value. Everything random in it (queue pair numbers, initial PSNs, UDP source
ports, payload) is drawn from its seed alone, so that the same scenario gives the same plan on any
machine. Offsets and lengths are bytes, times are seconds of emulated time since the start of the
traffic. ``traffic.executor`` runs one rank of a plan; workloads make plans through PlanBuilder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict

MAX_MESSAGE_BYTES = 2**31
"""Longest message of an RC or UC queue pair (IBTA specification, 9.7.1)."""


class PlanError(ValueError):
    """A workload does not fit; the message names the field, the value and what is allowed."""


class OpKind(StrEnum):
    """What an operation does. LOCAL ones move data between the GPUs of one server, on NVLink."""

    SEND = "send"
    RECEIVE = "receive"
    REDUCE = "reduce"
    COPY = "copy"
    COMPUTE = "compute"
    LOCAL_SEND = "local-send"
    LOCAL_RECEIVE = "local-receive"

    @property
    def has_memory_source(self) -> bool:
        """It reads ``Op.source_offset``."""
        return self in (OpKind.REDUCE, OpKind.COPY)

    @property
    def sends(self) -> bool:
        """It writes to another rank's memory, at ``Op.remote_offset``."""
        return self in (OpKind.SEND, OpKind.LOCAL_SEND)


class Operation(StrEnum):
    """How a message travels; the names of IBV_WR_* in lower case."""

    WRITE_WITH_IMM = "write-with-imm"
    WRITE = "write"
    SEND = "send"
    SEND_WITH_IMM = "send-with-imm"

    @property
    def is_write(self) -> bool:
        """The sender chooses where the bytes go."""
        return self in (Operation.WRITE, Operation.WRITE_WITH_IMM)

    @property
    def has_immediate(self) -> bool:
        """The receiver gets a 32-bit number with the message."""
        return self in (Operation.WRITE_WITH_IMM, Operation.SEND_WITH_IMM)

    @property
    def notifies_receiver(self) -> bool:
        """The message consumes a receive work request and completes it."""
        return self is not Operation.WRITE


class SourcePortPolicy(StrEnum):
    """Which packets of a NIC share a UDP source port, and thus an ECMP path.

    With the last two the requests of a queue pair cycle through several ports of its own.
    """

    PER_QP = "per-qp"
    PER_PAIR = "per-pair"
    PER_FLOWLET = "per-flowlet"
    PER_PACKET = "per-packet"

    @property
    def cycles(self) -> bool:
        """One queue pair uses several source ports."""
        return self in (SourcePortPolicy.PER_FLOWLET, SourcePortPolicy.PER_PACKET)


class MessageStrategy(StrEnum):
    """How the messages of a connection are spread over its queue pairs.

    The first two are those of Meta (Gangidi et al., SIGCOMM 2024) and of NCCL
    (NCCL_IB_SPLIT_DATA_ON_QPS), the third that of HPN (Qian et al., SIGCOMM 2024).
    """

    SPLIT = "split"
    ROUND_ROBIN = "round-robin"
    LEAST_OUTSTANDING = "least-outstanding"


@dataclass(frozen=True, slots=True)
class QpScaling:
    """How many queue pairs a connection has, and what tells a fabric's hash them apart.

    ``source_ports`` is how many ports a queue pair cycles through under the policies per flowlet
    and per packet; a flowlet ends when its queue pair has sent nothing for ``flowlet_gap`` seconds
    of emulated time.
    """

    qps_per_connection: int = 1
    message_strategy: MessageStrategy = MessageStrategy.ROUND_ROBIN
    source_port_policy: SourcePortPolicy = SourcePortPolicy.PER_QP
    source_ports: int = 16
    flowlet_gap: float = 256e-6


class DataType(StrEnum):
    """Element type of the payload; names of numpy's types."""

    UINT8 = "uint8"
    INT32 = "int32"
    FLOAT16 = "float16"
    FLOAT32 = "float32"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return {"uint8": 1, "float16": 2}.get(self.value, 4)


class Reduction(StrEnum):
    """How a REDUCE operation combines two elements."""

    SUM = "sum"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Connection:
    """A pair of connected queue pairs; ``source`` is the side that sends the messages.

    Several of them between two ranks may form a group, over which messages are spread; ``group``
    is the index of the first, which flows and operations name. ``source_nic_port`` is the port of
    its NIC, counted from 0, that the source sends requests from, ``destination_nic_port`` the one
    that acknowledgements leave from.

    ``source_psn`` is the first PSN of the source's send queue, hence rq_psn of the destination;
    ``destination_psn`` the same for the other direction. ``source_port`` is the UDP source port
    of requests, ``reverse_source_port`` that of acknowledgements.
    """

    index: int
    source_rank: int
    destination_rank: int
    source_qp_num: int
    destination_qp_num: int
    source_psn: int
    destination_psn: int
    source_port: int
    reverse_source_port: int
    group: int
    source_nic_port: int = 0
    destination_nic_port: int = 0


@dataclass(frozen=True, slots=True)
class QueuePairPlan:
    """One end of a connection as its own rank sees it, in the terms of ibv_modify_qp."""

    connection: int
    rank: int
    qp_num: int
    sq_psn: int
    source_port: int
    nic_port: int
    peer_rank: int
    dest_qp_num: int
    rq_psn: int


@dataclass(frozen=True, slots=True)
class Flow:
    """The messages that a user sees as one row of results; all between two ranks, one way.

    ``connection`` is the first of the group of connections that they are spread over.
    ``start`` is the earliest start of its first message; ``payload_bytes`` counts all messages.
    """

    index: int
    connection: int
    messages: int
    payload_bytes: int
    start: float


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of one rank; ``op_id`` is its index in ``Plan.ops[rank]``.

    ``offset`` and ``length`` name local memory: what a SEND reads, where a RECEIVE's message ends
    up, what REDUCE and COPY write. ``remote_offset`` is where a SEND lands in the peer's memory,
    ``source_offset`` is the second operand of REDUCE and the source of COPY. ``tag`` counts the
    messages of a group from 0: a SEND carries it as immediate data, and the RECEIVE of the
    same group and tag is its other end. An operation may begin once every operation in
    ``depends_on`` (same rank) is complete and ``start`` has come; RECEIVEs are posted ahead.

    LOCAL_SEND and LOCAL_RECEIVE do the same without a connection: ``peer`` is the rank at the
    other end, and ``tag`` counts the messages from one rank to another. COMPUTE takes
    ``duration`` seconds and touches no memory; ``name`` says for charts what it stands for.
    """

    op_id: int
    rank: int
    kind: OpKind
    offset: int
    length: int
    depends_on: tuple[int, ...] = ()
    start: float = 0.0
    connection: int = -1
    flow: int = -1
    tag: int = 0
    operation: Operation | None = None
    remote_offset: int = 0
    source_offset: int = 0
    peer: int = -1
    duration: float = 0.0
    name: str = ""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """A rank's memory: pseudo-random numbers in its first ``initialised`` bytes, then zeros."""

    total: int
    initialised: int


class WorkloadParameters(BaseModel):
    """Base of every workload's parameters: strict and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True)
class Plan:
    """All work of all ranks. ``ops[rank][op_id]`` is an operation; ``memory[rank]`` its memory.

    ``world_size`` counts all ranks. ``jobs`` has for each job the plan's ranks, all with a GPU, on
    which its own ranks run, in their order; ``gpu_ranks`` are those of all jobs. ``servers`` has
    the server of every rank, empty where the place does not matter.
    """

    workload: str
    parameters: WorkloadParameters
    world_size: int
    jobs: tuple[tuple[int, ...], ...]
    seed: int
    qp_scaling: QpScaling
    dtype: DataType
    reduction: Reduction
    memory: tuple[MemoryPlan, ...]
    connections: tuple[Connection, ...]
    flows: tuple[Flow, ...]
    ops: tuple[tuple[Op, ...], ...]
    servers: tuple[str, ...] = ()

    @property
    def gpu_ranks(self) -> tuple[int, ...]:
        """The ranks of all jobs, one job after the other."""
        return tuple(rank for job in self.jobs for rank in job)

    @property
    def payload_bytes(self) -> int:
        """Bytes of all messages that cross the network, sent once each."""
        return sum(flow.payload_bytes for flow in self.flows)

    def destination(self, op: Op) -> int:
        """The rank that a SEND or LOCAL_SEND writes to."""
        if op.kind is OpKind.LOCAL_SEND:
            return op.peer
        return self.connections[op.connection].destination_rank

    def group(self, connection: int) -> tuple[int, ...]:
        """The connections of the group that a connection belongs to, in order."""
        first = self.connections[connection].group
        end = first + 1
        while end < len(self.connections) and self.connections[end].group == first:
            end += 1
        return tuple(range(first, end))

    def queue_pairs(self, rank: int) -> Iterator[QueuePairPlan]:
        """The queue pairs that a rank has to create, in the order of its connections."""
        for c in self.connections:
            if c.source_rank == rank:
                yield QueuePairPlan(
                    c.index, rank, c.source_qp_num, c.source_psn, c.source_port,
                    c.source_nic_port, c.destination_rank, c.destination_qp_num, c.destination_psn,
                )  # fmt: skip
            elif c.destination_rank == rank:
                yield QueuePairPlan(
                    c.index, rank, c.destination_qp_num, c.destination_psn, c.reverse_source_port,
                    c.destination_nic_port, c.source_rank, c.source_qp_num, c.source_psn,
                )  # fmt: skip

    def plan_hash(self) -> str:
        """SHA-256, in hex, of everything that the plan fixes, in a canonical form."""
        digest = hashlib.sha256()
        for part in self._canonical():
            digest.update(json.dumps(part, separators=(",", ":"), sort_keys=True).encode())
            digest.update(b"\n")
        return digest.hexdigest()

    def _canonical(self) -> Iterator[Any]:
        scaling = self.qp_scaling
        yield [
            self.workload, self.parameters.model_dump(mode="json"), self.world_size, self.seed,
            scaling.source_port_policy, self.dtype, self.reduction,
        ]  # fmt: skip
        # What later versions added counts only where it is used: old plans keep their hash.
        if scaling != QpScaling(source_port_policy=scaling.source_port_policy):
            yield ["QpScaling", *(getattr(scaling, name) for name in scaling.__slots__)]
        if self.gpu_ranks != tuple(range(self.world_size)):
            yield ["gpu_ranks", *self.gpu_ranks]
        if len(self.jobs) > 1:
            yield ["jobs", *map(len, self.jobs)]
        for memory in self.memory:
            yield [memory.total, memory.initialised]
        rows: Iterable[Any] = (*self.connections, *self.flows, *(o for r in self.ops for o in r))
        for row in rows:
            values = [getattr(row, name) for name in row.__slots__]
            if isinstance(row, Connection) and values[-3:] == [row.index, 0, 0]:
                del values[-3:]
            if isinstance(row, Op) and values[-3:] == [-1, 0.0, ""]:
                del values[-3:]
            yield [type(row).__name__, *values]
