"""Go-back-N, the recovery of classic RoCE NICs.

Responder: executes packets in order only. The first packet beyond a gap is answered by one NAK (PSN
sequence error) with the expected PSN; then it stays silent until that PSN arrives, and drops what
else comes, as Linux does (drivers/infiniband/sw/rxe/rxe_resp.c, ``sent_psn_nak``).

Requester: a NAK for PSN k acknowledges all before k; it and a timeout make the requester send
everything from the oldest unacknowledged packet on again. So one lost packet costs what was in
flight behind it, and a NAK or a first retransmission that is lost costs a timeout.
"""

from __future__ import annotations

from traffic.codec import Packet
from traffic.recovery.base import (
    HoldsNothing,
    OutOfOrder,
    Recovery,
    RequesterRecovery,
    register_recovery,
)
from traffic.verbs import QpType


class GoBackNRequester(RequesterRecovery):
    """Rewinds. ``_cursor`` is the next PSN to send again while ``pending``."""

    __slots__ = ("_cursor",)

    def __init__(self) -> None:
        super().__init__()
        self._cursor = 0

    def on_acknowledged(self, una: int, high: int) -> None:
        """Do not resend what has been acknowledged in the meantime."""
        if self.pending:
            self._cursor = max(self._cursor, una)
            self.pending = self._cursor < high

    def on_sequence_nak(self, una: int, high: int, details: memoryview) -> None:
        """Go back to the packet that the responder misses."""
        self._rewind(una, high)

    def on_rnr_expired(self, una: int, high: int) -> None:
        """Go back to the packet that was refused; those behind it were dropped."""
        self._rewind(una, high)

    def on_timeout(self, una: int, high: int) -> None:
        """Go back to the oldest unacknowledged packet."""
        self._rewind(una, high)

    def _rewind(self, una: int, high: int) -> None:
        self._cursor = una
        self.pending = una < high

    def next_retransmission(self, high: int) -> int:
        """The packets from the one gone back to up to the newest, in order."""
        psn = self._cursor
        self._cursor = psn + 1
        self.pending = psn + 1 < high
        return psn


class GoBackNResponder(HoldsNothing):
    """``waiting`` means that the NAK for the open gap has been sent."""

    __slots__ = ()

    _NAK = OutOfOrder(held=False, duplicate=False, nak=b"")
    _SILENCE = OutOfOrder(held=False, duplicate=False, nak=None)

    def on_out_of_order(self, expected: int, psn: int, packet: Packet) -> OutOfOrder:
        """Drop it, and say so once per gap."""
        if self.waiting:
            return self._SILENCE
        self.waiting = True
        return self._NAK


register_recovery(Recovery("go-back-n", frozenset({QpType.RC}), GoBackNRequester, GoBackNResponder))
