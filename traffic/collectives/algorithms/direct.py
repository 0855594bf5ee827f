"""Direct: every block goes straight to where it belongs, all at once.

One step of latency, but everybody talks to everybody, and what is to be reduced arrives from all
sides at the same time: incast. Rank r begins with r + 1, so that the senders are spread.
"""

from __future__ import annotations

from traffic.collectives.algorithms.base import Algorithm, merge, register_algorithm
from traffic.collectives.builder import ScheduleBuilder
from traffic.collectives.exchange import (
    P2P_CHUNKING,
    Accumulator,
    BlockMemory,
    direct_sends,
    move,
)
from traffic.collectives.partition import by_block
from traffic.collectives.request import Chunking, Collective, CollectiveRequest
from traffic.collectives.schedule import Layout, Schedule


@register_algorithm
class Direct(Algorithm):
    """All collectives, in one step; all-reduce in two."""

    name = "direct"
    collectives = frozenset(Collective)
    chunking = P2P_CHUNKING

    def build(self, request: CollectiveRequest, chunking: Chunking) -> Schedule:
        """The schedule of a supported request."""
        if request.collective in (Collective.ALL_REDUCE, Collective.BARRIER):
            return _all_reduce(request, chunking)
        memory = BlockMemory(request, chunking)
        builder = ScheduleBuilder(request, self.name, chunking, memory.layouts)
        accumulator = Accumulator(builder)
        for distance in range(request.ranks):
            for source in range(request.ranks):
                destination = (source + distance) % request.ranks
                wanted = move(request, source, destination)
                if wanted is None:
                    continue
                for channel in range(request.channels):
                    for first, second in memory.slots(wanted, channel):
                        if request.collective.reduces:
                            if distance:
                                # everybody has the same input buffer
                                accumulator.transfer(
                                    channel, source, first, destination, own=first, total=second
                                )
                        elif distance:
                            builder.transfer(channel, source, [first], destination, [second])
                        else:
                            builder.copy(source, channel, [second], [first])
        return builder.build()

    def sent_elements(self, request: CollectiveRequest, rank: int) -> dict[int, int]:
        """Every block to its place; all-reduce with blocks b: b[peer] + b[rank] to each peer."""
        if request.collective not in (Collective.ALL_REDUCE, Collective.BARRIER):
            return direct_sends(request, rank)
        blocks = request.blocks
        peers = [peer for peer in range(request.ranks) if peer != rank]
        return merge({peer: blocks[peer] + blocks[rank] for peer in peers})


def _all_reduce(request: CollectiveRequest, chunking: Chunking) -> Schedule:
    """Every rank gets its block from everybody, adds it up, and sends it to everybody."""
    ranks = request.ranks
    sizes, table = by_block(
        request.blocks, channels=request.channels, itemsize=request.itemsize, chunking=chunking
    )
    output = len(sizes)
    builder = ScheduleBuilder(request, Direct.name, chunking, [Layout(sizes, sizes)] * ranks)
    accumulator = Accumulator(builder)
    for distance in range(1, ranks):
        for source in range(ranks):
            owner = (source + distance) % ranks
            for channel, slots in enumerate(table[owner]):
                for slot in slots:
                    accumulator.transfer(
                        channel, source, slot, owner, own=slot, total=output + slot
                    )
    for distance in range(1, ranks):
        for owner in range(ranks):
            peer = (owner + distance) % ranks
            for channel, slots in enumerate(table[owner]):
                for slot in slots:
                    builder.transfer(channel, owner, [output + slot], peer, [output + slot])
    return builder.build()
