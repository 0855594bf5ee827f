"""Rings: every rank sends to the next one only (Patarasuk and Yuan, "Bandwidth optimal all-reduce
algorithms", 2009; chunk numbers as in NCCL's ring). Long pipelines, no rank with two senders.
"""

from __future__ import annotations

from itertools import zip_longest

from traffic.collectives.algorithms.base import Algorithm, merge, register_algorithm
from traffic.collectives.builder import ScheduleBuilder
from traffic.collectives.partition import by_block, by_loop
from traffic.collectives.request import Chunking, Collective, CollectiveRequest, cut
from traffic.collectives.schedule import Layout, Schedule

CHAIN_CHUNKING = Chunking(slice_bytes=2**19, slices_per_chunk=1, messages_in_flight=8)
"""Where data go round once, from or to a root, NCCL works in single steps of 512 KiB
(BROADCAST_CHUNKSTEPS and REDUCE_CHUNKSTEPS in collectives.h)."""


def ring_order(request: CollectiveRequest, channel: int) -> list[int]:
    """The ranks in the order of a channel's ring.

    Every server is one stretch of the ring. Each channel enters at another GPU, so that all NICs
    are used, and every other server is passed backwards, so that a stretch ends on the rail on
    which the next begins.
    """
    gpus = request.gpus_per_server
    order = []
    for server in range(request.servers):
        stretch = [server * gpus + (channel + place) % gpus for place in range(gpus)]
        order += stretch[::-1] if server % 2 else stretch
    return order


@register_algorithm
class Ring(Algorithm):
    """``channels`` rings, each with its share of the data."""

    name = "ring"
    collectives = frozenset(
        {
            Collective.BROADCAST,
            Collective.REDUCE,
            Collective.ALL_GATHER,
            Collective.REDUCE_SCATTER,
            Collective.ALL_REDUCE,
            Collective.BARRIER,
        }
    )

    def chunking_of(self, request: CollectiveRequest) -> Chunking:
        """The request's own, or NCCL's for the collective."""
        return request.chunking or (
            CHAIN_CHUNKING if request.collective.has_root else self.chunking
        )

    def build(self, request: CollectiveRequest, chunking: Chunking) -> Schedule:
        """The schedule of a supported request."""
        match request.collective:
            case Collective.BROADCAST:
                return _broadcast(request, chunking)
            case Collective.REDUCE:
                return _reduce(request, chunking)
            case Collective.ALL_GATHER:
                return _all_gather(request, chunking)
            case Collective.REDUCE_SCATTER:
                return _reduce_scatter(request, chunking)
            case _:
                return _all_reduce(request, chunking)

    def sent_elements(self, request: CollectiveRequest, rank: int) -> dict[int, int]:
        """Per channel, with blocks b by place on the ring: all-reduce 2S - b[r] - b[r + 1]."""
        sent = []
        for channel in range(request.channels):
            order = ring_order(request, channel)
            place = order.index(rank)
            peer = order[(place + 1) % request.ranks]
            sent.append({peer: self._through(request, channel, order, place)})
        return merge(*sent)

    def _through(
        self, request: CollectiveRequest, channel: int, order: list[int], place: int
    ) -> int:
        """Elements that the rank at a place of a channel's ring passes on."""
        following = (place + 1) % request.ranks
        if request.collective in (Collective.ALL_REDUCE, Collective.BARRIER):
            sizes, table = _loops(request, self.chunking_of(request))
            blocks = [
                sum(sizes[slot] for loop in table[channel] for slot in loop[block])
                for block in range(request.ranks)
            ]
            return 2 * sum(blocks) - blocks[place] - blocks[following]
        if request.collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
            shares = [cut(block, request.channels)[channel] for block in request.blocks]
            # what the next rank begins with, or what this rank ends with, stays
            gather = request.collective is Collective.ALL_GATHER
            return sum(shares) - shares[order[following if gather else place]]
        share = cut(request.elements, request.channels)[channel]
        root = order.index(request.root)
        last = (root - 1) % request.ranks if request.collective is Collective.BROADCAST else root
        return 0 if place == last else share


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


def _all_reduce(request: CollectiveRequest, chunking: Chunking) -> Schedule:
    """A reduce-scatter, then an all-gather, loop after loop.

    Partial sums arrive in the output. The final value may overwrite one as soon as it arrives:
    it cannot exist before the partial sum has reached the neighbour.
    """
    ranks = request.ranks
    sizes, table = _loops(request, chunking)
    output = len(sizes)
    builder = ScheduleBuilder(request, Ring.name, chunking, [Layout(sizes, sizes)] * ranks)
    for channel, loops in enumerate(table):
        order = ring_order(request, channel)
        for blocks in loops:
            for step in range(2 * (ranks - 1)):
                for place, rank in enumerate(order):
                    peer = order[(place + 1) % ranks]
                    for slot in blocks[(place - 1 - step) % ranks]:
                        source = slot if step == 0 else output + slot
                        builder.transfer(channel, rank, [source], peer, [output + slot])
                        if step < ranks - 1:
                            builder.reduce(peer, channel, [output + slot], [slot])
    return builder.build()


