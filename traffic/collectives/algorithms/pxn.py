"""PXN all-to-all: data leave a server on the rail on which they arrive (NCCL 2.12, PCI x NVLink).

What is meant for a GPU of another server goes over NVLink to the local GPU on the destination's
rail first, and out of that GPU's NIC. On a rail-optimised fabric nothing passes a spine.
"""

from __future__ import annotations

from traffic.collectives.algorithms.base import Algorithm, merge, register_algorithm
from traffic.collectives.builder import ScheduleBuilder
from traffic.collectives.exchange import P2P_CHUNKING, BlockMemory, direct_sends, move
from traffic.collectives.request import Chunking, Collective, CollectiveRequest
from traffic.collectives.schedule import Schedule


def proxy(request: CollectiveRequest, source: int, destination: int) -> int:
    """The GPU of the source's server that is on the destination's rail."""
    gpus = request.gpus_per_server
    return source // gpus * gpus + destination % gpus


@register_algorithm
class Pxn(Algorithm):
    """At most two hops: NVLink to the right rail, then the network."""

    name = "pxn"
    collectives = frozenset({Collective.ALL_TO_ALL, Collective.ALL_TO_ALLV})
    chunking = P2P_CHUNKING

    def build(self, request: CollectiveRequest, chunking: Chunking) -> Schedule:
        """The schedule of a supported request."""
        memory = BlockMemory(request, chunking)
        builder = ScheduleBuilder(request, self.name, chunking, memory.layouts)
        for distance in range(request.ranks):
            for source in range(request.ranks):
                destination = (source + distance) % request.ranks
                wanted = move(request, source, destination)
                assert wanted is not None
                for channel in range(request.channels):
                    for first, second in memory.slots(wanted, channel):
                        if distance:
                            _forward(builder, channel, source, first, destination, second)
                        else:
                            builder.copy(source, channel, [second], [first])
        return builder.build()

    def sent_elements(self, request: CollectiveRequest, rank: int) -> dict[int, int]:
        """Own blocks to the proxy or the destination, and what other GPUs leave with this one."""
        if request.gpus_per_server == 1:
            return direct_sends(request, rank)
        sent = []
        for source in range(request.ranks):
            for destination in range(request.ranks):
                hop = destination
                if not request.is_local(source, destination):
                    hop = proxy(request, source, destination)
                elements = request.count(source, destination)
                if source == rank != hop:
                    sent.append({hop: elements})
                if hop == rank != destination:
                    sent.append({destination: elements})
        return merge(*sent)


def _forward(
    builder: ScheduleBuilder,
    channel: int,
    source: int,
    source_slot: int,
    destination: int,
    destination_slot: int,
) -> None:
    request = builder.request
    hop = proxy(request, source, destination)
    if hop != source and not request.is_local(source, destination):
        stop = builder.scratch(hop, builder.sizes(source, [source_slot]))
        builder.transfer(channel, source, [source_slot], hop, stop)
        builder.transfer(channel, hop, stop, destination, [destination_slot])
    else:
        builder.transfer(channel, source, [source_slot], destination, [destination_slot])
