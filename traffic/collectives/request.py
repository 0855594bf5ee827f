"""What a collective is asked to do, and what each rank must hold when it is done.

Sizes are elements; ``elements`` is nccl-tests' size (doc/PERFORMANCE.md): of the largest buffer of
the collective, so of the output of an all-gather and the input of a reduce-scatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache


class ScheduleError(ValueError):
    """A collective cannot be scheduled, or a schedule is wrong; the message says where."""


class Collective(StrEnum):
    """What the ranks of a communicator do together."""

    BROADCAST = "broadcast"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_REDUCE = "all-reduce"
    ALL_TO_ALL = "all-to-all"
    ALL_TO_ALLV = "all-to-allv"
    SEND_RECV = "send-recv"
    BARRIER = "barrier"

    @property
    def has_root(self) -> bool:
        """One rank is not like the others."""
        return self in _ROOTED

    @property
    def reduces(self) -> bool:
        """Elements are combined, not only moved."""
        return self in _REDUCING


_ROOTED = {Collective.BROADCAST, Collective.REDUCE, Collective.GATHER, Collective.SCATTER}
_REDUCING = {
    Collective.REDUCE,
    Collective.REDUCE_SCATTER,
    Collective.ALL_REDUCE,
    Collective.BARRIER,
}


@lru_cache(maxsize=1024)
def cut(elements: int, parts: int) -> tuple[int, ...]:
    """Sizes of contiguous parts; they differ by at most one, the first are the larger."""
    base, larger = divmod(elements, parts)
    return (base + 1,) * larger + (base,) * (parts - larger)


@dataclass(frozen=True, slots=True)
class Chunking:
    """How data are cut into messages, and how many of them a connection may have under way.

    A chunk is what a rank works on in one step of a schedule, a slice is one message of at most
    ``slice_bytes``. NCCL has 8 steps of 512 KiB per connection (NCCL_STEPS, NCCL_BUFFSIZE); a
    slice of the ring's Simple protocol takes two of them, a tree's chunk one.
    """

    slice_bytes: int = 2**20
    slices_per_chunk: int = 2
    messages_in_flight: int = 4

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ScheduleError(f"{name}: {getattr(self, name)}; allowed: 1 or more")


@dataclass(frozen=True, slots=True)
class CollectiveRequest:
    """One collective of one communicator. Raises ScheduleError for what makes no sense.

    Consecutive ranks share a server, ``gpus_per_server`` of them; 1 leaves all transfers to the
    network. ``chunking`` None takes the algorithm's own. ``counts[s][d]`` is the number of
    elements that rank s has for rank d in an all-to-allv; ``elements`` then follows from it.
    """

    collective: Collective
    ranks: int
    elements: int
    itemsize: int = 4
    root: int = 0
    channels: int = 1
    gpus_per_server: int = 1
    chunking: Chunking | None = None
    counts: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        for name, least in (
            ("ranks", 2), ("elements", 1), ("itemsize", 1), ("channels", 1), ("gpus_per_server", 1)
        ):  # fmt: skip
            if getattr(self, name) < least:
                raise ScheduleError(f"{name}: {getattr(self, name)}; allowed: {least} or more")
        if not 0 <= self.root < self.ranks:
            raise ScheduleError(f"root: {self.root}; allowed: 0 to {self.ranks - 1}")
        if self.ranks % self.gpus_per_server:
            raise ScheduleError(
                f"gpus_per_server: {self.gpus_per_server} does not divide {self.ranks} ranks; "
                "allowed: a divisor of their number"
            )
        if self.collective is Collective.BARRIER and self.elements != 1:
            raise ScheduleError(f"elements: {self.elements}; allowed for a barrier: 1")
        self._check_counts()

    def _check_counts(self) -> None:
        counts = self.counts
        if (counts is not None) != (self.collective is Collective.ALL_TO_ALLV):
            raise ScheduleError("counts: needed for all-to-allv, and for nothing else")
        if counts is None:
            return
        if len(counts) != self.ranks or any(len(row) != self.ranks for row in counts):
            raise ScheduleError(f"counts: allowed: {self.ranks} rows of {self.ranks} numbers")
        if min(min(row) for row in counts) < 0:
            raise ScheduleError("counts: allowed: numbers from 0")
        if self.elements != largest_buffer(counts):
            raise ScheduleError(
                f"elements: {self.elements}; the largest sum of a row or column of counts is "
                f"{largest_buffer(counts)}"
            )

    @property
    def servers(self) -> int:
        """Number of servers."""
        return self.ranks // self.gpus_per_server

    def is_local(self, rank: int, other: int) -> bool:
        """Both ranks are in one server, so that NVLink connects them."""
        return rank // self.gpus_per_server == other // self.gpus_per_server

    @property
    def blocks(self) -> tuple[int, ...]:
        """Elements of each rank's share of the largest buffer."""
        return cut(self.elements, self.ranks)

    def count(self, source: int, destination: int) -> int:
        """Elements that one rank has for another in an all-to-all(v).

        When all-to-all's size is no multiple of the ranks, the larger blocks are dealt so that
        everybody sends and gets ``elements``.
        """
        if self.counts is not None:
            return self.counts[source][destination]
        return self.blocks[(source + destination) % self.ranks]

    def input_blocks(self, rank: int) -> tuple[int, ...]:
        """Sizes of the parts of a rank's input buffer, in order of address."""
        collective = self.collective
        if self.counts is not None:
            return self.counts[rank]
        if collective is Collective.ALL_TO_ALL:
            return self.blocks[rank:] + self.blocks[:rank]
        if collective in (Collective.ALL_GATHER, Collective.GATHER):
            return (self.blocks[rank],)
        if collective in (Collective.BROADCAST, Collective.SCATTER) and rank != self.root:
            return ()
        if collective in (Collective.SCATTER, Collective.REDUCE_SCATTER):
            return self.blocks
        return (self.elements,)

    def output_blocks(self, rank: int) -> tuple[int, ...]:
        """Sizes of the parts of a rank's output buffer, in order of address."""
        collective = self.collective
        if self.counts is not None:
            return tuple(row[rank] for row in self.counts)
        if collective is Collective.ALL_TO_ALL:
            return self.blocks[rank:] + self.blocks[:rank]
        if collective in (Collective.REDUCE_SCATTER, Collective.SCATTER):
            return (self.blocks[rank],)
        if collective in (Collective.REDUCE, Collective.GATHER) and rank != self.root:
            return ()
        if collective in (Collective.GATHER, Collective.ALL_GATHER):
            return self.blocks
        return (self.elements,)


