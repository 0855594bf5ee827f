"""How a connection spreads its messages over the queue pairs of its group. Sans-IO.

``split`` cuts every message into a part per queue pair: each link gets its share of each message,
at the price of more and shorter messages, each with headers and an ACK of its own. ``round-robin``
sends whole messages in turn. Meta tried both and runs the second (Gangidi et al., SIGCOMM 2024);
NCCL has both (NCCL_IB_SPLIT_DATA_ON_QPS). ``least-outstanding`` sends each message on the queue
pair with the fewest bytes in work requests that have not completed (HPN, Qian et al., SIGCOMM
2024), and so less on a slow path; there the receiver learns only from immediate data which message
came on which queue pair.
"""

from __future__ import annotations

import abc
from typing import ClassVar, NamedTuple

from traffic.plan import MessageStrategy


class Part(NamedTuple):
    """A piece of a message, in bytes, and the position in the group of who carries it."""

    position: int
    offset: int
    length: int


class MessageScheduler(abc.ABC):
    """One sender's or receiver's view of a group of ``queue_pairs``; parts are whole packets."""

    receiver_knows: ClassVar[bool] = True
    """Whether the receiver can tell beforehand which queue pair brings which message."""

    def __init__(self, queue_pairs: int, path_mtu: int) -> None:
        self._queue_pairs = queue_pairs
        self._path_mtu = path_mtu

    @abc.abstractmethod
    def parts(self, tag: int, length: int) -> list[Part]:
        """The parts of message number ``tag``, to be posted now if this is the sender."""

    def completed(self, position: int, length: int) -> None:  # noqa: B027 (few need to know)
        """A part of ``length`` bytes has been acknowledged on a queue pair."""


class _Split(MessageScheduler):
    def parts(self, tag: int, length: int) -> list[Part]:
        mtu = self._path_mtu
        packets = -(-length // mtu)
        count = min(self._queue_pairs, packets)
        base, larger = divmod(packets, count)
        parts = []
        offset = 0
        for index in range(count):
            size = min((base + (index < larger)) * mtu, length - offset)
            # messages too short for all queue pairs take turns, as NCCL's do
            parts.append(Part((tag * count + index) % self._queue_pairs, offset, size))
            offset += size
        return parts


class _RoundRobin(MessageScheduler):
    def parts(self, tag: int, length: int) -> list[Part]:
        return [Part(tag % self._queue_pairs, 0, length)]


class _LeastOutstanding(MessageScheduler):
    receiver_knows = False

    def __init__(self, queue_pairs: int, path_mtu: int) -> None:
        super().__init__(queue_pairs, path_mtu)
        self._outstanding = [0] * queue_pairs
        self._next = 0

    def parts(self, tag: int, length: int) -> list[Part]:
        # of several with equally few the one that has waited longest: else one would do all
        count = self._queue_pairs
        turns = ((self._next + step) % count for step in range(count))
        position = min(turns, key=self._outstanding.__getitem__)
        self._outstanding[position] += length
        self._next = (position + 1) % count
        return [Part(position, 0, length)]

    def completed(self, position: int, length: int) -> None:
        self._outstanding[position] -= length


_SCHEDULERS: dict[MessageStrategy, type[MessageScheduler]] = {
    MessageStrategy.SPLIT: _Split,
    MessageStrategy.ROUND_ROBIN: _RoundRobin,
    MessageStrategy.LEAST_OUTSTANDING: _LeastOutstanding,
}


def message_scheduler(
    strategy: MessageStrategy, *, queue_pairs: int, path_mtu: int
) -> MessageScheduler:
    """A scheduler for one side of one group."""
    return _SCHEDULERS[strategy](queue_pairs, path_mtu)
