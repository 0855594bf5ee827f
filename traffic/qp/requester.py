"""The requester: turns send work requests into packets, and acknowledgements into completions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from traffic.codec import ACK_REQUEST, FrameTemplate, Packet
from traffic.psn import PSN_MASK
from traffic.qp import syndromes
from traffic.qp.attributes import INFINITE_RNR_RETRY, QpAttributes
from traffic.qp.timers import ack_timeout_seconds, rnr_timer_seconds
from traffic.qp.trace import TraceHook
from traffic.qp.wqe import SendWqe
from traffic.recovery import RequesterRecovery
from traffic.verbs import (
    CompletionQueue,
    QpCounters,
    QpType,
    SendWr,
    WcStatus,
    WorkCompletion,
)

_NO_WINDOW: Final = 1 << 62


class Requester:
    """The sending half of a queue pair in RTS.

    PSNs are extended. [una, high) is in flight and [high, tail) has been posted but not sent; a
    work request gets its PSNs when it is posted. When a request fails, the send queue is flushed
    and ``on_error`` called.
    """

    __slots__ = (
        "_ack_bit",
        "_ack_interval",
        "_attributes",
        "_broken",
        "_choose_source_port",
        "_counters",
        "_current",
        "_deadline",
        "_limit",
        "_mtu",
        "_on_error",
        "_qp_num",
        "_qp_type",
        "_queue",
        "_recovery",
        "_reordering_deadline",
        "_reordering_timeout",
        "_resending",
        "_retries",
        "_rnr_deadline",
        "_rnr_retries",
        "_send_cq",
        "_since_ack_request",
        "_tail",
        "_template",
        "_timeout",
        "_unsent",
        "_window",
        "high",
        "trace",
        "una",
    )

    def __init__(
        self,
        *,
        qp_num: int,
        qp_type: QpType,
        attributes: QpAttributes,
        template: FrameTemplate,
        recovery: RequesterRecovery,
        send_cq: CompletionQueue,
        counters: QpCounters,
        send_window: int | None,
        ack_interval: int,
        choose_source_port: Callable[[float], int] | None,
        reordering_timeout: float,
        on_error: Callable[[], None],
    ) -> None:
        self._qp_num = qp_num
        self._qp_type = qp_type
        self._attributes = attributes
        self._template = template
        self._recovery = recovery
        self._send_cq = send_cq
        self._counters = counters
        self._choose_source_port = choose_source_port
        self._reordering_timeout = reordering_timeout
        self._on_error = on_error
        self._mtu = attributes.path_mtu
        self._window = min(send_window or recovery.max_in_flight, recovery.max_in_flight)
        if qp_type is QpType.UC:
            self._window = _NO_WINDOW  # nothing is ever acknowledged
        self._ack_interval = ack_interval
        self._ack_bit = ACK_REQUEST if qp_type is QpType.RC else 0
        self._timeout = ack_timeout_seconds(attributes.timeout) if qp_type is QpType.RC else None
        self.trace: TraceHook | None = None

        self.una = self.high = self._tail = self._limit = attributes.sq_psn
        self._queue: deque[SendWqe] = deque()  # posted and not completed
        self._unsent: deque[SendWqe] = deque()  # those of them that have not begun
        self._current: SendWqe | None = None
        self._resending: SendWqe | None = None
        self._broken: SendWqe | None = None  # the first that cannot be sent; nothing behind it is
        self._since_ack_request = 0
        self._deadline: float | None = None
        self._retries = 0
        self._rnr_deadline: float | None = None
        self._rnr_retries = 0
        self._reordering_deadline: float | None = None

    # posting

    @property
    def outstanding(self) -> int:
        """Work requests posted and not completed."""
        return len(self._queue)

    def post(self, wr: SendWr, view: memoryview | None) -> None:
        """Queue a work request; ``view`` is the memory of its scatter/gather element, if valid."""
        wqe = SendWqe(wr, qp_type=self._qp_type, first=self._tail, path_mtu=self._mtu, view=view)
        self._queue.append(wqe)
        self._unsent.append(wqe)
        self._tail = wqe.last + 1
        if wqe.failure is not None and self._broken is None:
            self._broken = wqe
        self._update_limit()
        self._fail_if_broken()

    def flush(self) -> None:
        """Complete all work requests with WR_FLUSH_ERR and forget what was in flight."""
        queue = self._queue
        while queue:
            self._complete(queue.popleft(), WcStatus.WR_FLUSH_ERR)
        self._unsent.clear()
        self._current = self._resending = self._broken = None
        self._recovery.pending = False
        self._deadline = self._rnr_deadline = self._reordering_deadline = None
        self.una = self._tail = self._limit = self.high

    # sending

    @property
    def ready(self) -> bool:
        """Whether ``next_packet`` has one."""
        return (self._recovery.pending or self.high < self._limit) and self._rnr_deadline is None

    def next_packet(self, now: float) -> memoryview | None:
        """The next request packet as a frame, valid until the next call; None if there is none."""
        if self._rnr_deadline is not None:
            return None
        if self._recovery.pending:
            return self._resend(now)
        psn = self.high
        if psn >= self._limit:
            return None
        wqe = self._current
        if wqe is None or psn > wqe.last:
            wqe = self._current = self._unsent.popleft()
        self.high = psn + 1
        if self._choose_source_port is not None:
            self._template.source_port = self._choose_source_port(now)
        # The limit: nothing more can be sent until an ACK opens the window.
        last = psn == wqe.last
        frame = self._stamp(wqe, psn, last or psn + 1 == self._limit)
        if self._deadline is None and self._timeout is not None:
            self._deadline = now + self._timeout
        if self.trace is not None:
            self.trace(now, "send", psn)
        if last and not self._ack_bit:
            self._advance(psn + 1, now)
        return frame

    def _stamp(self, wqe: SendWqe, psn: int, ask: bool) -> memoryview:
        """The packet ``psn`` of ``wqe``, asking for an ACK if ``ask`` or the interval is over."""
        self._since_ack_request += 1
        word = psn & PSN_MASK
        if ask or self._since_ack_request >= self._ack_interval:
            self._since_ack_request = 0
            word |= self._ack_bit
        mtu = self._mtu
        start = (psn - wqe.first) * mtu
        payload = wqe.view[start : start + mtu]
        if wqe.first < psn < wqe.last:
            frame = self._template.stamp(wqe.middle, word, b"", payload)
        else:
            opcode, extension = wqe.edge_packet(psn)
            solicited = wqe.solicited and psn == wqe.last
            frame = self._template.stamp(opcode, word, extension, payload, solicited=solicited)
        counters = self._counters
        counters.sent_packets += 1
        counters.sent_bytes += len(payload)
        return frame

    def _resend(self, now: float) -> memoryview:
        """A packet that the recovery wants sent again."""
        recovery = self._recovery
        psn = recovery.next_retransmission(self.high)
        wqe = self._wqe_of(psn)
        ask = psn == self.una or psn == wqe.last or not recovery.pending
        if self._choose_source_port is not None:
            self._template.source_port = self._choose_source_port(now)
        frame = self._stamp(wqe, psn, ask)
        if self._timeout is not None and (self._deadline is None or psn == self.una):
            self._deadline = now + self._timeout
        counters = self._counters
        counters.retransmitted_packets += 1
        counters.retransmitted_bytes += min(
            self._mtu, len(wqe.view) - (psn - wqe.first) * self._mtu
        )
        if self.trace is not None:
            self.trace(now, "resend", psn)
        return frame

    def _wqe_of(self, psn: int) -> SendWqe:
        """The work request in flight that a PSN belongs to."""
        wqe = self._resending
        if wqe is None or not wqe.first <= psn <= wqe.last:
            wqe = next(wqe for wqe in self._queue if psn <= wqe.last)
            self._resending = wqe
        return wqe

    def _update_limit(self) -> None:
        """The first PSN that may not be sent yet."""
        limit = min(self._tail, self.una + self._window)
        if self._broken is not None:
            limit = min(limit, self._broken.first)
        self._limit = max(limit, self.high)

    # acknowledgements

    def receive(self, packet: Packet, now: float) -> None:
        """Take in an ACK or NAK. One for packets not in flight is counted and otherwise ignored."""
        counters = self._counters
        syndrome = packet.syndrome
        kind = syndrome & syndromes.TYPE_MASK
        ahead = (packet.psn - self.una) & PSN_MASK
        in_flight = ahead < self.high - self.una
        psn = self.una + ahead
        if kind == syndromes.ACK:
            counters.acks_received += 1
            if in_flight:
                if self.trace is not None:
                    self.trace(now, "ack", psn)
                self._advance(psn + 1, now)
        elif syndrome == syndromes.NAK_PSN_SEQUENCE:
            counters.naks_received += 1
            if in_flight and self._acknowledge_before(psn, now):
                if self.trace is not None:
                    self.trace(now, "nak", psn)
                self._recovery.on_sequence_nak(psn, self.high, packet.payload)
                self._watch_for_reordering(now)
        elif kind == syndromes.RNR_NAK:
            counters.rnr_naks_received += 1
            if in_flight and self._acknowledge_before(psn, now):
                self._receive_rnr_nak(psn, syndrome & syndromes.CODE_MASK, now)
        elif kind == syndromes.NAK:
            counters.error_naks_received += 1
            if in_flight and self._acknowledge_before(psn, now):
                self._fail(syndromes.ERROR_STATUS.get(syndrome, WcStatus.BAD_RESP_ERR))

    def _acknowledge_before(self, psn: int, now: float) -> bool:
        """What any NAK says: all before ``psn`` arrived. False if the queue has failed by that."""
        if psn > self.una:
            self._advance(psn, now)
        return psn < self.high

    def _receive_rnr_nak(self, psn: int, timer: int, now: float) -> None:
        """Wait as long as the responder asks, unless that has been tried often enough."""
        if self._rnr_deadline is not None:
            return
        if self.trace is not None:
            self.trace(now, "rnr", psn)
        rnr_retry = self._attributes.rnr_retry
        if rnr_retry != INFINITE_RNR_RETRY and self._rnr_retries >= rnr_retry:
            self._fail(WcStatus.RNR_RETRY_EXC_ERR)
            return
        self._rnr_retries += 1
        self._retries = 0  # the peer answers, and what it was sent did arrive
        self._rnr_deadline = now + rnr_timer_seconds(timer)
        self._deadline = None

    def _advance(self, una: int, now: float) -> None:
        """All before ``una`` is acknowledged: complete, restart the timer, open the window."""
        self.una = una
        self._retries = self._rnr_retries = 0
        self._rnr_deadline = None
        self._recovery.on_acknowledged(una, self.high)
        if self._reordering_deadline is not None:
            self._watch_for_reordering(now)
        if self._timeout is not None:
            self._deadline = now + self._timeout if una < self.high else None
        queue = self._queue
        while queue and queue[0].last < una:
            self._complete(queue.popleft(), WcStatus.SUCCESS)
        self._update_limit()
        self._fail_if_broken()

    # timers

    def next_timeout(self) -> float | None:
        """When ``handle_timeout`` wants to be called; None if no timer runs."""
        if self._rnr_deadline is not None:
            return self._rnr_deadline
        reordering = self._reordering_deadline
        if reordering is not None and (self._deadline is None or reordering < self._deadline):
            return reordering
        return self._deadline

    def handle_timeout(self, now: float) -> None:
        """Act on the timer that has expired, if any."""
        if self._rnr_deadline is not None:
            if now >= self._rnr_deadline:
                self._rnr_deadline = None
                self._recovery.on_rnr_expired(self.una, self.high)
            return
        if self._reordering_deadline is not None and now >= self._reordering_deadline:
            self._reordering_deadline = None
            self._recovery.on_reordering_timeout(self.una, self.high)
            self._watch_for_reordering(now)
        if self._deadline is None or now < self._deadline:
            return
        self._counters.timeouts += 1
        if self.trace is not None:
            self.trace(now, "timeout", self.una)
        if self._retries >= self._attributes.retry_cnt:
            self._fail(WcStatus.RETRY_EXC_ERR)
            return
        self._retries += 1
        self._counters.retries += 1
        # The timer starts again when the retransmission leaves, however long the port is busy.
        self._deadline = None
        self._recovery.on_timeout(self.una, self.high)

    def _watch_for_reordering(self, now: float) -> None:
        """Run the timer while the recovery waits for packets that may only be late."""
        if not self._recovery.suspects:
            self._reordering_deadline = None
        elif self._reordering_deadline is None:
            self._reordering_deadline = now + self._reordering_timeout

    # completion

    def _fail_if_broken(self) -> None:
        """Fail a request that cannot be sent once all before it have completed."""
        broken = self._broken
        if broken is not None and self.una == broken.first:
            assert broken.failure is not None
            self._fail(broken.failure)

    def _fail(self, status: WcStatus) -> None:
        """The oldest request failed: report it, flush the others, tell the queue pair."""
        self._complete(self._queue.popleft(), status)
        self.flush()
        self._on_error()

    def _complete(self, wqe: SendWqe, status: WcStatus) -> None:
        if status is WcStatus.SUCCESS and not wqe.signaled:
            return
        self._send_cq.push(
            WorkCompletion(
                wqe.wr.wr_id,
                status,
                wqe.wc_opcode,
                self._qp_num,
                byte_len=len(wqe.view),
            )
        )
