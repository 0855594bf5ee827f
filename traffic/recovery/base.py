"""What a loss recovery strategy is: one half at the requester, one at the responder.

The queue pair knows PSNs, messages, timers and retry limits; a strategy decides which packets are
sent again, and what a responder does with a packet that came too early. All PSNs here are extended
(see ``traffic.psn``). ``una`` is the oldest unacknowledged PSN and ``high`` the next one never
sent, so [una, high) is in flight.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from traffic.codec import Packet
from traffic.psn import PSN_HALF
from traffic.verbs import QpType


class RequesterRecovery(ABC):
    """Decides what is sent again. The requester asks for retransmissions while ``pending``.

    A strategy may wait for packets that could be late rather than lost: until one that was sent
    ``reordering_threshold`` packets later has arrived. While it does, it ``suspects``, and the
    requester's reordering timer runs.
    """

    __slots__ = ("pending", "reordering_threshold", "suspects")

    max_in_flight: ClassVar[int] = PSN_HALF - 1
    """The most packets that may be unacknowledged; by default what 24-bit PSNs can tell apart."""

    def __init__(self) -> None:
        self.pending = False
        self.suspects = False
        self.reordering_threshold = 1

    @abstractmethod
    def on_acknowledged(self, una: int, high: int) -> None:
        """All packets before ``una`` have been acknowledged."""

    @abstractmethod
    def on_sequence_nak(self, una: int, high: int, details: memoryview) -> None:
        """The responder misses ``una``. ``details`` is what its own half put behind the AETH."""

    @abstractmethod
    def on_rnr_expired(self, una: int, high: int) -> None:
        """The wait that an RNR NAK for ``una`` asked for is over."""

    @abstractmethod
    def on_timeout(self, una: int, high: int) -> None:
        """Nothing was acknowledged for the local ACK timeout."""

    def on_reordering_timeout(self, una: int, high: int) -> None:  # noqa: B027 (not all wait)
        """What was suspected when the reordering timer started, and has not come, is lost."""

    @abstractmethod
    def next_retransmission(self, high: int) -> int:
        """The PSN to send again now; called only while ``pending``, which it updates."""


class OutOfOrder(NamedTuple):
    """What became of a packet that arrived ahead of the expected PSN."""

    held: bool
    """It is kept and will be released once the gap before it has closed."""
    duplicate: bool
    """It is already being held."""
    nak: bytes | None
    """Bytes to send behind the AETH of a NAK (PSN sequence error); None: send no NAK."""


class ResponderRecovery(ABC):
    """Decides about packets ahead of the expected PSN. ``waiting`` while a gap is open."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting = False

    @abstractmethod
    def on_out_of_order(self, expected: int, psn: int, packet: Packet) -> OutOfOrder:
        """``packet`` with ``psn`` arrived while ``expected``, which is smaller, is missing."""

    @abstractmethod
    def release(self, expected: int) -> Packet | None:
        """The held packet with PSN ``expected``, if any. Called while ``waiting``, and updates it.

        All packets before ``expected`` have been executed when it is called.
        """

    @abstractmethod
    def report(self) -> bytes:
        """Bytes behind the AETH of a NAK for the gap that is still open after ``release``."""

    @property
    @abstractmethod
    def held(self) -> int:
        """How many packets are being held."""


class HoldsNothing(ResponderRecovery):
    """The half of responders that keep no packet. ``waiting`` begins in ``on_out_of_order``."""

    __slots__ = ()

    def release(self, expected: int) -> Packet | None:
        """Nothing is held; the expected packet has come, so that the gap is closed."""
        self.waiting = False
        return None

    def report(self) -> bytes:
        """No details."""
        return b""

    @property
    def held(self) -> int:
        """Always 0."""
        return 0


@dataclass(frozen=True, slots=True)
class Recovery:
    """A strategy: its name, the transport services it serves, and how to make its two halves."""

    name: str
    qp_types: frozenset[QpType]
    requester: Callable[[], RequesterRecovery]
    responder: Callable[[], ResponderRecovery]


_strategies: dict[str, Recovery] = {}


def register_recovery(recovery: Recovery) -> None:
    """Make a strategy available by its name. Raises ValueError if the name is taken."""
    if recovery.name in _strategies:
        raise ValueError(f"recovery {recovery.name!r} is registered twice")
    _strategies[recovery.name] = recovery


def recovery_names(qp_type: QpType | None = None) -> list[str]:
    """The names of all strategies, or of those for one transport service."""
    return sorted(
        name
        for name, recovery in _strategies.items()
        if qp_type is None or qp_type in recovery.qp_types
    )


def create_recovery(name: str, *, qp_type: QpType) -> tuple[RequesterRecovery, ResponderRecovery]:
    """Both halves of a strategy for one queue pair. Raises ValueError naming the known ones."""
    recovery = _strategies.get(name)
    if recovery is None or qp_type not in recovery.qp_types:
        known = ", ".join(recovery_names(qp_type))
        raise ValueError(f"unknown recovery {name!r} for {qp_type.name}; known: {known}")
    return recovery.requester(), recovery.responder()
