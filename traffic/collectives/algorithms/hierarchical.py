"""Hierarchical all-reduce: reduce-scatter on NVLink, all-reduce along each rail, all-gather on
NVLink. Only 1/gpus_per_server of the data of a GPU crosses the network, and no packet leaves its
rail. Rings are used at all three stages.
"""

from __future__ import annotations

from collections.abc import Sequence

from traffic.collectives.algorithms.base import Algorithm, merge, register_algorithm
from traffic.collectives.builder import ScheduleBuilder
from traffic.collectives.partition import by_loop
from traffic.collectives.request import Chunking, Collective, CollectiveRequest
from traffic.collectives.schedule import Layout, Schedule


@register_algorithm
class Hierarchical(Algorithm):
    """``channels`` times three stages; loops overlap, so that NVLink and network work together."""

    name = "hierarchical"
    collectives = frozenset({Collective.ALL_REDUCE, Collective.BARRIER})

    def build(self, request: CollectiveRequest, chunking: Chunking) -> Schedule:
        """The schedule of a supported request.

        The data of a loop are cut into a part per local rank, that into a block per server.
        """
        sizes, table = _loops(request, chunking)
        layouts = [Layout(sizes, sizes)] * request.ranks
        builder = ScheduleBuilder(request, self.name, chunking, layouts)
        gpus = request.gpus_per_server
        for channel, loops in enumerate(table):
            for blocks in loops:
                parts = [
                    blocks[local * request.servers : (local + 1) * request.servers]
                    for local in range(gpus)
                ]
                _Loop(builder, channel, parts).fill()
        return builder.build()

    def sent_elements(self, request: CollectiveRequest, rank: int) -> dict[int, int]:
        """With parts p, blocks b of the own part: 2S - p[l] - p[l + 1]; 2p[l] - b[s] - b[s + 1]."""
        gpus, servers = request.gpus_per_server, request.servers
        server, local = divmod(rank, gpus)
        sizes, table = _loops(request, self.chunking_of(request))
        blocks = [0] * request.ranks
        for loop in (loop for loops in table for loop in loops):
            for block, slots in enumerate(loop):
                blocks[block] += sum(sizes[slot] for slot in slots)
        parts = [sum(blocks[i * servers : (i + 1) * servers]) for i in range(gpus)]
        own = blocks[local * servers : (local + 1) * servers]
        around, along = (local + 1) % gpus, (server + 1) % servers
        inside, rail = {}, {}
        if gpus > 1:
            inside = {server * gpus + around: 2 * request.elements - parts[local] - parts[around]}
        if servers > 1:
            rail = {along * gpus + local: 2 * parts[local] - own[server] - own[along]}
        return merge(inside, rail)


def _loops(
    request: CollectiveRequest, chunking: Chunking
) -> tuple[tuple[int, ...], list[list[list[list[int]]]]]:
    return by_loop(
        request.elements,
        request.ranks,
        channels=request.channels,
        itemsize=request.itemsize,
        chunking=chunking,
    )


class _Loop:
    """One loop of one channel; ``parts[local][server]`` lists the slots of a block."""

    def __init__(
        self, builder: ScheduleBuilder, channel: int, parts: list[list[list[int]]]
    ) -> None:
        self._builder = builder
        self._channel = channel
        self._parts = parts
        self._output = len(builder.layout(0).input)

    def fill(self) -> None:
        """Add all three stages."""
        request = self._builder.request
        gpus, servers = request.gpus_per_server, request.servers
        whole = [[slot for block in part for slot in block] for part in self._parts]
        inside = [list(range(server * gpus, (server + 1) * gpus)) for server in range(servers)]
        for members in inside:
            self._reduce_scatter(members, whole, from_input=True)
        for local, part in enumerate(self._parts):
            rail = list(range(local, request.ranks, gpus))
            self._reduce_scatter(rail, part, from_input=gpus == 1)
            self._all_gather(rail, part)
        for members in inside:
            self._all_gather(members, whole)

    def _reduce_scatter(
        self, ring: Sequence[int], blocks: Sequence[Sequence[int]], *, from_input: bool
    ) -> None:
        """Afterwards member i holds the sum of block i.

        The first time, own data are still in the input, and partial sums arrive in the output;
        later these are being added to, and arrivals need scratch memory.
        """
        builder, members = self._builder, len(ring)
        for step in range(members - 1):
            for place, rank in enumerate(ring):
                peer = ring[(place + 1) % members]
                for slot in blocks[(place - 1 - step) % members]:
                    total = [self._output + slot]
                    if from_input:
                        source = total if step else [slot]
                        builder.transfer(self._channel, rank, source, peer, total)
                        builder.reduce(peer, self._channel, total, [slot])
                    else:
                        arrival = builder.scratch(peer, builder.sizes(peer, [slot]))
                        builder.transfer(self._channel, rank, total, peer, arrival)
                        builder.reduce(peer, self._channel, total, arrival)

    def _all_gather(self, ring: Sequence[int], blocks: Sequence[Sequence[int]]) -> None:
        """Member i's block goes round; results overwrite sums that they depend on."""
        members = len(ring)
        for step in range(members - 1):
            for place, rank in enumerate(ring):
                peer = ring[(place + 1) % members]
                for slot in blocks[(place - step) % members]:
                    result = [self._output + slot]
                    self._builder.transfer(self._channel, rank, result, peer, result)
