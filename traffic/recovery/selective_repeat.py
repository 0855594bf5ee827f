"""Selective repeat after IRN (Mittal et al., SIGCOMM 2018): only what is missing is sent again.

Responder
    Holds packets that arrive ahead of a gap, payload included, and executes them in order once the
    gap closes. They are held rather than placed at once because only the first packet of a WRITE
    carries its address, and because a peer may count on memory being written in order. Every early
    arrival is answered by a selective NAK, and so is an arrival that closes one gap before
    another: NAKs carry state, not events, and any of them may be lost, repeated or overtaken.

Requester
    A packet is lost if it is not acknowledged while a later one is. It is sent again once; then
    new packets follow. IRN allows one retransmission per PSN and recovery phase; here each resent
    PSN remembers the newest PSN sent before it. If the responder still misses it although a packet
    sent afterwards has arrived, the retransmission was lost too and is repeated, without a
    timeout. A timeout makes all packets missing below an acknowledged one candidates again, and
    sends the very last packet as a probe (as RFC 8985, 7.3, does for TCP): if only the tail was
    lost, that is the packet itself, else its selective NAK tells what is missing.

Reordering
    On a path that keeps order, one later packet proves a loss, and nothing else waits. Where
    packets of one queue pair take several paths, a packet is lost only if one sent
    ``reordering_threshold`` packets later has arrived (as in QUIC, RFC 9002, 6.1.1; TCP's
    duplicate ACKs count the same), or after it has been missing for a while (as in RACK, RFC 8985,
    6.2), so that a loss with fewer packets behind it need not wait for the ACK timeout. Both hold
    for packets sent again, too. The responder places what comes early as ConnectX NICs do; its
    NAKs then say what has arrived, not that anything is lost.

Selective NAK on the wire: an RC ACKNOWLEDGE whose AETH is a NAK for a PSN sequence error, PSN = the
expected one, followed by 8 bytes of payload before the ICRC. It names one contiguous block of
received packets, the one that the arrival belongs to, as the first block of a TCP SACK (RFC 2018):

    =====  ====  =================================================
    bytes  bits  meaning
    =====  ====  =================================================
    0-3    0-7   reserved, 0
    "      8-31  PSN of the first packet of the block
    4-7    0-7   reserved, 0
    "      8-31  PSN of the last packet of the block
    =====  ====  =================================================

Alternatives: IRN's own NACK carries the arrived PSN alone, so that one lost NAK causes a needless
retransmission; a bitmap would bound the window by its length. A vendor syndrome or a new opcode
would be unknown to analysers. Here everything but the block is what any RoCEv2 NIC sends, and
Wireshark shows the block as payload of a valid packet.
"""

from __future__ import annotations

import struct
from typing import Final

from traffic.codec import Packet
from traffic.psn import PSN_MASK, psn_extend
from traffic.recovery.base import (
    OutOfOrder,
    Recovery,
    RequesterRecovery,
    ResponderRecovery,
    register_recovery,
)
from traffic.recovery.ranges import RangeSet
from traffic.verbs import QpType

REORDER_WINDOW: Final = 1 << 15
"""Packets that a responder holds at most, and so the most that a requester keeps in flight.

128 MiB at an MTU of 4096: 268 times the bandwidth-delay product of 400 Gb/s and 10 us, so that by
default only a scenario's own send window, not this one, limits a flow.
"""

_BLOCK: Final = struct.Struct(">II")


def pack_block(first: int, last: int) -> bytes:
    """The details of a selective NAK: ``first`` to ``last``, both included, were received."""
    return _BLOCK.pack(first & PSN_MASK, last & PSN_MASK)


def unpack_block(details: bytes | memoryview, reference: int) -> tuple[int, int] | None:
    """First and last PSN of a selective NAK, extended near ``reference``; None if there is none."""
    if len(details) < _BLOCK.size:
        return None
    first, last = _BLOCK.unpack_from(details)
    return psn_extend(first & PSN_MASK, reference), psn_extend(last & PSN_MASK, reference)