def _all_gather(request: CollectiveRequest, chunking: Chunking) -> Schedule:
    """In step s everybody passes on the block of the rank s places before it."""
    ranks = request.ranks
    sizes, table = _blocks(request, chunking)
    layouts, first = [], []
    for rank in range(ranks):
        begin = table[rank][0][0]
        own = sizes[begin : begin + sum(map(len, table[rank]))]
        layouts.append(Layout(own, sizes))
        first.append(len(own))
    builder = ScheduleBuilder(request, Ring.name, chunking, layouts)
    for rank in range(ranks):
        begin = table[rank][0][0]
        for channel, slots in enumerate(table[rank]):
            for slot in slots:
                builder.copy(rank, channel, [first[rank] + slot], [slot - begin])
    for channel in range(request.channels):
        order = ring_order(request, channel)
        for chunk in _rounds(table, channel):
            for step in range(ranks - 1):
                for place, rank in enumerate(order):
                    peer, block = order[(place + 1) % ranks], order[(place - step) % ranks]
                    part = chunk[block]
                    if part is not None:
                        source = first[rank] + part if step else part - table[rank][0][0]
                        builder.transfer(channel, rank, [source], peer, [first[peer] + part])
    return builder.build()


def _reduce_scatter(request: CollectiveRequest, chunking: Chunking) -> Schedule:
    """In step s everybody passes on the partial sum that will end s + 1 places before it."""
    ranks = request.ranks
    sizes, table = _blocks(request, chunking)
    layouts = []
    for rank in range(ranks):
        begin = table[rank][0][0]
        layouts.append(Layout(sizes, sizes[begin : begin + sum(map(len, table[rank]))]))
    builder = ScheduleBuilder(request, Ring.name, chunking, layouts)
    # landing[rank][slot]: where the partial sum of an input slot arrives
    landing = []
    for rank in range(ranks):
        begin, end = table[rank][0][0], table[rank][0][0] + len(layouts[rank].output)
        foreign = [slot for slot in range(len(sizes)) if not begin <= slot < end]
        places = dict(zip(foreign, builder.scratch(rank, [sizes[s] for s in foreign]), strict=True))
        places.update({slot: len(sizes) + slot - begin for slot in range(begin, end)})
        landing.append(places)
    for channel in range(request.channels):
        order = ring_order(request, channel)
        for chunk in _rounds(table, channel):
            for step in range(ranks - 1):
                for place, rank in enumerate(order):
                    peer = order[(place + 1) % ranks]
                    part = chunk[order[(place - 1 - step) % ranks]]
                    if part is not None:
                        source = landing[rank][part] if step else part
                        arrival = [landing[peer][part]]
                        builder.transfer(channel, rank, [source], peer, arrival)
                        builder.reduce(peer, channel, arrival, [part])
    return builder.build()


def _broadcast(request: CollectiveRequest, chunking: Chunking) -> Schedule:
    """A chain that begins at the root."""
    ranks, root = request.ranks, request.root
    sizes, (shares,) = _whole(request, chunking)
    layouts = [Layout(sizes if rank == root else (), sizes) for rank in range(ranks)]
    builder = ScheduleBuilder(request, Ring.name, chunking, layouts)
    for channel, slots in enumerate(shares):
        order = ring_order(request, channel)
        begin = order.index(root)
        for slot in slots:
            builder.copy(root, channel, [len(sizes) + slot], [slot])
            for step in range(ranks - 1):
                rank, peer = (order[(begin + step + end) % ranks] for end in (0, 1))
                builder.transfer(channel, rank, [slot], peer, [slot])
    return builder.build()


def _reduce(request: CollectiveRequest, chunking: Chunking) -> Schedule:
    """A chain that ends at the root."""
    ranks, root = request.ranks, request.root
    sizes, (shares,) = _whole(request, chunking)
    layouts = [Layout(sizes, sizes if rank == root else ()) for rank in range(ranks)]
    builder = ScheduleBuilder(request, Ring.name, chunking, layouts)
    for channel, slots in enumerate(shares):
        order = ring_order(request, channel)
        begin = order.index(root) + 1
        for slot in slots:
            held = slot
            for step in range(ranks - 1):
                rank, peer = (order[(begin + step + end) % ranks] for end in (0, 1))
                arrival = len(sizes) + slot
                if peer != root:
                    (arrival,) = builder.scratch(peer, [sizes[slot]])
                builder.transfer(channel, rank, [held], peer, [arrival])
                builder.reduce(peer, channel, [arrival], [slot])
                held = arrival
    return builder.build()


def _blocks(
    request: CollectiveRequest, chunking: Chunking
) -> tuple[tuple[int, ...], list[list[list[int]]]]:
    return by_block(
        request.blocks, channels=request.channels, itemsize=request.itemsize, chunking=chunking
    )


def _whole(
    request: CollectiveRequest, chunking: Chunking
) -> tuple[tuple[int, ...], list[list[list[int]]]]:
    return by_block(
        [request.elements], channels=request.channels, itemsize=request.itemsize, chunking=chunking
    )


def _rounds(table: list[list[list[int]]], channel: int) -> list[tuple[int | None, ...]]:
    """A channel's slots of every block, slice after slice; None where a block has fewer."""
    return list(zip_longest(*(block[channel] for block in table)))
