"""Several communicators in one plan: where their buffers are, and whether results are right."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from traffic.collectives.expected import evaluate, output_expressions
from traffic.collectives.lowering import BufferOffsets, Rendezvous, buffer_offsets
from traffic.collectives.schedule import Schedule, byte_bounds
from traffic.payload import count_wrong, elements_of, initial_slice
from traffic.plan import MemoryPlan, Plan


@dataclass(frozen=True, slots=True)
class Communicator:
    """Ranks of a plan, in the communicator's order, and what they do together.

    ``buffers[i]`` are in the memory of ``ranks[i]``.
    """

    ranks: tuple[int, ...]
    schedule: Schedule
    buffers: tuple[BufferOffsets, ...]


def place(
    work: Sequence[tuple[Sequence[int], Schedule]],
    *,
    rendezvous: Rendezvous = Rendezvous.NONE,
) -> tuple[list[Communicator], dict[int, MemoryPlan]]:
    """Give every communicator buffers of its own; returns them and the memory of each rank.

    A rank may be in several. All its inputs come first, as only the beginning of a memory is
    initialised.
    """
    inputs: list[list[int]] = []
    end: dict[int, int] = {}
    for ranks, schedule in work:
        inputs.append([end.get(rank, 0) for rank in ranks])
        for rank, buffers in zip(ranks, buffer_offsets(schedule), strict=True):
            end[rank] = end.get(rank, 0) + buffers.output
    initialised = dict(end)
    communicators = []
    for (ranks, schedule), begin in zip(work, inputs, strict=True):
        placed = buffer_offsets(
            schedule, inputs=begin, rest=[end[rank] for rank in ranks], rendezvous=rendezvous
        )
        end.update((rank, buffer.end) for rank, buffer in zip(ranks, placed, strict=True))
        communicators.append(Communicator(tuple(ranks), schedule, placed))
    return communicators, {rank: MemoryPlan(end[rank], initialised[rank]) for rank in end}


class Verifier:
    """Compares what a communicator's ranks hold with what they must hold, bit for bit.

    Remembers the digests of results that several ranks have alike. For one plan only.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._outputs = output_expressions(communicator.schedule)
        self._digests: dict[int, bytes] = {}

    def wrong_elements(self, plan: Plan, rank: int, memory: Any) -> int:
        """Wrong elements in a rank's output; 0 for a rank that is not a member."""
        ranks, buffers = self._communicator.ranks, self._communicator.buffers
        if rank not in ranks:
            return 0
        layouts, itemsize = self._communicator.schedule.layouts, plan.dtype.itemsize
        bounds = [
            byte_bounds(layout.input, itemsize, buffer.input)
            for layout, buffer in zip(layouts, buffers, strict=True)
        ]

        def read(member: int, slot: int) -> NDArray[Any]:
            begin, end = bounds[member][slot]
            return initial_slice(plan, ranks[member], begin, end - begin)

        wrong, own = 0, ranks.index(rank)
        places = byte_bounds(layouts[own].output, itemsize, buffers[own].output)
        for (begin, end), expression in zip(places, self._outputs[own], strict=True):
            if expression is None:
                continue
            actual = elements_of(plan, memory, begin, end - begin)
            if self._digests.get(id(expression)) == _digest(actual):
                continue
            expected = evaluate(expression, read, plan.reduction)
            self._digests[id(expression)] = _digest(expected)
            wrong += count_wrong(actual, expected)
        return wrong


def _digest(values: NDArray[Any]) -> bytes:
    return hashlib.blake2b(values.tobytes(), digest_size=16).digest()
