"""Hierarchical: rings on NVLink inside servers, rings along rails between them.

All-reduce is a reduce-scatter inside, an all-reduce along each rail and an all-gather inside;
reduce-scatter and all-gather have two of these stages. All NICs work, each with its share of the
server's data, and no packet leaves its rail. Slices overlap, so that NVLink and network work at
the same time.
"""

from __future__ import annotations

from collections.abc import Sequence

from traffic.collectives.algorithms.base import Algorithm, merge, register_algorithm
from traffic.collectives.builder import ScheduleBuilder
from traffic.collectives.exchange import BlockMemory
from traffic.collectives.partition import by_loop
from traffic.collectives.request import Chunking, Collective, CollectiveRequest
from traffic.collectives.schedule import Layout, Schedule


@register_algorithm
class Hierarchical(Algorithm):
    """Every stage has ``channels`` rings per server or rail."""

    name = "hierarchical"
    collectives = frozenset(
        {
            Collective.ALL_GATHER,
            Collective.REDUCE_SCATTER,
            Collective.ALL_REDUCE,
            Collective.BARRIER,
        }
    )

    def build(self, request: CollectiveRequest, chunking: Chunking) -> Schedule:
        """The schedule of a supported request."""
        if request.collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
            return _by_slices(request, chunking)
        return _all_reduce(request, chunking)

    def sent_elements(self, request: CollectiveRequest, rank: int) -> dict[int, int]:
        """With b[s, l] for server s and local rank l, their sums p[l], and S of all of them.

        All-reduce: inside 2S - p[l] - p[l + 1], along the rail 2p[l] - b[s, l] - b[s + 1, l].
        All-gather: S - p[l + 1] and p[l] - b[s + 1, l]; reduce-scatter: S - p[l], p[l] - b[s, l].
        """
        gpus, servers = request.gpus_per_server, request.servers
        server, local = divmod(rank, gpus)
        around, along = (local + 1) % gpus, (server + 1) % servers
        blocks = self._blocks(request)
        parts = [sum(blocks[member, i] for member in range(servers)) for i in range(gpus)]
        inside = rail = 0
        if request.collective is not Collective.ALL_GATHER:
            inside += sum(parts) - parts[local]
            rail += parts[local] - blocks[server, local]
        if request.collective is not Collective.REDUCE_SCATTER:
            inside += sum(parts) - parts[around]
            rail += parts[local] - blocks[along, local]
        return merge(
            {server * gpus + around: inside if gpus > 1 else 0},
            {along * gpus + local: rail if servers > 1 else 0},
        )

    def _blocks(self, request: CollectiveRequest) -> dict[tuple[int, int], int]:
        """Elements by server and local rank."""
        gpus, servers = request.gpus_per_server, request.servers
        if request.collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
            return {divmod(rank, gpus): size for rank, size in enumerate(request.blocks)}
        sizes, table = _loops(request, self.chunking_of(request))
        blocks = dict.fromkeys(((s, i) for s in range(servers) for i in range(gpus)), 0)
        for loop in (loop for loops in table for loop in loops):
            for block, slots in enumerate(loop):
                local, server = divmod(block, servers)
                blocks[server, local] += sum(sizes[slot] for slot in slots)
        return blocks


def _all_reduce(request: CollectiveRequest, chunking: Chunking) -> Schedule:
    """The data of a loop are cut into a part per local rank, that into a block per server."""
    sizes, table = _loops(request, chunking)
    layouts = [Layout(sizes, sizes)] * request.ranks
    builder = ScheduleBuilder(request, Hierarchical.name, chunking, layouts)
    servers = request.servers
    for channel, loops in enumerate(table):
        for blocks in loops:
            parts = [blocks[i : i + servers] for i in range(0, request.ranks, servers)]
            _Loop(builder, channel, parts).fill()
    return builder.build()


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


def _by_slices(request: CollectiveRequest, chunking: Chunking) -> Schedule:
    """All-gather or reduce-scatter, slice after slice of the ranks' blocks, channels in turn."""
    memory = BlockMemory(request, chunking)
    builder = ScheduleBuilder(request, Hierarchical.name, chunking, memory.layouts)
    gather = request.collective is Collective.ALL_GATHER
    blocks = (memory.output if gather else memory.input)[0]
    for index in range(max(len(slots) for block in blocks for slots in block)):
        for channel in range(request.channels):
            part = _Slice(builder, memory, channel, index)
            if gather:
                part.all_gather()
            else:
                part.reduce_scatter()
    return builder.build()


class _Slice:
    """One slice of every block, on one channel."""

    def __init__(
        self, builder: ScheduleBuilder, memory: BlockMemory, channel: int, index: int
    ) -> None:
        self._builder = builder
        self._channel = channel
        request = self._request = builder.request

        def part(slots: list[list[int]]) -> list[int]:
            return slots[channel][index : index + 1]

        # [rank][block]: one slot, or none where a block has fewer slices
        self._input = [[part(block) for block in blocks] for blocks in memory.input]
        self._output = [[part(block) for block in blocks] for blocks in memory.output]
        # [rank][block]: where a rank has its sum so far
        self._held = [list(blocks) for blocks in self._input]
        self._ranks = range(request.ranks)
        gpus = request.gpus_per_server
        self._around = [rank // gpus * gpus + (rank + 1) % gpus for rank in self._ranks]
        self._along = [(rank + gpus) % request.ranks for rank in self._ranks]

    def all_gather(self) -> None:
        """Blocks go along their rail, then everybody passes its rail's round its server."""
        gpus = self._request.gpus_per_server
        for rank in self._ranks:
            self._builder.copy(rank, self._channel, self._output[rank][rank], self._input[rank][0])
        for step in range(self._request.servers - 1):
            for rank in self._ranks:
                self._pass(rank, self._along[rank], (rank - step * gpus) % len(self._ranks))
        for step in range(gpus - 1):
            for rank in self._ranks:
                for block in self._ranks[(rank - step) % gpus :: gpus]:
                    self._pass(rank, self._around[rank], block)

    def _pass(self, rank: int, peer: int, block: int) -> None:
        source, target = self._output[rank][block], self._output[peer][block]
        self._builder.transfer(self._channel, rank, source, peer, target)

    def reduce_scatter(self) -> None:
        """Servers add up what they have for each rail; the sums are added up along the rail."""
        gpus, servers = self._request.gpus_per_server, self._request.servers
        for step in range(gpus - 1):
            for rank in self._ranks:
                for block in self._ranks[(rank - 1 - step) % gpus :: gpus]:
                    self._add(rank, self._around[rank], block, last=servers == 1)
        for step in range(servers - 1):
            for rank in self._ranks:
                block = (rank - (step + 1) * gpus) % len(self._ranks)
                self._add(rank, self._along[rank], block, last=True)

    def _add(self, rank: int, peer: int, block: int, *, last: bool) -> None:
        """Add a rank's sum to its peer's; in the ``last`` stage a peer's own block is done."""
        builder, own = self._builder, self._held[peer][block]
        if last and block == peer:
            arrival = self._output[peer][0]
        else:
            arrival = builder.scratch(peer, builder.sizes(peer, own))
        builder.transfer(self._channel, rank, self._held[rank][block], peer, arrival)
        builder.reduce(peer, self._channel, arrival, own)
        self._held[peer][block] = arrival
