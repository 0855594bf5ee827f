"""One RDMA NIC port, sans-IO: scheduling, pacing, the delay line and the counters.

The caller moves frames between this object and a wire, and tells it the time (seconds of emulated
time). Requests of queue pairs take turns packet by packet; ACKs and NAKs go first. Frames leave at
line rate: the wire is busy for (frame + preamble, FCS and gap) / rate after each.

Arriving frames wait in the delay line for the latency of the path they took, which the receiver
knows from the TTL: software switches forward in next to no emulated time.

Several ports may share their queue pairs (traffic.nic_ports). Each of these sends from one port,
which also runs its timers; a frame may arrive at any.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from traffic.codec import FRAME_OVERHEAD, CodecError, IcrcError, parse
from traffic.faults import LossInjector
from traffic.qp import QueuePair

INITIAL_TTL: Final = 64
_TTL: Final = 22
_OPCODE: Final = 42
_FLAGS: Final = 43
_MIGRATION_REQUEST: Final = 0x40
_PSN: Final = 51
_LAST_REQUEST: Final = 0x0B  # RDMA WRITE ONLY with immediate

Buffer = bytes | bytearray | memoryview


def is_data_opcode(opcode: int) -> bool:
    """Whether a BTH opcode is a SEND or RDMA WRITE request of RC or UC (IBTA 9.2)."""
    return opcode >> 5 <= 1 and opcode & 0x1F <= _LAST_REQUEST


_IS_DATA: Final = tuple(is_data_opcode(opcode) for opcode in range(256))


def _is_migrated_request(frame: bytes) -> bool:
    return bool(frame[_FLAGS] & _MIGRATION_REQUEST) and _IS_DATA[frame[_OPCODE]]


class FrameCount:
    """Frames and their bytes, from the Ethernet header to the ICRC."""

    __slots__ = ("bytes", "packets")

    def __init__(self) -> None:
        self.packets = 0
        self.bytes = 0

    def add(self, size: int) -> None:
        """Count one frame."""
        self.packets += 1
        self.bytes += size


class NicCounts:
    """What one port saw, by class of packet: data (requests) and control (ACK, NAK, CNP)."""

    def __init__(self) -> None:
        self.sent_data, self.sent_control = FrameCount(), FrameCount()
        self.delivered_data, self.delivered_control = FrameCount(), FrameCount()
        self.injected_loss = FrameCount()
        self.icrc_errors, self.malformed = FrameCount(), FrameCount()
        self.unknown_qp = FrameCount()


class PathMigration(Protocol):
    """Decides from which port of a NIC with several a queue pair sends."""

    def path_failed(self, qp: QueuePair) -> None:
        """The queue pair had an ACK timeout."""

    def follow(self, qp: QueuePair, port: int) -> None:
        """A request from a peer that has moved arrived at ``port``, not at the queue pair's."""


