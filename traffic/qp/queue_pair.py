"""The queue pair: state machine, work queues, and the passage between packets and verbs.

Sans-IO: the owner hands in received packets and the time, and takes out frames, completions and
asynchronous events. Nothing here reads a clock or a socket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from traffic.codec import FrameTemplate, Packet, ipv4_int
from traffic.memory import AccessFlags, ProtectionDomain
from traffic.opcodes import RC, REQUEST_FLAGS, TRANSPORT_SHIFT, Operation
from traffic.qp.attributes import (
    PathAttributes,
    QpAttributes,
    Reordering,
    apply_attributes,
    check_transition,
)
from traffic.qp.requester import Requester
from traffic.qp.responder import Responder
from traffic.qp.trace import TraceHook
from traffic.recovery import create_recovery
from traffic.verbs import (
    AsyncEvent,
    CompletionQueue,
    QpCounters,
    QpState,
    QpType,
    QueueFullError,
    RecvWr,
    SendWr,
    VerbsError,
    WcOpcode,
    WcStatus,
    WorkCompletion,
    WrOpcode,
)

_ACKNOWLEDGE = RC | Operation.ACKNOWLEDGE
_MAX_HEADERS = 32  # extension headers, or AETH and NAK details
_RECEIVING = frozenset({QpState.RTR, QpState.RTS, QpState.SQE})
_IN_ORDER = Reordering()


class QueuePair:
    """One end of an RC or UC connection.

    ``recovery`` names a strategy (see ``traffic.recovery``; UC takes "none", its default).
    ``send_window`` limits the packets in flight, None leaves it to the recovery. A requester asks
    for an ACK with the last packet of each message and at least every ``ack_interval`` packets (64
    as in Linux, drivers/infiniband/sw/rxe/rxe_param.h, RXE_MAX_PKT_PER_ACK).
    ``choose_source_port`` is asked for every request packet, with the time, for its UDP source
    port; by default all have the path's. ``reordering`` is for recoveries that tell late packets
    from lost ones. Raises ValueError for an unknown recovery or a number out of range.

    ``port`` is the port of its NIC that it sends from, counted from 0.
    """

    __slots__ = (
        "_ack_interval",
        "_choose_source_port",
        "_peer_ip",
        "_recovery_name",
        "_recv_queue",
        "_reordering",
        "_request_template",
        "_requester",
        "_responder",
        "_response_template",
        "_send_window",
        "_trace",
        "async_events",
        "attributes",
        "counters",
        "max_recv_wr",
        "max_send_wr",
        "pd",
        "port",
        "qp_num",
        "qp_type",
        "recv_cq",
        "send_cq",
        "state",
    )

    def __init__(
        self,
        *,
        qp_num: int,
        qp_type: QpType,
        pd: ProtectionDomain,
        send_cq: CompletionQueue,
        recv_cq: CompletionQueue,
        recovery: str | None = None,
        max_send_wr: int = 1024,
        max_recv_wr: int = 1024,
        send_window: int | None = None,
        ack_interval: int = 64,
        choose_source_port: Callable[[float], int] | None = None,
        reordering: Reordering = _IN_ORDER,
        port: int = 0,
    ) -> None:
        if not 0 <= qp_num <= 0xFFFFFF:
            raise ValueError(f"qp_num {qp_num!r} is not in 0..{0xFFFFFF}")
        if send_window is not None and send_window < 1:
            raise ValueError(f"send_window {send_window!r} must be at least 1 packet")
        if ack_interval < 1:
            raise ValueError(f"ack_interval {ack_interval!r} must be at least 1 packet")
        self.qp_num = qp_num
        self.qp_type = qp_type
        self.pd = pd
        self.send_cq = send_cq
        self.recv_cq = recv_cq
        self.max_send_wr = max_send_wr
        self.max_recv_wr = max_recv_wr
        self.attributes = QpAttributes()
        self.counters = QpCounters()
        self.async_events: deque[AsyncEvent] = deque()
        self.state = QpState.RESET
        self._recovery_name = recovery or ("go-back-n" if qp_type is QpType.RC else "none")
        create_recovery(self._recovery_name, qp_type=qp_type)
        self._send_window = send_window
        self._ack_interval = ack_interval
        self._choose_source_port = choose_source_port
        self._reordering = reordering
        self.port = port
        self._trace: TraceHook | None = None
        self._reset()

    def _reset(self) -> None:
        self.attributes = QpAttributes()
        self._recv_queue: deque[RecvWr] = deque()
        self._request_template: FrameTemplate | None = None
        self._response_template: FrameTemplate | None = None
        self._requester: Requester | None = None
        self._responder: Responder | None = None
        self._peer_ip = 0

    # state

    def modify(self, state: QpState, **attributes: Any) -> None:
        """``ibv_modify_qp``: go to ``state`` and set attributes, as ``QpAttributes`` names them.

        Raises VerbsError if there is no such transition, or an attribute is missing or not allowed
        in it, and ValueError if one is out of range; nothing has then changed.
        """
        old = self.state
        check_transition(self.qp_type, old, state, attributes)
        apply_attributes(self.attributes, attributes)
        if state is QpState.RESET:
            self._reset()
        elif state is QpState.ERR:
            self._enter_error()
        elif state is QpState.RTR:
            self._start_responder()
        elif state is QpState.RTS and old is QpState.RTR:
            self._start_requester()
        self.state = state

    def to_init(self, *, qp_access_flags: AccessFlags | None = None) -> None:
        """RESET -> INIT; receive work requests may be posted from here on."""
        if qp_access_flags is None:
            self.modify(QpState.INIT)
        else:
            self.modify(QpState.INIT, qp_access_flags=qp_access_flags)

    def to_rtr(
        self,
        *,
        path: PathAttributes,
        path_mtu: int,
        dest_qp_num: int,
        rq_psn: int,
        min_rnr_timer: int = 12,
    ) -> None:
        """INIT -> RTR: ready to receive from the peer. ``min_rnr_timer`` has no meaning for UC."""
        reliable = {"min_rnr_timer": min_rnr_timer} if self.qp_type is QpType.RC else {}
        self.modify(
            QpState.RTR,
            path=path,
            path_mtu=path_mtu,
            dest_qp_num=dest_qp_num,
            rq_psn=rq_psn,
            **reliable,
        )

    def to_rts(
        self, *, sq_psn: int, timeout: int = 20, retry_cnt: int = 7, rnr_retry: int = 7
    ) -> None:
        """RTR -> RTS: ready to send. Only ``sq_psn`` has a meaning for UC."""
        reliable = {"timeout": timeout, "retry_cnt": retry_cnt, "rnr_retry": rnr_retry}
        self.modify(QpState.RTS, sq_psn=sq_psn, **(reliable if self.qp_type is QpType.RC else {}))

    def _template(self, path: PathAttributes, tos: int, max_payload: int) -> FrameTemplate:
        return FrameTemplate(
            source_mac=path.source_mac,
            dest_mac=path.dest_mac,
            source_ip=path.source_ip,
            dest_ip=path.dest_ip,
            source_port=path.udp_source_port,
            dest_qp=self.attributes.dest_qp_num,
            tos=tos,
            ttl=path.ttl,
            max_body=_MAX_HEADERS + max_payload,
        )

    def _start_responder(self) -> None:
        path = self.attributes.path
        assert path is not None
        self._peer_ip = ipv4_int(path.dest_ip)
        self._request_template = self._template(path, path.tos, self.attributes.path_mtu)
        self._response_template = self._template(path, path.control_tos, 0)
        self._responder = Responder(
            qp_num=self.qp_num,
            qp_type=self.qp_type,
            attributes=self.attributes,
            template=self._response_template,
            recovery=create_recovery(self._recovery_name, qp_type=self.qp_type)[1],
            pd=self.pd,
            recv_queue=self._recv_queue,
            recv_cq=self.recv_cq,
            counters=self.counters,
            on_error=self._on_responder_error,
        )
        self._responder.trace = self._trace

    def _start_requester(self) -> None:
        assert self._request_template is not None
        recovery = create_recovery(self._recovery_name, qp_type=self.qp_type)[0]
        recovery.reordering_threshold = self._reordering.threshold
        self._requester = Requester(
            qp_num=self.qp_num,
            qp_type=self.qp_type,
            attributes=self.attributes,
            template=self._request_template,
            recovery=recovery,
            send_cq=self.send_cq,
            counters=self.counters,
            send_window=self._send_window,
            ack_interval=self._ack_interval,
            choose_source_port=self._choose_source_port,
            reordering_timeout=self._reordering.timeout,
            on_error=self._on_requester_error,
        )
        self._requester.trace = self._trace

    def _on_responder_error(self, event: AsyncEvent) -> None:
        self.async_events.append(event)
        self._enter_error()

    def _on_requester_error(self) -> None:
        """A failed request stops RC; in UC, which has no responses to lose, only its send queue."""
        if self.qp_type is QpType.UC:
            self.state = QpState.SQE
        else:
            self._enter_error()

    def _enter_error(self) -> None:
        """Flush both queues. A NAK that is queued is still sent: it tells the peer why."""
        self.state = QpState.ERR
        if self._requester is not None:
            self._requester.flush()
        if self._responder is not None:
            self._responder.flush()
        while self._recv_queue:
            self._flush_recv(self._recv_queue.popleft())

    def migrate(self, port: int, dest_mac: str) -> None:
        """Go on from another port of the NIC, whose next hop has ``dest_mac``.

        As in the IBTA's automatic path migration (vol. 1, 17.2.8), but between ports that share
        addresses, so that the peer needs to know nothing. Raises VerbsError before RTR.
        """
        if self._request_template is None or self._response_template is None:
            raise VerbsError(f"no path in state {self.state.name}")
        self.port = port
        self.counters.path_migrations += 1
        for template in (self._request_template, self._response_template):
            template.dest_mac = dest_mac
            template.migrated = True
        self.async_events.append(AsyncEvent.PATH_MIG)

    def ask_to_follow(self) -> None:
        """Stay on this path, and ask the peer to answer to the port at which requests arrive.

        For what arrives may have been answered over a path that failed. Raises VerbsError before
        RTR.
        """
        if self._request_template is None:
            raise VerbsError(f"no path in state {self.state.name}")
        self._request_template.migrated = True

    # work requests

    def post_send(self, wr: SendWr) -> None:
        """``ibv_post_send``. In ERR and SQE the request completes with WR_FLUSH_ERR.

        Raises VerbsError before RTS, or if immediate data and opcode disagree, and QueueFullError
        if ``max_send_wr`` requests are outstanding. A bad lkey is reported by the completion.
        """
        with_imm = wr.opcode in (WrOpcode.SEND_WITH_IMM, WrOpcode.RDMA_WRITE_WITH_IMM)
        if with_imm != (wr.imm_data is not None):
            raise VerbsError(f"{wr.opcode.name} with imm_data {wr.imm_data!r}")
        if self.state in (QpState.ERR, QpState.SQE):
            self._flush_send(wr)
            return
        requester = self._requester
        if requester is None:
            raise VerbsError(f"post_send in state {self.state.name}")
        if requester.outstanding >= self.max_send_wr:
            raise QueueFullError(f"{self.max_send_wr} send work requests are outstanding")
        requester.post(wr, None if wr.sge is None else self.pd.local(wr.sge))

    def post_recv(self, wr: RecvWr) -> None:
        """``ibv_post_recv``. In ERR the request completes with WR_FLUSH_ERR.

        Raises VerbsError in RESET and QueueFullError if ``max_recv_wr`` requests are waiting.
        """
        if self.state is QpState.RESET:
            raise VerbsError("post_recv in state RESET")
        if self.state is QpState.ERR:
            self._flush_recv(wr)
            return
        if len(self._recv_queue) >= self.max_recv_wr:
            raise QueueFullError(f"{self.max_recv_wr} receive work requests are waiting")
        self._recv_queue.append(wr)

    def _flush_send(self, wr: SendWr) -> None:
        send = wr.opcode in (WrOpcode.SEND, WrOpcode.SEND_WITH_IMM)
        opcode = WcOpcode.SEND if send else WcOpcode.RDMA_WRITE
        self.send_cq.push(WorkCompletion(wr.wr_id, WcStatus.WR_FLUSH_ERR, opcode, self.qp_num))

    def _flush_recv(self, wr: RecvWr) -> None:
        self.recv_cq.push(
            WorkCompletion(wr.wr_id, WcStatus.WR_FLUSH_ERR, WcOpcode.RECV, self.qp_num)
        )

    # packets

    def receive(self, packet: Packet, now: float) -> None:
        """Take in a packet addressed to this queue pair, at ``now`` seconds of emulated time.

        Packets of another peer or transport service, and all before RTR or after an error, are
        dropped without a trace in the counters.
        """
        if self.state not in _RECEIVING or packet.source_ip != self._peer_ip:
            return
        opcode = packet.opcode
        flags = REQUEST_FLAGS[opcode]
        if flags:
            if opcode >> TRANSPORT_SHIFT == self.qp_type and self._responder is not None:
                self._responder.receive(packet, flags, now)
        elif opcode == _ACKNOWLEDGE and self.qp_type is QpType.RC and self._requester is not None:
            self._requester.receive(packet, now)

    @property
    def has_response(self) -> bool:
        """Whether an ACK or NAK waits to be sent."""
        responder = self._responder
        return responder is not None and bool(responder.responses)

    def has_request(self, now: float) -> bool:
        """Whether a request packet may be sent now."""
        requester = self._requester
        return requester is not None and requester.ready

    def next_packet(self, now: float) -> memoryview | None:
        """One Ethernet frame to send, responses first; None if there is none.

        The frame is valid until the next call.
        """
        responder = self._responder
        if responder is None:
            return None
        if responder.responses:
            return responder.next_response()
        requester = self._requester
        if requester is None:
            return None
        return requester.next_packet(now)

    def next_timeout(self) -> float | None:
        """When, in emulated seconds, ``handle_timeout`` wants to be called; None if never."""
        requester = self._requester
        return None if requester is None else requester.next_timeout()

    def handle_timeout(self, now: float) -> None:
        """Act on a timer that has expired. Calling it early does nothing."""
        if self._requester is not None:
            self._requester.handle_timeout(now)

    # instruments

    @property
    def trace(self) -> TraceHook | None:
        """Called with time, event and PSN for every packet; None (the default) costs nothing."""
        return self._trace

    @trace.setter
    def trace(self, hook: TraceHook | None) -> None:
        self._trace = hook
        if self._requester is not None:
            self._requester.trace = hook
        if self._responder is not None:
            self._responder.trace = hook

    @property
    def udp_source_port(self) -> int:
        """The UDP source port of everything sent. Raises VerbsError before RTR."""
        if self._request_template is None:
            raise VerbsError(f"no path in state {self.state.name}")
        return self._request_template.source_port

    @udp_source_port.setter
    def udp_source_port(self, port: int) -> None:
        if self._request_template is None or self._response_template is None:
            raise VerbsError(f"no path in state {self.state.name}")
        self._request_template.source_port = port
        self._response_template.source_port = port

    @property
    def recovery(self) -> str:
        """The name of its recovery strategy."""
        return self._recovery_name

    def __repr__(self) -> str:
        return f"QueuePair(qp_num={self.qp_num:#x}, {self.qp_type.name}, {self.state.name})"
