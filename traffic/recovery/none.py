"""No recovery: what unreliable connections have. A lost packet stays lost."""

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


class NoRequesterRecovery(RequesterRecovery):
    """Sends nothing twice."""

    __slots__ = ()

    def on_acknowledged(self, una: int, high: int) -> None:
        """Nothing is kept for resending."""

    def on_sequence_nak(self, una: int, high: int, details: memoryview) -> None:
        """Unreliable connections have no NAKs."""

    def on_rnr_expired(self, una: int, high: int) -> None:
        """Unreliable connections have no RNR NAKs."""

    def on_timeout(self, una: int, high: int) -> None:
        """Unreliable connections have no ACK timeout."""

    def next_retransmission(self, high: int) -> int:
        """Raises RuntimeError: ``pending`` is never set."""
        raise RuntimeError("an unreliable connection retransmits nothing")


class NoResponderRecovery(HoldsNothing):
    """Drops what comes out of order; the responder itself looks for the next message."""

    __slots__ = ()

    def on_out_of_order(self, expected: int, psn: int, packet: Packet) -> OutOfOrder:
        """Neither hold nor answer it."""
        return OutOfOrder(held=False, duplicate=False, nak=None)


register_recovery(
    Recovery("none", frozenset({QpType.UC}), NoRequesterRecovery, NoResponderRecovery)
)