class SelectiveRepeatRequester(RequesterRecovery):
    """Sends holes below acknowledged packets again, oldest first, each once."""

    __slots__ = (
        "_cursor",
        "_late",
        "_late_at_mark",
        "_mark",
        "_overdue",
        "_probe",
        "_repeat",
        "_resent",
        "_sacked",
        "_timed_out",
    )

    max_in_flight = REORDER_WINDOW

    def __init__(self) -> None:
        super().__init__()
        self._sacked = RangeSet()
        self._cursor = 0  # holes before it have been sent again
        self._resent: dict[int, int] = {}  # PSN -> high when it was sent again
        self._repeat: int | None = None  # send this one first, whatever is known about it
        self._probe: int | None = None
        self._timed_out: int | None = None  # una at the latest timeout
        self._overdue = 0  # holes before it have waited long enough
        self._late: int | None = None  # sent again, and one of the next few packets has arrived
        # what was suspected when the reordering timer started: holes before this, and that packet
        self._mark = 0
        self._late_at_mark: int | None = None

    def on_acknowledged(self, una: int, high: int) -> None:
        """Forget what lies before ``una``."""
        if self._cursor < una:
            self._cursor = una
        if not (self._sacked or self._resent or self.pending):
            return
        self._sacked.discard_before(una)
        self._forget_resent_before(una)
        if self._late is not None and self._late < una:
            self._late = None
        if self._repeat is not None and self._repeat < una:
            self._repeat = None
        if self._probe is not None and self._probe < una:
            self._probe = None
        self._refresh()

    def on_sequence_nak(self, una: int, high: int, details: memoryview) -> None:
        """Learn a received block; ``una`` and other holes below it are lost."""
        self._cursor = max(self._cursor, una)
        block = unpack_block(details, una)
        if block is None or not una < block[0] <= block[1] < high:
            # A plain NAK names no received packet, only the missing one.
            if una not in self._resent:
                self._send_first(una)
        else:
            first, last = block
            self._sacked.add(first, last + 1)
            sent_before = self._resent.get(una)
            if sent_before is not None and last >= sent_before:
                if last - sent_before + 1 >= self.reordering_threshold:
                    self._send_first(una)
                else:
                    self._late = una
        self._refresh()

    def on_rnr_expired(self, una: int, high: int) -> None:
        """Only the refused packet is sent again; the responder holds those behind it."""
        self._take_back(una)
        self._send_first(una)
        self._refresh()

    def on_timeout(self, una: int, high: int) -> None:
        """Send all known holes again, and the last packet to learn about those not known.

        If that has been tried in vain, send the oldest packet as well: the probe or its answer may
        have been lost, and the one packet that is surely useful saves a round trip.
        """
        self._take_back(una)
        self._cursor = una
        self._resent.clear()
        self._repeat = None
        if self._timed_out == una and una < high - 1:
            self._send_first(una)
        self._timed_out = una
        self._overdue = self._sacked.end or 0
        self._probe = None if high - 1 in self._sacked else high - 1
        self._refresh()

    def on_reordering_timeout(self, una: int, high: int) -> None:
        """What has been missing since the timer started is lost; begin to wait for the rest."""
        self._overdue = max(self._overdue, self._mark)
        if self._late_at_mark == una:
            self._send_first(una)
        self._set_mark()
        self._refresh()

    def next_retransmission(self, high: int) -> int:
        """A packet whose retransmission was lost, else the oldest hole, else the probe."""
        if self._repeat is not None:
            psn = self._repeat
            self._repeat = None
        elif self._has_hole():
            psn = self._cursor
            self._cursor = psn + 1
        else:
            assert self._probe is not None
            psn = self._probe
            self._probe = None
        self._resent[psn] = high
        self._refresh()
        return psn

    def _take_back(self, una: int) -> None:
        """A packet that was held and then refused for want of a receive request is held no more."""
        self._sacked.discard_before(una + 1)

    def _forget_resent_before(self, una: int) -> None:
        """Drop entries from the front; they are nearly in order, and stale ones do no harm."""
        resent = self._resent
        while resent:
            oldest = next(iter(resent))
            if oldest >= una:
                return
            del resent[oldest]

    def _send_first(self, una: int) -> None:
        self._repeat = una
        self._late = None
        self._cursor = max(self._cursor, una + 1)

    def _has_hole(self) -> bool:
        """Whether the hole at the cursor is lost, not just late."""
        end = self._sacked.end
        return end is not None and self._cursor < max(
            end - self.reordering_threshold, min(self._overdue, end)
        )

    def _refresh(self) -> None:
        self._cursor = self._sacked.next_missing(self._cursor)
        self.pending = self._has_hole() or self._repeat is not None or self._probe is not None
        if self.reordering_threshold > 1:
            self._suspect()

    def _suspect(self) -> None:
        """Whether a hole or a packet sent again may only be late."""
        end = self._sacked.end
        if self._late is not None and self._late not in self._resent:
            self._late = None
        lost = max((end or 0) - self.reordering_threshold, self._overdue, self._cursor)
        suspects = self._late is not None or (
            end is not None and self._sacked.next_missing(lost) < end
        )
        if suspects and not self.suspects:
            self._set_mark()
        self.suspects = suspects

    def _set_mark(self) -> None:
        self._mark = self._sacked.end or 0
        self._late_at_mark = self._late


class SelectiveRepeatResponder(ResponderRecovery):
    """Holds early packets; ``waiting`` while it holds any."""

    __slots__ = ("_blocks", "_held")

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[int, Packet] = {}
        self._blocks = RangeSet()

    def on_out_of_order(self, expected: int, psn: int, packet: Packet) -> OutOfOrder:
        """Hold it unless it lies beyond the reorder window, and answer with its block."""
        if psn - expected >= REORDER_WINDOW:
            return OutOfOrder(held=False, duplicate=False, nak=self.report())
        duplicate = psn in self._held
        if not duplicate:
            packet.detach()
            self._held[psn] = packet
            self.waiting = True
        start, stop = self._blocks.add(psn, psn + 1)
        return OutOfOrder(held=not duplicate, duplicate=duplicate, nak=pack_block(start, stop - 1))

    def release(self, expected: int) -> Packet | None:
        """Hand out the packet that has become the expected one."""
        packet = self._held.pop(expected, None)
        self._blocks.discard_before(expected if packet is None else expected + 1)
        self.waiting = bool(self._held)
        return packet

    def report(self) -> bytes:
        """The oldest block held: what lies before it is missing."""
        if not self._blocks:
            return b""
        start, stop = self._blocks.first()
        return pack_block(start, stop - 1)

    @property
    def held(self) -> int:
        """How many packets are being held."""
        return len(self._held)


register_recovery(
    Recovery(
        "selective-repeat",
        frozenset({QpType.RC}),
        SelectiveRepeatRequester,
        SelectiveRepeatResponder,
    )
)
