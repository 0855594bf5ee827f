"""Messages that go straight from their source to their destination, for several algorithms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from traffic.collectives.algorithms.base import merge
from traffic.collectives.builder import ScheduleBuilder
from traffic.collectives.partition import by_block
from traffic.collectives.request import Chunking, Collective, CollectiveRequest
from traffic.collectives.schedule import Layout

P2P_CHUNKING = Chunking(slice_bytes=2**17, slices_per_chunk=1, messages_in_flight=8)
"""NCCL cuts what point-to-point calls send over the network into chunks of 128 KiB."""


class Move(NamedTuple):
    """A block of one rank's input that belongs into a block of a rank's output."""

    source: int
    input_block: int
    destination: int
    output_block: int


def move(request: CollectiveRequest, source: int, destination: int) -> Move | None:
    """What one rank has for another, or for itself; None if nothing.

    For collectives that only move data, and for reduce and reduce-scatter, where all blocks for
    the same place are combined.
    """
    root = request.root
    match request.collective:
        case Collective.BROADCAST:
            found, used = Move(source, 0, destination, 0), source == root
        case Collective.SCATTER:
            found, used = Move(source, destination, destination, 0), source == root
        case Collective.REDUCE:
            found, used = Move(source, 0, destination, 0), destination == root
        case Collective.GATHER:
            found, used = Move(source, 0, destination, source), destination == root
        case Collective.SEND_RECV:
            found = Move(source, 0, destination, 0)
            used = destination == (source + 1) % request.ranks
        case Collective.ALL_GATHER:
            found, used = Move(source, 0, destination, source), True
        case Collective.REDUCE_SCATTER:
            found, used = Move(source, destination, destination, 0), True
        case _:
            found, used = Move(source, destination, destination, source), True
    return found if used else None


class BlockMemory:
    """Input and output of every rank by block: ``input[rank][block][channel]`` lists slots."""

    def __init__(self, request: CollectiveRequest, chunking: Chunking) -> None:
        self.layouts: list[Layout] = []
        self.input: list[list[list[list[int]]]] = []
        self.output: list[list[list[list[int]]]] = []

        @cache  # most collectives have the same blocks in every rank
        def cut_up(
            blocks: tuple[int, ...], first: int
        ) -> tuple[tuple[int, ...], list[list[list[int]]]]:
            return by_block(
                blocks,
                channels=request.channels,
                itemsize=request.itemsize,
                chunking=chunking,
                first=first,
            )

        for rank in range(request.ranks):
            sizes, table = cut_up(request.input_blocks(rank), 0)
            output_sizes, output_table = cut_up(request.output_blocks(rank), len(sizes))
            self.layouts.append(Layout(sizes, output_sizes))
            self.input.append(table)
            self.output.append(output_table)

    def slots(self, wanted: Move, channel: int) -> Iterator[tuple[int, int]]:
        """(slot at the source, slot at the destination) of a channel's share, in order."""
        return zip(
            self.input[wanted.source][wanted.input_block][channel],
            self.output[wanted.destination][wanted.output_block][channel],
            strict=True,
        )


class Accumulator:
    """Adds messages for the same slots up: the first with the rank's own input, then the rest."""

    def __init__(self, builder: ScheduleBuilder) -> None:
        self._builder = builder
        self._begun: set[tuple[int, int]] = set()

    def transfer(
        self,
        channel: int,
        source: int,
        source_slot: int,
        destination: int,
        *,
        own: int,
        total: int,
        after: Sequence[int] = (),
    ) -> tuple[list[int], list[int]]:
        """Send a slot to where it is added to ``total``, which begins with the slot ``own``.

        Returns the positions of the SENDs and RECEIVEs.
        """
        builder = self._builder
        first = (destination, total) not in self._begun
        self._begun.add((destination, total))
        place = [total]
        if not first:
            place = builder.scratch(destination, builder.sizes(destination, place))
        ends = builder.transfer(channel, source, [source_slot], destination, place, after=after)
        builder.reduce(destination, channel, [total], [own] if first else place)
        return ends


def direct_sends(request: CollectiveRequest, rank: int) -> dict[int, int]:
    """Elements that a rank sends to each peer when every block goes straight to its place."""
    sent, blocks = [], request.input_blocks(rank)
    for peer in range(request.ranks):
        wanted = move(request, rank, peer)
        if wanted is not None and peer != rank:
            sent.append({peer: blocks[wanted.input_block]})
    return merge(*sent)
