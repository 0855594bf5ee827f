"""Builds plans: collects operations and draws queue pair numbers, PSNs and ports from the seed."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from testbed.topology import RankRole
from traffic.locations import RankLocation, anywhere, ranks_of
from traffic.plan import (
    MAX_MESSAGE_BYTES,
    Connection,
    DataType,
    Flow,
    MemoryPlan,
    MessageStrategy,
    Op,
    Operation,
    OpKind,
    Plan,
    PlanError,
    QpScaling,
    Reduction,
    SourcePortPolicy,
    WorkloadParameters,
)

UDP_SOURCE_PORT_BASE = 49152
"""Start of the dynamic port range; RoCEv2 senders stay above it (rxe_qp.c: RXE_ROCE_V2_SPORT)."""

OPERATION_LIMIT = 500_000
"""Operations of a plan; more would take minutes to plan and gigabytes to hold."""

CONNECTION_LIMIT = 50_000
"""Pairs of queue pairs in a plan; each holds two prepared frames at either end, 16 KiB in all."""

_SOURCE_PORT_MASK = 0x3FFF
_PSN_MASK = 0xFFFFFF
_FIRST_QP_NUM = 0x100
"""Above QP 0 and 1, which the IBTA specification reserves for management."""
_QP_NUM_SPAN = 0xFFFFFF - _FIRST_QP_NUM
"""QP number 0xFFFFFF means multicast and is never drawn."""
_ONE_QUEUE_PAIR = QpScaling()


def draw(seed: int, *labels: int | str) -> int:
    """64 pseudo-random bits that depend on the arguments alone (BLAKE2b of them)."""
    text = ":".join(str(label) for label in (seed, *labels))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def draw_uniform(seed: int, *labels: int | str) -> float:
    """A pseudo-random number in [0, 1) that depends on the arguments alone."""
    return (draw(seed, *labels) >> 11) * 2.0**-53


def source_port_of(bits: int) -> int:
    """A UDP source port of the dynamic range from pseudo-random bits."""
    return UDP_SOURCE_PORT_BASE + (bits & _SOURCE_PORT_MASK)


class PlanBuilder:
    """Collects the work of a plan and draws the numbers of its queue pairs.

    ``locations`` says where each rank is; by default all are GPUs at places that do not matter.
    ``jobs`` has for each job the GPUs that its ranks run on, in their order; by default all GPUs
    are one job's. Raises PlanError for a world of no ranks, a negative seed or a job on what is no
    GPU or another's.
    """

    def __init__(
        self,
        *,
        workload: str,
        parameters: WorkloadParameters,
        world_size: int,
        seed: int,
        qp_scaling: QpScaling = _ONE_QUEUE_PAIR,
        locations: Sequence[RankLocation] | None = None,
        jobs: Sequence[Sequence[int]] | None = None,
    ) -> None:
        if world_size < 1:
            raise PlanError(f"world_size: {world_size} ranks; at least 1")
        if seed < 0:
            raise PlanError(f"seed: {seed} is negative; allowed: whole numbers from 0")
        self.workload = workload
        self.parameters = parameters
        self.world_size = world_size
        self.seed = seed
        self.qp_scaling = qp_scaling
        self.locations = tuple(anywhere(world_size) if locations is None else locations)
        if len(self.locations) != world_size:
            raise PlanError(f"locations: {len(self.locations)} of {world_size} ranks")
        gpus = self.ranks_of(RankRole.GPU)
        self.jobs = (gpus,) if jobs is None else tuple(map(tuple, jobs))
        for rank, count in Counter(self.gpu_ranks).items():
            if rank not in gpus or count > 1:
                raise PlanError(f"jobs: rank {rank}; allowed: GPUs, each in one job")
        self._servers = tuple(location.server for location in self.locations)
        self.dtype = DataType.UINT8
        self.reduction = Reduction.SUM
        self._memory = [MemoryPlan(0, 0)] * world_size
        self._connections: list[Connection] = []
        self._flow_connections: list[int] = []
        self._tags: list[int] = []
        self._local_tags: Counter[tuple[int, int]] = Counter()
        self._verbs: dict[int, Operation] = {}
        self._qp_counts = [0] * world_size
        self._ops: list[list[Op]] = [[] for _ in range(world_size)]
        self._op_count = 0

    @property
    def gpu_ranks(self) -> tuple[int, ...]:
        """The GPUs of all jobs, in the order of their ranks; workloads use no others by default.

        What a workload calls rank r is the r-th of them.
        """
        return tuple(rank for job in self.jobs for rank in job)

    def ranks_of(self, role: RankRole) -> tuple[int, ...]:
        """The ranks of a role, in order."""
        return ranks_of(self.locations, role)

    @property
    def server_of(self) -> tuple[str, ...]:
        """The server of every rank; empty where the place does not matter."""
        return self._servers

    def memory(self, rank: int, *, initialised: int, total: int) -> None:
        """Give a rank its memory, in bytes."""
        self._memory[rank] = MemoryPlan(total, initialised)

    def connect(self, source: int, destination: int, queue_pairs: int | None = None) -> int:
        """Connect two ranks by as many pairs of queue pairs as ``qp_scaling`` says, or that many.

        Returns the index of the first one, which stands for the group.
        """
        if source == destination:
            raise PlanError(f"rank {source} cannot be connected with itself")
        group = len(self._connections)
        turns = [self._first_nic_port(rank, group) for rank in (source, destination)]
        for position in range(queue_pairs or self.qp_scaling.qps_per_connection):
            ports = [turn + position for turn in turns]
            self._add_connection(source, destination, group, ports)
        return group

    def _add_connection(
        self, source: int, destination: int, group: int, nic_ports: Sequence[int]
    ) -> None:
        seed, index = self.seed, len(self._connections)
        if index >= CONNECTION_LIMIT:
            raise PlanError(
                f"more than {CONNECTION_LIMIT} pairs of queue pairs; "
                "allowed: fewer ranks, flows or queue pairs per connection"
            )
        source_qp, destination_qp = self._next_qp_num(source), self._next_qp_num(destination)
        source_ports, destination_ports = (
            self.locations[rank].nic_ports for rank in (source, destination)
        )
        self._connections.append(
            Connection(
                index=index,
                source_rank=source,
                destination_rank=destination,
                source_qp_num=source_qp,
                destination_qp_num=destination_qp,
                source_psn=draw(seed, "psn", source, source_qp) & _PSN_MASK,
                destination_psn=draw(seed, "psn", destination, destination_qp) & _PSN_MASK,
                source_port=self._source_port(source, source_qp, destination),
                reverse_source_port=self._source_port(destination, destination_qp, source),
                group=group,
                source_nic_port=nic_ports[0] % source_ports,
                destination_nic_port=nic_ports[1] % destination_ports,
            )
        )
        self._tags.append(0)

    def _first_nic_port(self, rank: int, group: int) -> int:
        """The NIC port of a group's first queue pair; the others take turns after it.

        A bond of two ports hashes; within a group they alternate, so that both are used.
        """
        if self.locations[rank].nic_ports == 1:
            return 0
        return draw(self.seed, "nic_port", rank, group) % self.locations[rank].nic_ports

    def flow(self, connection: int) -> int:
        """Add a flow on a connection; returns its index. Messages fill in its size and start."""
        self._flow_connections.append(connection)
        return len(self._flow_connections) - 1

    def message(
        self,
        flow: int,
        *,
        operation: Operation,
        length: int,
        offset: int,
        remote_offset: int,
        depends_on: Sequence[int] = (),
        start: float = 0.0,
    ) -> tuple[int, int | None]:
        """Add one message of a flow: its SEND and, unless the verb tells nobody, its RECEIVE.

        ``depends_on`` holds for the SEND. Returns the SEND's op_id at the source and the
        RECEIVE's at the destination (None without one). Raises PlanError for a bad length, and for
        a verb that the message strategy cannot carry.
        """
        self._check_verb(self._flow_connections[flow], operation)
        if not 0 < length <= MAX_MESSAGE_BYTES:
            raise PlanError(f"a message of {length} bytes; allowed: 1 to {MAX_MESSAGE_BYTES}")
        connection = self._connections[self._flow_connections[flow]]
        tag = self._tags[connection.index]
        self._tags[connection.index] += 1
        send = self._add(
            connection.source_rank,
            OpKind.SEND,
            offset=offset,
            length=length,
            depends_on=tuple(depends_on),
            start=start,
            connection=connection.index,
            flow=flow,
            tag=tag,
            operation=operation,
            remote_offset=remote_offset,
        )
        if not operation.notifies_receiver:
            return send, None
        receive = self._add(
            connection.destination_rank,
            OpKind.RECEIVE,
            offset=remote_offset,
            length=length,
            connection=connection.index,
            flow=flow,
            tag=tag,
            operation=operation,
        )
        return send, receive

    def reduce(
        self, rank: int, *, offset: int, source_offset: int, length: int, depends_on: Sequence[int]
    ) -> int:
        """Add ``memory[offset] = memory[offset] <reduction> memory[source_offset]``."""
        return self._add(
            rank, OpKind.REDUCE, offset=offset, length=length, source_offset=source_offset,
            depends_on=tuple(depends_on),
        )  # fmt: skip

    def copy(
        self,
        rank: int,
        *,
        offset: int,
        source_offset: int,
        length: int,
        depends_on: Sequence[int] = (),
    ) -> int:
        """Add ``memory[offset] = memory[source_offset]``."""
        return self._add(
            rank, OpKind.COPY, offset=offset, length=length, source_offset=source_offset,
            depends_on=tuple(depends_on),
        )  # fmt: skip

    def compute(
        self,
        rank: int,
        *,
        duration: float,
        depends_on: Sequence[int] = (),
        start: float = 0.0,
        name: str = "",
    ) -> int:
        """Add work that takes ``duration`` seconds of emulated time; returns its op_id.

        A rank's computations do not slow each other down: those of one stream must depend on each
        other. Raises PlanError for a duration that is negative or not finite.
        """
        if not 0 <= duration < math.inf:
            raise PlanError(f"duration: {duration} s of rank {rank}; allowed: 0 or more")
        return self._add(
            rank, OpKind.COMPUTE, offset=0, length=0, depends_on=tuple(depends_on), start=start,
            duration=duration, name=name,
        )  # fmt: skip

    def local_message(
        self,
        source: int,
        destination: int,
        *,
        length: int,
        offset: int,
        remote_offset: int,
        depends_on: Sequence[int] = (),
        start: float = 0.0,
    ) -> tuple[int, int]:
        """Add a transfer between two GPUs of one server, which crosses NVLink and no NIC.

        ``depends_on`` holds for the LOCAL_SEND. Returns its op_id at the source and that of the
        LOCAL_RECEIVE at the destination. Raises PlanError for ranks of different servers.
        """
        servers = self.server_of
        if source == destination or servers[source] != servers[destination] or not servers[source]:
            raise PlanError(
                f"a local message from rank {source} to {destination}, which are on "
                f"{servers[source] or 'no server'} and {servers[destination] or 'no server'}; "
                "allowed: two GPUs of one server"
            )
        if length < 1:
            raise PlanError(f"a local message of {length} bytes; allowed: 1 or more")
        tag = self._local_tags[source, destination]
        self._local_tags[source, destination] += 1
        send = self._add(
            source, OpKind.LOCAL_SEND, offset=offset, length=length, depends_on=tuple(depends_on),
            start=start, tag=tag, remote_offset=remote_offset, peer=destination,
        )  # fmt: skip
        receive = self._add(
            destination, OpKind.LOCAL_RECEIVE, offset=remote_offset, length=length, tag=tag,
            peer=source,
        )  # fmt: skip
        return send, receive

    def build(self) -> Plan:
        """The finished plan. Raises PlanError for an empty flow or a memory overrun."""
        self._check_memory()
        return Plan(
            workload=self.workload,
            parameters=self.parameters,
            world_size=self.world_size,
            jobs=self.jobs,
            seed=self.seed,
            qp_scaling=self.qp_scaling,
            dtype=self.dtype,
            reduction=self.reduction,
            memory=tuple(self._memory),
            connections=tuple(self._connections),
            flows=self._flows(),
            ops=tuple(tuple(ops) for ops in self._ops),
            servers=self.server_of,
        )

    def _add(self, rank: int, kind: OpKind, **fields: Any) -> int:
        self._op_count += 1
        if self._op_count > OPERATION_LIMIT:
            raise PlanError(
                f"more than {OPERATION_LIMIT} operations (each message sent or received is one); "
                "allowed: fewer ranks or messages"
            )
        op_id = len(self._ops[rank])
        self._ops[rank].append(Op(op_id=op_id, rank=rank, kind=kind, **fields))
        return op_id

    def _next_qp_num(self, rank: int) -> int:
        # Adapters hand out numbers in sequence; only where the sequence begins is drawn.
        first = draw(self.seed, "qp_num", rank)
        number = _FIRST_QP_NUM + (first + self._qp_counts[rank]) % _QP_NUM_SPAN
        self._qp_counts[rank] += 1
        return number

    def _check_verb(self, connection: int, operation: Operation) -> None:
        if self._verbs.setdefault(connection, operation) is not operation:
            # whose receive request is whose would depend on which of them comes first
            raise PlanError(
                f"operation: {operation} on a connection that carries "
                f"{self._verbs[connection]}; allowed: one verb per connection"
            )
        if self.qp_scaling.message_strategy is MessageStrategy.LEAST_OUTSTANDING and not (
            operation.is_write
        ):
            # a SEND would need a receive request with the right buffer on the right queue pair
            raise PlanError(
                f"operation: {operation} does not go with message_strategy least-outstanding, "
                "where the sender alone knows the queue pair; allowed: write, write-with-imm"
            )

    def _source_port(self, rank: int, qp_num: int, peer: int) -> int:
        if self.qp_scaling.source_port_policy is SourcePortPolicy.PER_PAIR:
            bits = draw(self.seed, "port", "pair", rank, peer)
        else:
            bits = draw(self.seed, "port", "qp", rank, qp_num)
        return source_port_of(bits)

    def _flows(self) -> tuple[Flow, ...]:
        count = len(self._flow_connections)
        messages, payload, start = [0] * count, [0] * count, [float("inf")] * count
        for op in (op for ops in self._ops for op in ops if op.kind is OpKind.SEND):
            messages[op.flow] += 1
            payload[op.flow] += op.length
            start[op.flow] = min(start[op.flow], op.start)
        if 0 in messages:
            raise PlanError(f"flow {messages.index(0)} has no messages")
        return tuple(
            Flow(i, self._flow_connections[i], messages[i], payload[i], start[i])
            for i in range(count)
        )

    def _check_memory(self) -> None:
        for op in (op for ops in self._ops for op in ops):
            limit = self._memory[op.rank].total
            ends = [op.offset, op.source_offset if op.kind.has_memory_source else 0]
            if min(ends) < 0 or max(ends) + op.length > limit:
                raise PlanError(f"{op} leaves the {limit} bytes of memory of rank {op.rank}")
            if not op.kind.sends:
                continue
            peer = op.peer
            if op.kind is OpKind.SEND:
                peer = self._connections[op.connection].destination_rank
            if not 0 <= op.remote_offset <= self._memory[peer].total - op.length:
                raise PlanError(f"{op} leaves the memory of rank {peer}")