class Nic:
    """One port.

    ``rate`` is in bit/s; ``latency`` gives the one-way latency in seconds for a number of switch
    hops; ``lead`` is how many seconds ahead of the wire frames may be handed out.
    """

    def __init__(
        self,
        *,
        rate: float,
        latency: Callable[[int], float],
        lead: float,
        losses: LossInjector | None = None,
    ) -> None:
        self._seconds_per_byte = 8.0 / rate
        # a TTL is a byte, whatever a stranger puts into it
        self._latency = [latency(hops) for hops in range(256)]
        self._lead = lead
        self._losses = losses if losses is not None and losses.active else None
        self._queue_pairs: dict[int, QueuePair] = {}
        self.port = 0
        self._ports: Sequence[Nic] = (self,)
        self._migration: PathMigration | None = None
        self._responding: deque[QueuePair] = deque()
        self._requesting: deque[QueuePair] = deque()
        self._scheduled: set[int] = set()
        self._wire_free = 0.0
        self._backlogged = False
        self._delay_lines: dict[int, deque[tuple[float, bytes]]] = {}
        self._timer = math.inf
        self.counts = NicCounts()
        self.send_lateness = array("d")
        """For every data frame that waited for the wire: seconds between the wire's being free and
        the frame's being handed out; 0 when handed out ahead."""
        self.busy_time = 0.0
        """Seconds that all data frames handed out take on the wire."""
        self.delivery_lateness = array("d")
        """For every arriving frame: seconds spent in the delay line beyond its latency."""

    def add_queue_pair(self, qp: QueuePair) -> None:
        """Serve this queue pair."""
        self._queue_pairs[qp.qp_num] = qp

    def join(
        self,
        ports: Sequence[Nic],
        port: int,
        queue_pairs: dict[int, QueuePair],
        migration: PathMigration,
    ) -> None:
        """Become port number ``port`` of the NIC that has ``ports`` and serves ``queue_pairs``."""
        self.port = port
        self._ports = ports
        self._queue_pairs = queue_pairs
        self._migration = migration

    def withdraw(self, qp: QueuePair) -> None:
        """Send nothing more of a queue pair, which goes on from another port."""
        self._scheduled.discard(qp.qp_num)
        for waiting in (self._requesting, self._responding):
            while qp in waiting:
                waiting.remove(qp)

    def take_over(self, qp: QueuePair) -> None:
        """Go on with a queue pair that another port has withdrawn from."""
        if qp.has_response:
            self._responding.append(qp)
        self.activate(qp)

    def activate(self, qp: QueuePair) -> None:
        """Say that a queue pair may have something to send, after post_send for instance."""
        if qp.qp_num not in self._scheduled:
            self._scheduled.add(qp.qp_num)
            self._requesting.append(qp)
        timeout = qp.next_timeout()
        if timeout is not None and timeout < self._timer:
            self._timer = timeout

    @property
    def held(self) -> list[bytes]:
        """Frames in the delay line."""
        return [frame for line in self._delay_lines.values() for _, frame in line]

    def arrive(self, frame: bytes, now: float) -> None:
        """Take a frame off the wire; ``advance`` delivers it when its latency is over.

        An emulated link hands on whole frames when their first bit would leave, so the frame's own
        time on the wire is added here, once, as in a fabric of cut-through switches.
        """
        hops = (INITIAL_TTL - frame[_TTL]) & 0xFF
        line = self._delay_lines.get(hops)
        if line is None:
            line = self._delay_lines[hops] = deque()
        on_wire = (len(frame) + FRAME_OVERHEAD) * self._seconds_per_byte
        due = now + on_wire + self._latency[hops]
        if line and line[-1][0] > due:  # a short frame that was read together with a long one
            due = line[-1][0]
        line.append((due, frame))

    def advance(self, now: float) -> None:
        """Deliver all frames whose latency is over and run the timers that are due."""
        for line in self._delay_lines.values():
            while line and line[0][0] <= now:
                due, frame = line.popleft()
                self.delivery_lateness.append(now - due)
                self._deliver(frame, now)
        if self._timer <= now:
            self._run_timers(now)

    def _deliver(self, frame: bytes, now: float) -> None:
        counts = self.counts
        try:
            packet = parse(frame)
        except IcrcError:
            counts.icrc_errors.add(len(frame))
            return
        except CodecError:
            counts.malformed.add(len(frame))
            return
        qp = None if packet is None else self._queue_pairs.get(packet.dest_qp)
        if packet is None or qp is None:
            counts.unknown_qp.add(len(frame))
            return
        sender = self._ports[qp.port]
        if sender is not self and self._migration is not None and _is_migrated_request(frame):
            self._migration.follow(qp, self.port)
            sender = self._ports[qp.port]
        qp.receive(packet, now)
        if _IS_DATA[packet.opcode]:
            counts.delivered_data.add(len(frame))
        else:
            counts.delivered_control.add(len(frame))
            # only an answer opens the window or starts a timer
            sender.activate(qp)
        if qp.has_response:
            sender._responding.append(qp)

    def _run_timers(self, now: float) -> None:
        self._timer = math.inf
        for qp in self._queue_pairs.values():
            if qp.port != self.port:
                continue
            timeout = qp.next_timeout()
            if timeout is not None and timeout <= now:
                expired = qp.counters.timeouts
                qp.handle_timeout(now)
                if self._migration is not None and qp.counters.timeouts > expired:
                    self._migration.path_failed(qp)
                timeout = qp.next_timeout()
                self._ports[qp.port].activate(qp)
            if timeout is not None and timeout < self._timer:
                self._timer = timeout

    def next_frame(self, now: float) -> Buffer | None:
        """The frame to put on the wire now; None if there is none or the wire is busy.

        Valid until the next call. A frame that is to be lost on purpose is counted and passed over.
        """
        while self._wire_free <= now + self._lead:
            frame = self._pull(now)
            if frame is None:
                self._backlogged = False
                return None
            is_data = _IS_DATA[frame[_OPCODE]]
            start = self._wire_free
            if self._backlogged and is_data:
                self.send_lateness.append(max(0.0, now - start))
            if start < now:
                start = now
            self._backlogged = True
            size = len(frame)
            duration = (size + FRAME_OVERHEAD) * self._seconds_per_byte
            self._wire_free = start + duration
            if not is_data:
                self.counts.sent_control.add(size)
                return frame
            self.busy_time += duration
            self.counts.sent_data.add(size)
            if self._losses is None or not self._is_lost(frame):
                return frame
            self.counts.injected_loss.add(size)
        return None

    def _pull(self, now: float) -> Buffer | None:
        responding = self._responding
        while responding:
            qp = responding[0]
            if qp.has_response:
                return qp.next_packet(now)
            responding.popleft()
        requesting = self._requesting
        while requesting:
            qp = requesting.popleft()
            frame = qp.next_packet(now)
            if frame is not None:
                requesting.append(qp)
                timeout = qp.next_timeout()
                if timeout is not None and timeout < self._timer:
                    self._timer = timeout
                return frame
            self._scheduled.discard(qp.qp_num)
        return None

    def _is_lost(self, frame: Buffer) -> bool:
        assert self._losses is not None
        destination_qp = int.from_bytes(frame[47:50], "big")
        psn = int.from_bytes(frame[_PSN : _PSN + 3], "big")
        return self._losses.loses(destination_qp, psn)

    def next_event(self) -> float:
        """Emulated time of the next delivery, timer or free wire; infinity if there is none."""
        event = self._timer
        for line in self._delay_lines.values():
            if line and line[0][0] < event:
                event = line[0][0]
        if self._requesting or self._responding:
            event = min(event, self._wire_free - self._lead)
        return event
