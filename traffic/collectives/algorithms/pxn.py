"""PXN all-to-all: data leave a server on the rail on which they arrive (NCCL 2.12, PCI x NVLink).

What is meant for a GPU of another server goes over NVLink to the local GPU on the destination's
rail first, and out of that GPU's NIC. On a rail-optimised fabric nothing passes a spine. That GPU
gathers what its server has for the destination: one message instead of many small ones, as long as
it is no larger than a message may be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

from traffic.collectives.algorithms.base import Algorithm, merge, register_algorithm
from traffic.collectives.builder import ScheduleBuilder
from traffic.collectives.exchange import P2P_CHUNKING, BlockMemory, Move, direct_sends, move
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
        largest = max(1, chunking.slice_bytes // request.itemsize)
        gpus, ranks = request.gpus_per_server, request.ranks
        for distance in range(1, request.servers):
            for origin in range(ranks):
                destination = (origin + distance * gpus) % ranks
                for channel in range(request.channels):
                    parts = _parts(request, memory, origin, destination, channel)
                    for batch in _batches(builder, parts, largest):
                        _forward(builder, channel, origin, batch, destination)
        for distance in range(gpus):
            for source in range(ranks):
                destination = source // gpus * gpus + (source + distance) % gpus
                for channel in range(request.channels):
                    for first, second in memory.slots(_move(request, source, destination), channel):
                        if distance:
                            builder.transfer(channel, source, [first], destination, [second])
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


class _Part(NamedTuple):
    """A slot of one GPU's input and where it belongs in the destination's output."""

    source: int
    slot: int
    place: int


def _move(request: CollectiveRequest, source: int, destination: int) -> Move:
    wanted = move(request, source, destination)
    assert wanted is not None
    return wanted


def _parts(
    request: CollectiveRequest, memory: BlockMemory, origin: int, destination: int, channel: int
) -> Iterator[_Part]:
    """What the GPUs of the server of ``origin`` have for a destination: their first slots first."""
    first = origin // request.gpus_per_server * request.gpus_per_server
    blocks = [
        [
            _Part(source, *slots)
            for slots in memory.slots(_move(request, source, destination), channel)
        ]
        for source in range(first, first + request.gpus_per_server)
    ]
    for row in zip_longest(*blocks):
        yield from (part for part in row if part is not None)


def _batches(
    builder: ScheduleBuilder, parts: Iterator[_Part], largest: int
) -> Iterator[list[_Part]]:
    """Neighbouring parts that together have at most ``largest`` elements; empty ones left out."""
    batch: list[_Part] = []
    total = 0
    for part in parts:
        (size,) = builder.sizes(part.source, [part.slot])
        if batch and total + size > largest:
            yield batch
            batch, total = [], 0
        if size:
            batch.append(part)
            total += size
    if batch:
        yield batch


def _forward(
    builder: ScheduleBuilder, channel: int, hop: int, batch: Sequence[_Part], destination: int
) -> None:
    """Gather a batch at the GPU on the destination's rail and send it from there."""
    if [part.source for part in batch] == [hop]:
        held = [batch[0].slot]
    else:
        sizes = [builder.sizes(part.source, [part.slot])[0] for part in batch]
        held = builder.scratch(hop, sizes)
        for part, place in zip(batch, held, strict=True):
            if part.source == hop:
                builder.copy(hop, channel, [place], [part.slot])
            else:
                builder.transfer(channel, part.source, [part.slot], hop, [place])
    places = [part.place for part in batch]
    if places == list(range(places[0], places[0] + len(places))):
        builder.transfer(channel, hop, held, destination, places)
        return
    # other channels' parts, or empty ones, lie between them
    arrival = builder.scratch(destination, builder.sizes(hop, held))
    builder.transfer(channel, hop, held, destination, arrival)
    builder.copy(destination, channel, places, arrival)
