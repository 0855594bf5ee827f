"""Pairwise exchange: n - 1 steps, in each of which every rank sends to one and hears from one.

Nobody begins a step before its part of the last one is done, so that there is no incast (Thakur,
Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005). The
partner is rank XOR step if the number of ranks is a power of two, else rank + step.
"""

from __future__ import annotations

from traffic.collectives.algorithms.base import Algorithm, register_algorithm
from traffic.collectives.builder import ScheduleBuilder
from traffic.collectives.exchange import (
    P2P_CHUNKING,
    Accumulator,
    BlockMemory,
    direct_sends,
    move,
)
from traffic.collectives.request import Chunking, Collective, CollectiveRequest
from traffic.collectives.schedule import Schedule


def partner(ranks: int, rank: int, step: int) -> int:
    """The rank that one sends to in a step."""
    return rank ^ step if ranks & (ranks - 1) == 0 else (rank + step) % ranks


@register_algorithm
class Pairwise(Algorithm):
    """Exchanges between all pairs, one step after the other."""

    name = "pairwise"
    collectives = frozenset(
        {
            Collective.ALL_GATHER,
            Collective.REDUCE_SCATTER,
            Collective.ALL_TO_ALL,
            Collective.ALL_TO_ALLV,
        }
    )
    chunking = P2P_CHUNKING

    def build(self, request: CollectiveRequest, chunking: Chunking) -> Schedule:
        """The schedule of a supported request."""
        memory = BlockMemory(request, chunking)
        builder = ScheduleBuilder(request, self.name, chunking, memory.layouts)
        accumulator = Accumulator(builder)
        for channel in range(request.channels):
            if not request.collective.reduces:
                _copy_own(builder, memory, channel)
            finished: list[list[int]] = [[] for _ in range(request.ranks)]
            for step in range(1, request.ranks):
                after, finished = finished, [[] for _ in range(request.ranks)]
                for source in range(request.ranks):
                    destination = partner(request.ranks, source, step)
                    wanted = move(request, source, destination)
                    assert wanted is not None
                    for first, second in memory.slots(wanted, channel):
                        if request.collective.reduces:
                            sends, receives = accumulator.transfer(
                                channel, source, first, destination,
                                own=first, total=second, after=after[source],
                            )  # fmt: skip
                        else:
                            sends, receives = builder.transfer(
                                channel, source, [first], destination, [second],
                                after=after[source],
                            )  # fmt: skip
                        finished[source] += sends
                        finished[destination] += receives
                for rank in range(request.ranks):
                    # a rank without work in this step still has to remember the last one
                    finished[rank] = finished[rank] or after[rank]
        return builder.build()

    def sent_elements(self, request: CollectiveRequest, rank: int) -> dict[int, int]:
        """Every block to its place, once."""
        return direct_sends(request, rank)


def _copy_own(builder: ScheduleBuilder, memory: BlockMemory, channel: int) -> None:
    for rank in range(builder.request.ranks):
        own = move(builder.request, rank, rank)
        assert own is not None
        for first, second in memory.slots(own, channel):
            builder.copy(rank, channel, [second], [first])
