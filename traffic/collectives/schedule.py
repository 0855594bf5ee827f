"""Schedules as data: what every rank sends, receives, reduces and copies, and after what.

A rank's memory is a row of slots: those of its input buffer, which nobody may write, then those of
its output buffer, then scratch. Instructions work on runs of neighbouring slots. Schedules know
nothing of queue pairs, addresses or time; ``traffic.collectives.lowering`` makes plans of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, pairwise

from traffic.collectives.request import Chunking, CollectiveRequest


class InstructionKind(StrEnum):
    """What an instruction does."""

    SEND = "send"
    RECEIVE = "receive"
    REDUCE = "reduce"
    COPY = "copy"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One step of one rank.

    It works on ``count`` slots from ``slot``: a SEND reads them, all others write them; REDUCE and
    COPY read as many from ``source``. The k-th SEND to a peer on a channel meets the peer's k-th
    RECEIVE from this rank on that channel; messages of a connection keep their order. It begins
    when the instructions ``depends_on`` (positions in the rank's program) are complete. A message
    may land as soon as it is sent: that its place is free must follow from the sender's order.
    ``local`` transfers stay inside a server, on NVLink.
    """

    kind: InstructionKind
    channel: int
    slot: int
    count: int = 1
    source: int = -1
    peer: int = -1
    depends_on: tuple[int, ...] = ()
    local: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """A rank's slots: elements of each, per buffer, in order of address."""

    input: tuple[int, ...]
    output: tuple[int, ...]
    scratch: tuple[int, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of every slot: input, output, scratch."""
        return self.input + self.output + self.scratch

    @property
    def first_output(self) -> int:
        """Number of the first slot of the output."""
        return len(self.input)

    @property
    def first_scratch(self) -> int:
        """Number of the first slot of scratch memory."""
        return len(self.input) + len(self.output)


def byte_bounds(sizes: Sequence[int], itemsize: int, begin: int = 0) -> list[tuple[int, int]]:
    """(begin, end) in bytes of neighbouring slots of so many elements."""
    return list(pairwise(accumulate((size * itemsize for size in sizes), initial=begin)))


@dataclass(frozen=True, slots=True)
class Schedule:
    """How an algorithm carries out a request: each rank's memory and program."""

    request: CollectiveRequest
    algorithm: str
    chunking: Chunking
    layouts: tuple[Layout, ...]
    programs: tuple[tuple[Instruction, ...], ...]

    def sent_elements(self, rank: int) -> dict[int, int]:
        """Elements that a rank sends to each of its peers, over network or NVLink."""
        sizes = self.layouts[rank].sizes
        sent: Counter[int] = Counter()
        for step in self.programs[rank]:
            if step.kind is InstructionKind.SEND:
                sent[step.peer] += sum(sizes[step.slot : step.slot + step.count])
        return dict(sent)