def largest_buffer(counts: Sequence[Sequence[int]]) -> int:
    """Elements of the largest input or output buffer of an all-to-allv."""
    return max(max(map(sum, counts)), max(map(sum, zip(*counts, strict=True))))


@dataclass(frozen=True, slots=True)
class Requirement:
    """Part of a postcondition: what ``length`` elements of the output at ``offset`` must be.

    They combine the input at ``source_offset`` of every rank whose bit is set in ``contributors``,
    each exactly once.
    """

    offset: int
    length: int
    source_offset: int
    contributors: int


def postcondition(request: CollectiveRequest, rank: int) -> list[Requirement]:
    """What a rank's whole output buffer must hold when the collective is done."""
    outputs = request.output_blocks(rank)
    everybody = (1 << request.ranks) - 1
    found, offset = [], 0
    for block, length in enumerate(outputs):
        match request.collective:
            case Collective.ALL_REDUCE | Collective.REDUCE | Collective.BARRIER:
                source_offset, contributors = 0, everybody
            case Collective.REDUCE_SCATTER:
                source_offset, contributors = sum(request.blocks[:rank]), everybody
            case Collective.BROADCAST:
                source_offset, contributors = 0, 1 << request.root
            case Collective.SCATTER:
                source_offset, contributors = sum(request.blocks[:rank]), 1 << request.root
            case Collective.SEND_RECV:
                source_offset, contributors = 0, 1 << (rank - 1) % request.ranks
            case Collective.GATHER | Collective.ALL_GATHER:
                source_offset, contributors = 0, 1 << block
            case _:
                source_offset = sum(request.input_blocks(block)[:rank])
                contributors = 1 << block
        found.append(Requirement(offset, length, source_offset, contributors))
        offset += length
    return found


def bus_factor(collective: Collective, ranks: int) -> float:
    """busbw / algbw of nccl-tests (doc/PERFORMANCE.md)."""
    if collective in (Collective.BROADCAST, Collective.REDUCE, Collective.SEND_RECV):
        return 1.0
    share = (ranks - 1) / ranks
    return 2 * share if collective in (Collective.ALL_REDUCE, Collective.BARRIER) else share
