"""The responder: executes request packets in order and answers them."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from traffic.codec import FrameTemplate, Packet
from traffic.memory import AccessFlags, ProtectionDomain
from traffic.opcodes import (
    FIRST,
    HAS_IMMEDIATE,
    IS_SEND,
    IS_WRITE,
    LAST,
    RC,
    REQUEST_FLAGS,
    Operation,
)
from traffic.psn import PSN_HALF, PSN_MASK, psn_extend
from traffic.qp import syndromes
from traffic.qp.attributes import QpAttributes
from traffic.qp.trace import TraceHook
from traffic.recovery import ResponderRecovery
from traffic.verbs import (
    AsyncEvent,
    CompletionQueue,
    QpCounters,
    QpType,
    RecvWr,
    WcOpcode,
    WcStatus,
    WorkCompletion,
)

_AETH: Final = struct.Struct(">I")
_ACKNOWLEDGE: Final = RC | Operation.ACKNOWLEDGE
_NOTHING: Final = memoryview(bytearray())


class _Response(NamedTuple):
    """An ACK or NAK that waits to be sent."""

    syndrome: int
    psn: int
    msn: int
    details: bytes


class Responder:
    """The receiving half of a queue pair in RTR or RTS.

    ``expected`` is the extended PSN of the next packet to execute. Responses wait in order until
    ``next_response`` takes them; an ACK replaces an ACK at the end of the line, which it covers.
    ``on_error`` is called for a request that ends the connection.
    """

    __slots__ = (
        "_attributes",
        "_counters",
        "_message",
        "_mtu",
        "_on_error",
        "_pd",
        "_placed",
        "_qp_num",
        "_recovery",
        "_recv_cq",
        "_recv_queue",
        "_refused",
        "_reliable",
        "_target",
        "_template",
        "_wr",
        "expected",
        "msn",
        "responses",
        "trace",
    )

    def __init__(
        self,
        *,
        qp_num: int,
        qp_type: QpType,
        attributes: QpAttributes,
        template: FrameTemplate,
        recovery: ResponderRecovery,
        pd: ProtectionDomain,
        recv_queue: deque[RecvWr],
        recv_cq: CompletionQueue,
        counters: QpCounters,
        on_error: Callable[[AsyncEvent], None],
    ) -> None:
        self._qp_num = qp_num
        self._reliable = qp_type is QpType.RC
        self._attributes = attributes
        self._template = template
        self._recovery = recovery
        self._pd = pd
        self._recv_queue = recv_queue
        self._recv_cq = recv_cq
        self._counters = counters
        self._on_error = on_error
        self._mtu = attributes.path_mtu
        self.trace: TraceHook | None = None

        self.expected = attributes.rq_psn
        self.msn = 0
        self.responses: deque[_Response] = deque()
        self._refused: int | None = None  # PSN that got an RNR NAK and has not come back
        # The message in progress.
        self._message = 0  # IS_SEND, IS_WRITE, or 0 between messages
        self._target = _NOTHING
        self._placed = 0
        self._wr: RecvWr | None = None

    # receiving

    def receive(self, packet: Packet, flags: int, now: float) -> None:
        """Take in a data packet; ``flags`` are those of its opcode."""
        counters = self._counters
        counters.received_packets += 1
        counters.received_bytes += len(packet.payload)
        ahead = (packet.psn - self.expected) & PSN_MASK
        if not self._reliable:
            self._receive_unreliable(packet, flags, ahead, now)
        elif ahead == 0:
            if not self._execute(packet, flags, now):
                counters.discarded_packets += 1
            elif self._recovery.waiting:
                self._close_gap(packet.ack_request, now)
            elif packet.ack_request:
                self._acknowledge()
        elif ahead < PSN_HALF:
            self._receive_early(packet, self.expected + ahead, now)
        else:
            counters.duplicate_packets += 1
            if self.trace is not None:
                self.trace(now, "duplicate", psn_extend(packet.psn, self.expected))
            # A lost ACK made the requester repeat it: acknowledge again, or it would never end.
            self._acknowledge()

    def _receive_early(self, packet: Packet, psn: int, now: float) -> None:
        """A packet ahead of the expected one arrived."""
        counters = self._counters
        counters.out_of_sequence_packets += 1
        if self.trace is not None:
            self.trace(now, "out-of-order", psn)
        outcome = self._recovery.on_out_of_order(self.expected, psn, packet)
        if outcome.duplicate:
            counters.duplicate_packets += 1
        else:
            counters.out_of_order_packets += 1
            if not outcome.held:
                counters.discarded_packets += 1
        # After an RNR NAK the requester waits and will resend; a sequence NAK would hurry it.
        if outcome.nak is not None and self._refused != self.expected:
            self._respond(syndromes.NAK_PSN_SEQUENCE, self.expected, outcome.nak)

    def _close_gap(self, ack_request: bool, now: float) -> None:
        """The expected packet came: execute what was held behind it, and answer."""
        recovery = self._recovery
        answer = ack_request
        while (packet := recovery.release(self.expected)) is not None:
            answer = True
            if not self._execute(packet, REQUEST_FLAGS[packet.opcode], now):
                self._counters.discarded_packets += 1
                return
        if recovery.waiting:
            self._respond(syndromes.NAK_PSN_SEQUENCE, self.expected, recovery.report())
        elif answer:
            self._acknowledge()

    def _receive_unreliable(self, packet: Packet, flags: int, ahead: int, now: float) -> None:
        """UC (IBTA vol. 1, 9.8.2): a gap costs the rest of the message; the next one is heeded."""
        counters = self._counters
        if ahead:
            counters.out_of_sequence_packets += 1
            counters.out_of_order_packets += 1
            self.expected = psn_extend(packet.psn, self.expected)
            self._abandon()
            if self.trace is not None:
                self.trace(now, "out-of-order", self.expected)
        if not self._execute(packet, flags, now):
            counters.discarded_packets += 1
            self.expected += 1

    def _execute(self, packet: Packet, flags: int, now: float) -> bool:
        """Execute the expected packet. False if it was refused; a NAK has then been queued."""
        if flags & FIRST:
            if self._message:
                return self._reject(syndromes.NAK_INVALID_REQUEST, AsyncEvent.QP_REQ_ERR)
            if flags & (IS_SEND | HAS_IMMEDIATE) and not self._recv_queue:
                return self._not_ready()
            if not self._begin(packet, flags):
                return False
        elif not flags & self._message:
            return self._reject(syndromes.NAK_INVALID_REQUEST, AsyncEvent.QP_REQ_ERR)
        elif flags & HAS_IMMEDIATE and flags & IS_WRITE and not self._recv_queue:
            return self._not_ready()
        payload = packet.payload
        length = len(payload)
        end = self._placed + length
        if flags & LAST:
            if not self._is_valid_last(flags, length, end):
                return self._reject_length()
        elif length != self._mtu or end > len(self._target):
            return self._reject_length()
        self._target[self._placed : end] = payload
        self._placed = end
        if self.trace is not None:
            self.trace(now, "receive", self.expected)
        self.expected += 1
        counters = self._counters
        counters.delivered_packets += 1
        counters.delivered_bytes += length
        if flags & LAST:
            self._finish(packet, flags)
        return True

    def _begin(self, packet: Packet, flags: int) -> bool:
        """Find the memory that a new message goes to."""
        self._placed = 0
        if flags & IS_SEND:
            wr = self._wr = self._recv_queue.popleft()
            target = _NOTHING if wr.sge is None else self._pd.local(wr.sge, write=True)
            if target is None:
                return self._reject(
                    syndromes.NAK_REMOTE_OPERATIONAL,
                    AsyncEvent.QP_FATAL,
                    WcStatus.LOC_PROT_ERR,
                )
            self._message = IS_SEND
        else:
            target = self._writable(packet)
            if target is None:
                return self._reject(syndromes.NAK_REMOTE_ACCESS, AsyncEvent.QP_ACCESS_ERR)
            self._message = IS_WRITE
        self._target = target
        return True

    def _writable(self, packet: Packet) -> memoryview | None:
        """The memory a WRITE names. Without data, neither key nor address is checked (IBTA)."""
        if packet.dma_length == 0:
            return _NOTHING
        if not self._attributes.qp_access_flags & AccessFlags.REMOTE_WRITE:
            return None
        return self._pd.remote(
            packet.rkey, packet.virtual_address, packet.dma_length, AccessFlags.REMOTE_WRITE
        )

    def _is_valid_last(self, flags: int, length: int, end: int) -> bool:
        """Whether the last packet has a lawful size and, for a WRITE, ends where the RETH said."""
        if length > self._mtu or (length == 0 and not flags & FIRST):
            return False
        size = len(self._target)
        return end == size if flags & IS_WRITE else end <= size

    def _finish(self, packet: Packet, flags: int) -> None:
        """A message is complete: count it, and report it if a receive work request took it."""
        self.msn = (self.msn + 1) & PSN_MASK
        self._message = 0
        wr = self._wr
        opcode = WcOpcode.RECV
        if flags & IS_WRITE:
            if not flags & HAS_IMMEDIATE:
                return
            wr = self._recv_queue.popleft()
            opcode = WcOpcode.RECV_RDMA_WITH_IMM
        assert wr is not None
        self._wr = None
        self._recv_cq.push(
            WorkCompletion(
                wr.wr_id,
                WcStatus.SUCCESS,
                opcode,
                self._qp_num,
                byte_len=self._placed,
                imm_data=packet.immediate if flags & HAS_IMMEDIATE else None,
                solicited=packet.solicited,
            )
        )

    # refusing

    def _not_ready(self) -> bool:
        """No receive work request: ask the requester to come back later."""
        if self._reliable:
            self._refused = self.expected
            self._respond(syndromes.RNR_NAK | self._attributes.min_rnr_timer, self.expected)
        else:
            self._abandon()
        return False

    def _reject_length(self) -> bool:
        """Too long for the buffer, or sizes that contradict opcode or RETH (IBTA table 56)."""
        return self._reject(
            syndromes.NAK_INVALID_REQUEST, AsyncEvent.QP_REQ_ERR, WcStatus.LOC_LEN_ERR
        )

    def _reject(
        self, syndrome: int, event: AsyncEvent, status: WcStatus = WcStatus.LOC_QP_OP_ERR
    ) -> bool:
        """End a reliable connection over a bad request; an unreliable one drops the message."""
        if not self._reliable:
            self._abandon()
            return False
        self._respond(syndrome, self.expected)
        if self._wr is not None:
            self._complete_in_error(self._wr, status)
            self._wr = None
        self._message = 0
        self._on_error(event)
        return False

    def _abandon(self) -> None:
        """Forget the message in progress; its receive work request serves the next one."""
        if self._wr is not None:
            self._recv_queue.appendleft(self._wr)
            self._wr = None
        self._message = 0

    def flush(self) -> None:
        """Complete all receive work requests with WR_FLUSH_ERR."""
        self._abandon()
        while self._recv_queue:
            self._complete_in_error(self._recv_queue.popleft(), WcStatus.WR_FLUSH_ERR)

    def _complete_in_error(self, wr: RecvWr, status: WcStatus) -> None:
        self._recv_cq.push(WorkCompletion(wr.wr_id, status, WcOpcode.RECV, self._qp_num))

    # answering

    def _acknowledge(self) -> None:
        """Acknowledge everything executed so far."""
        responses = self.responses
        if responses and responses[-1].syndrome == syndromes.ACK_NO_CREDIT_LIMIT:
            responses.pop()
        self._respond(syndromes.ACK_NO_CREDIT_LIMIT, self.expected - 1)

    def _respond(self, syndrome: int, psn: int, details: bytes = b"") -> None:
        self.responses.append(_Response(syndrome, psn & PSN_MASK, self.msn, details))

    def next_response(self) -> memoryview | None:
        """The next ACK or NAK as a frame, valid until the next call; None if there is none."""
        if not self.responses:
            return None
        syndrome, psn, msn, details = self.responses.popleft()
        frame = self._template.stamp(_ACKNOWLEDGE, psn, _AETH.pack(syndrome << 24 | msn), details)
        counters = self._counters
        kind = syndrome & syndromes.TYPE_MASK
        if kind == syndromes.ACK:
            counters.acks_sent += 1
        elif kind == syndromes.RNR_NAK:
            counters.rnr_naks_sent += 1
        elif syndrome == syndromes.NAK_PSN_SEQUENCE:
            counters.naks_sent += 1
        else:
            counters.error_naks_sent += 1
        return frame
