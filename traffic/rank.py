"""One rank: its memory, its queue pairs and its part of the plan, on top of one NIC. Sans-IO."""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from traffic.executor import RankExecutor, apply
from traffic.memory import AccessFlags, ProtectionDomain
from traffic.message_strategies import MessageScheduler, message_scheduler
from traffic.nic import Nic
from traffic.nic_ports import NicPorts
from traffic.nvlink import NvSwitch
from traffic.payload import initial_memory
from traffic.plan import Op, Operation, OpKind, Plan, QueuePairPlan
from traffic.qp import PathAttributes, QueuePair
from traffic.settings import PortSettings, TransportSettings
from traffic.source_ports import source_port_cycle
from traffic.verbs import (
    CompletionQueue,
    QpType,
    RecvWr,
    SendWr,
    WcStatus,
    WorkCompletion,
    WrOpcode,
)
from traffic.workloads import verify_rank

TRACE_LIMIT = 200_000
"""Events kept per traced queue pair; 200 000 are some 30 MB while the run lasts."""

_OPCODES = {
    Operation.WRITE: WrOpcode.RDMA_WRITE,
    Operation.WRITE_WITH_IMM: WrOpcode.RDMA_WRITE_WITH_IMM,
    Operation.SEND: WrOpcode.SEND,
    Operation.SEND_WITH_IMM: WrOpcode.SEND_WITH_IMM,
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What one end of a connection tells the other, out of band: address, key, place of memory."""

    connection: int
    rank: int
    qp_num: int
    psn: int
    address: str
    rkey: int
    virtual_address: int


@dataclass(slots=True)
class FlowProgress:
    """Times in emulated seconds; ``status`` is the worst completion status of the flow."""

    start: float = math.inf
    finish: float = -math.inf
    completed: int = 0
    status: str = WcStatus.SUCCESS.verbs_name


@dataclass
class ConnectionReport:
    """One end of a connection after the traffic: counters and, if asked for, its packet trace."""

    connection: int
    rank: int
    counters: dict[str, int]
    trace: list[tuple[float, str, int]] = field(default_factory=list)


@dataclass
class _Group:
    """The queue pairs of one connection, and who spreads its messages over them."""

    queue_pairs: list[QueuePair]
    peer: Endpoint
    scheduler: MessageScheduler
    positions: dict[int, int] = field(default_factory=dict)
    """By QP number."""
    receives: dict[int, int] = field(default_factory=dict)
    """Tag -> RECEIVE, which is what immediate data names."""
    next_tag: int = 0
    """Of the next SEND: each takes the buffer at the head of the receive queue, so they are posted
    in order. A WRITE brings its address, and its immediate data says which message came."""
    early: dict[int, Op] = field(default_factory=dict)
    """Tag -> SEND that is ready before its turn."""


class Rank:
    """The GPU's side of one NIC: posts work, polls completions, computes.

    ``ports`` and ``nics`` are the ports of the NIC, in order. ``nvlink`` connects it with the other
    GPUs of its server, which is only needed where the plan says that they talk to each other.
    """

    def __init__(
        self,
        plan: Plan,
        ports: Sequence[PortSettings],
        transport: TransportSettings,
        nics: Sequence[Nic],
        traced: frozenset[int],
        nvlink: NvSwitch | None = None,
    ) -> None:
        self.plan = plan
        self.rank = ports[0].rank
        self.address = ports[0].address
        self.nic = NicPorts(nics, [port.gateway_mac for port in ports])
        self.executor = RankExecutor(plan, self.rank)
        self._ports = tuple(ports)
        self._transport = transport
        # a plan posts all it can at once; a real queue of that depth would only delay the posting
        self._most_work = max(1, len(self.executor.ops))
        # one byte at least: a region of no length cannot be registered
        self.memory = (
            initial_memory(plan, self.rank).data.cast("B")
            if (plan.memory[self.rank].total)
            else memoryview(bytearray(1))
        )
        self._domain = ProtectionDomain()
        self._region = self._domain.reg_mr(
            self.memory, AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE
        )
        self._completions = CompletionQueue()
        self._queue_pairs: dict[int, QueuePair] = {}
        self._plans: dict[int, QueuePairPlan] = {}
        self._groups: dict[int, _Group] = {}
        self._group_of: dict[int, _Group] = {}
        self._unfinished: dict[int, int] = {}
        self._traces: dict[int, list[tuple[float, str, int]]] = {}
        self._awaited: set[int] = set()
        self._arrived: set[int] = set()
        self.notified = False
        """Whether NVLink has told it something since its last ``step``."""
        self._nvlink = nvlink
        if nvlink is not None:
            nvlink.attach(self)
        self._local_receives = {
            (op.peer, op.tag): op.op_id
            for op in self.executor.ops
            if op.kind is OpKind.LOCAL_RECEIVE
        }
        self._computing: list[tuple[float, int]] = []
        self.timer_lateness = array("d")
        """For every computation and message over NVLink: seconds by which it was seen too late."""
        self.flows: dict[int, FlowProgress] = {}
        self.failed: str | None = None
        for pair in plan.queue_pairs(self.rank):
            self._create(pair, traced=pair.connection in traced)

    def _create(self, pair: QueuePairPlan, *, traced: bool) -> None:
        settings = self._transport
        connection = self.plan.connections[pair.connection]
        cycle = source_port_cycle(self.plan, connection)
        qp = QueuePair(
            qp_num=pair.qp_num,
            qp_type=QpType.UC if settings.unreliable else QpType.RC,
            pd=self._domain,
            send_cq=self._completions,
            recv_cq=self._completions,
            recovery=settings.recovery,
            max_send_wr=self._most_work,
            max_recv_wr=self._most_work,
            send_window=settings.send_window,
            ack_interval=settings.ack_interval,
            # who only acknowledges has no use for it
            choose_source_port=(
                cycle.next if cycle is not None and connection.source_rank == self.rank else None
            ),
            reordering=settings.reordering,
            port=pair.nic_port,
        )
        if traced:
            events = self._traces[pair.connection] = []

            def trace(now: float, event: str, psn: int) -> None:
                if len(events) < TRACE_LIMIT:
                    events.append((now, event, psn))

            qp.trace = trace
        self._queue_pairs[pair.connection] = qp
        self._plans[pair.connection] = pair
        self.nic.add_queue_pair(qp)

    def endpoints(self) -> list[Endpoint]:
        """What the peers need to know of this rank's queue pairs."""
        return [
            Endpoint(
                connection=pair.connection,
                rank=self.rank,
                qp_num=pair.qp_num,
                psn=pair.sq_psn,
                address=self.address,
                rkey=self._region.rkey,
                virtual_address=self._region.virtual_address,
            )
            for pair in self._plans.values()
        ]

    def connect(self, peers: dict[int, Endpoint]) -> None:
        """Bring all queue pairs from RESET to RTS, by connection, and post all receives."""
        settings = self._transport
        for connection, qp in self._queue_pairs.items():
            pair, peer = self._plans[connection], peers[connection]
            port = self._ports[pair.nic_port]
            qp.to_init()
            qp.to_rtr(
                path=PathAttributes(
                    source_mac=port.mac,
                    dest_mac=port.gateway_mac,
                    source_ip=port.address,
                    dest_ip=peer.address,
                    udp_source_port=pair.source_port,
                ),
                path_mtu=settings.path_mtu,
                dest_qp_num=peer.qp_num,
                rq_psn=peer.psn,
                min_rnr_timer=settings.min_rnr_timer,
            )
            qp.to_rts(
                sq_psn=pair.sq_psn,
                timeout=settings.timeout,
                retry_cnt=settings.retry_cnt,
                rnr_retry=settings.rnr_retry,
            )
            self._join_group(connection, qp, peer)
        self._post_receives()

    def _join_group(self, connection: int, qp: QueuePair, peer: Endpoint) -> None:
        members = self.plan.group(connection)
        group = self._groups.get(members[0])
        if group is None:
            scheduler = message_scheduler(
                self.plan.qp_scaling.message_strategy,
                queue_pairs=len(members),
                path_mtu=self._transport.path_mtu,
            )
            group = self._groups[members[0]] = _Group([], peer, scheduler)
        group.positions[qp.qp_num] = len(group.queue_pairs)
        group.queue_pairs.append(qp)
        self._group_of[qp.qp_num] = group

    def _post_receives(self) -> None:
        receives = [op for op in self.executor.ops if op.kind is OpKind.RECEIVE]
        for op in sorted(receives, key=lambda op: op.tag):
            group = self._groups[op.connection]
            group.receives[op.tag] = op.op_id
            if not group.scheduler.receiver_knows:
                for qp in group.queue_pairs:  # any of them may bring it
                    qp.post_recv(RecvWr(wr_id=op.op_id))
                continue
            is_write = op.operation is not None and op.operation.is_write
            parts = group.scheduler.parts(op.tag, op.length)
            self._unfinished[op.op_id] = len(parts)
            for part in parts:
                sge = None if is_write else self._region.sge(op.offset + part.offset, part.length)
                group.queue_pairs[part.position].post_recv(RecvWr(wr_id=op.op_id, sge=sge))

    def step(self, now: float) -> bool:
        """Handle completions and begin what may begin; returns whether anything happened."""
        happened = False
        self.notified = False
        while self._computing and self._computing[0][0] <= now:
            due, op_id = heapq.heappop(self._computing)
            self.timer_lateness.append(now - due)
            self.executor.complete(op_id, now)
            happened = True
        while True:
            completions = self._completions.poll()
            for completion in completions:
                self._complete(completion, now)
            ready = self.executor.ready(now)
            for op in ready:
                self._begin(op, now)
            if not completions and not ready:
                return happened
            happened = True

    def _begin(self, op: Op, now: float) -> None:
        if op.kind is OpKind.SEND:
            self._begin_send(op, now)
        elif op.kind in (OpKind.RECEIVE, OpKind.LOCAL_RECEIVE):
            if op.op_id in self._arrived:
                self._arrived.discard(op.op_id)
                self.executor.complete(op.op_id, now)
            else:
                self._awaited.add(op.op_id)
        elif op.kind is OpKind.LOCAL_SEND:
            assert self._nvlink is not None
            self._nvlink.send(op, now)
        elif op.kind is OpKind.COMPUTE:
            heapq.heappush(self._computing, (now + op.duration, op.op_id))
        else:
            apply(op, self.memory, dtype=self.plan.dtype, reduction=self.plan.reduction)
            self.executor.complete(op.op_id, now)

    def _begin_send(self, op: Op, now: float) -> None:
        assert op.operation is not None
        group = self._groups[op.connection]
        if op.operation.is_write:
            self._post_send(op, op.operation, group, now)
            return
        group.early[op.tag] = op
        while (following := group.early.pop(group.next_tag, None)) is not None:
            group.next_tag += 1
            self._post_send(following, op.operation, group, now)

    def _post_send(self, op: Op, operation: Operation, group: _Group, now: float) -> None:
        progress = self.flows.setdefault(op.flow, FlowProgress())
        progress.start = min(progress.start, now)
        is_write = operation.is_write
        parts = group.scheduler.parts(op.tag, op.length)
        self._unfinished[op.op_id] = len(parts)
        for part in parts:
            target = group.peer.virtual_address + op.remote_offset + part.offset
            qp = group.queue_pairs[part.position]
            qp.post_send(
                SendWr(
                    wr_id=op.op_id,
                    opcode=_OPCODES[operation],
                    sge=self._region.sge(op.offset + part.offset, part.length),
                    remote_addr=target if is_write else 0,
                    rkey=group.peer.rkey if is_write else 0,
                    imm_data=op.tag if operation.has_immediate else None,
                )
            )
            self.nic.activate(qp)

    def _complete(self, completion: WorkCompletion, now: float) -> None:
        op = self.executor.ops[completion.wr_id]
        if completion.status is not WcStatus.SUCCESS:
            self._fail(op, completion.status)
            return
        group = self._group_of[completion.qp_num]
        if op.kind is OpKind.SEND:
            group.scheduler.completed(group.positions[completion.qp_num], completion.byte_len)
        elif completion.imm_data is not None:
            op = self.executor.ops[group.receives[completion.imm_data]]
        unfinished = self._unfinished.pop(op.op_id, 1) - 1
        if unfinished:
            self._unfinished[op.op_id] = unfinished
            return
        if op.kind is OpKind.SEND:
            progress = self.flows[op.flow]
            progress.finish = now
            progress.completed += 1
            self.executor.complete(op.op_id, now)
            return
        self._received(op.op_id, now)

    def _received(self, op_id: int, now: float) -> None:
        """A message is in memory, whether or not somebody waits for it yet."""
        if op_id in self._awaited:
            self._awaited.discard(op_id)
            self.executor.complete(op_id, now)
        else:
            self._arrived.add(op_id)

    def local_sent(self, op_id: int, now: float) -> None:
        """A LOCAL_SEND is complete."""
        self.notified = True
        self.executor.complete(op_id, now)

    def local_received(self, source: int, tag: int, now: float, lateness: float) -> None:
        """Message ``tag`` of ``source`` is in memory, ``lateness`` seconds after it was due."""
        self.notified = True
        self.timer_lateness.append(lateness)
        self._received(self._local_receives[source, tag], now)

    def _fail(self, op: Op, status: WcStatus) -> None:
        # what was flushed because of an earlier error says nothing new
        if self.failed is None or status is not WcStatus.WR_FLUSH_ERR:
            self.failed = status.verbs_name
        if op.kind is OpKind.SEND:
            progress = self.flows[op.flow]
            if progress.status == WcStatus.SUCCESS.verbs_name:
                progress.status = status.verbs_name

    @property
    def done(self) -> bool:
        """Whether all operations are complete."""
        return self.executor.done

    def next_event(self) -> float:
        """Emulated time of the next thing to do without a packet's arriving; infinity if none."""
        start = self.executor.next_start()
        event = min(self.nic.next_event(), math.inf if start is None else start)
        return min(event, self._computing[0][0]) if self._computing else event

    def verify(self) -> int:
        """Number of wrong elements in this rank's memory."""
        return verify_rank(self.plan, self.rank, self.memory)

    def connection_reports(self) -> list[ConnectionReport]:
        """Counters and traces of all queue pairs."""
        return [
            ConnectionReport(
                connection, self.rank, qp.counters.as_dict(), self._traces.get(connection, [])
            )
            for connection, qp in self._queue_pairs.items()
        ]
