"""Recursive halving and doubling: log2(n) steps with partners at distances n/2, n/4, ... 1 and back
(Rabenseifner, "Optimization of collective reduction operations", 2004).

When n is no power of two, the second of each of the first n - 2^k pairs of ranks gives its data to
the first, stays out, and gets its result in the end; the others are the core. A step's data go in
one message per channel where they are contiguous: the algorithm does not pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence

from traffic.collectives.algorithms.base import Algorithm, merge, register_algorithm
from traffic.collectives.builder import ScheduleBuilder
from traffic.collectives.partition import by_block, by_loop
from traffic.collectives.request import Chunking, Collective, CollectiveRequest, cut
from traffic.collectives.schedule import Layout, Schedule

_WHOLE = Chunking(slice_bytes=2**40, slices_per_chunk=1)
"""Cuts nothing: the blocks themselves are the slots."""


class Core:
    """The 2^k ranks that take part: ``rank_of[i]`` is member i, ``outsider_of[i]`` its pair."""

    def __init__(self, ranks: int) -> None:
        self.size = 1 << (ranks.bit_length() - 1)
        pairs = ranks - self.size
        self.rank_of = [2 * i if i < pairs else i + pairs for i in range(self.size)]
        self.outsider_of = {i: 2 * i + 1 for i in range(pairs)}
        self.distances = [1 << bit for bit in range(self.size.bit_length() - 1)]

    def blocks_of(self, member: int) -> list[int]:
        """The ranks that a member works for: itself and its outsider."""
        outsider = self.outsider_of.get(member)
        return [self.rank_of[member], *([] if outsider is None else [outsider])]

    @staticmethod
    def window(member: int, distance: int) -> range:
        """The aligned ``distance`` members around one."""
        first = member & -distance
        return range(first, first + distance)


@register_algorithm
class RecursiveHalvingDoubling(Algorithm):
    """All-reduce is halving, then doubling; reduce-scatter and all-gather are one of the two."""

    name = "recursive-halving-doubling"
    collectives = frozenset(
        {
            Collective.ALL_REDUCE,
            Collective.REDUCE_SCATTER,
            Collective.ALL_GATHER,
            Collective.BARRIER,
        }
    )
    chunking = Chunking(slice_bytes=2**20, slices_per_chunk=1, messages_in_flight=8)

    def build(self, request: CollectiveRequest, chunking: Chunking) -> Schedule:
        """The schedule of a supported request."""
        match request.collective:
            case Collective.REDUCE_SCATTER:
                return _reduce_scatter(request, chunking)
            case Collective.ALL_GATHER:
                return _all_gather(request, chunking)
            case _:
                return _all_reduce(request, chunking)

    def sent_elements(self, request: CollectiveRequest, rank: int) -> dict[int, int]:
        """Halving sends half, a quarter, ... of all blocks; doubling one block, two, four, ..."""
        core = Core(request.ranks)
        everything = request.collective in (Collective.ALL_REDUCE, Collective.BARRIER)
        halves = request.collective is not Collective.ALL_GATHER
        doubles = request.collective is not Collective.REDUCE_SCATTER
        if rank not in core.rank_of:
            own = request.elements if halves else request.blocks[rank]
            return merge({rank - 1: own})
        member = core.rank_of.index(rank)
        groups = [sum(request.blocks[rank] for rank in core.blocks_of(i)) for i in range(core.size)]
        if everything:
            groups = [0] * core.size
            for share in cut(request.elements, request.channels):
                groups = [sum(pair) for pair in zip(groups, cut(share, core.size), strict=True)]
        sent = []
        for distance in core.distances:
            peer = member ^ distance
            window = core.window(peer, distance) if halves else range(0)
            back = core.window(member, distance) if doubles else range(0)
            elements = sum(groups[i] for i in window) + sum(groups[i] for i in back)
            sent.append({core.rank_of[peer]: elements})
        if member in core.outsider_of:
            outsider = core.outsider_of[member]
            block = request.blocks[outsider]
            rest = request.elements - (0 if everything else block)
            sent.append({outsider: rest if doubles else block})
        return merge(*sent)


class _Steps:
    """Fold, halving, doubling and unfold on one channel; ``groups[i]`` are member i's slots.

    ``total[rank][slot]`` is where a rank adds up what belongs to an input slot, or collects it.
    """

    def __init__(
        self,
        builder: ScheduleBuilder,
        channel: int,
        groups: list[list[int]],
        total: Sequence[Sequence[int]],
    ) -> None:
        self._builder = builder
        self._channel = channel
        self._groups = groups
        self._total = total
        self._core = Core(builder.request.ranks)
        self._begun: set[int] = set()

    def _window(self, member: int, distance: int) -> list[int]:
        return [slot for i in self._core.window(member, distance) for slot in self._groups[i]]

    def _held(self, rank: int, slots: Sequence[int]) -> list[int]:
        """Where a rank has its partial sums: still in its input before the first addition."""
        return [self._total[rank][slot] if rank in self._begun else slot for slot in slots]

    def _add(self, source: int, destination: int, slots: Sequence[int]) -> None:
        builder, total = self._builder, [self._total[destination][slot] for slot in slots]
        held = self._held(source, slots)
        if destination in self._begun:
            arrival = builder.scratch(destination, builder.sizes(destination, slots))
            builder.transfer(self._channel, source, held, destination, arrival)
            builder.reduce(destination, self._channel, total, arrival)
        else:
            builder.transfer(self._channel, source, held, destination, total)
            builder.reduce(destination, self._channel, total, slots)

    def fold(self) -> None:
        """Outsiders give all their data to their partners, who add them to their own."""
        slots = self._window(0, self._core.size)
        for member, outsider in self._core.outsider_of.items():
            rank = self._core.rank_of[member]
            self._add(outsider, rank, slots)
            self._begun.add(rank)

    def halve(self) -> None:
        """Partners swap the halves that the other one goes on with, at ever smaller distances."""
        core = self._core
        for distance in reversed(core.distances):
            for member, rank in enumerate(core.rank_of):
                peer = member ^ distance
                self._add(rank, core.rank_of[peer], self._window(peer, distance))
            self._begun.update(core.rank_of)

    def double(self) -> None:
        """Partners swap all the results that they have, at ever larger distances."""
        core = self._core
        for distance in core.distances:
            for member, rank in enumerate(core.rank_of):
                self.move(rank, core.rank_of[member ^ distance], self._window(member, distance))

    def move(self, source: int, destination: int, slots: Sequence[int]) -> None:
        """Send results to where the destination collects them."""
        self._builder.transfer(
            self._channel,
            source,
            [self._total[source][slot] for slot in slots],
            destination,
            [self._total[destination][slot] for slot in slots],
        )


def _all_reduce(request: CollectiveRequest, chunking: Chunking) -> Schedule:
    """The final values may overwrite partial sums: they depend on those having been sent."""
    core = Core(request.ranks)
    sizes, table = by_loop(
        request.elements, core.size, channels=request.channels, itemsize=1, chunking=_WHOLE
    )
    output = list(range(len(sizes), 2 * len(sizes)))
    layouts = [Layout(sizes, sizes)] * request.ranks
    builder = ScheduleBuilder(request, RecursiveHalvingDoubling.name, chunking, layouts)
    for channel, (groups,) in enumerate(table):
        steps = _Steps(builder, channel, groups, [output] * request.ranks)
        steps.fold()
        steps.halve()
        steps.double()
        for member, outsider in core.outsider_of.items():
            everything = [slot for group in groups for slot in group]
            steps.move(core.rank_of[member], outsider, everything)
    return builder.build()


def _reduce_scatter(request: CollectiveRequest, chunking: Chunking) -> Schedule:
    """Sums are made in scratch memory; a member hands its outsider's block over in the end."""
    core = Core(request.ranks)
    sizes, table = by_block(request.blocks, channels=request.channels, itemsize=1, chunking=_WHOLE)
    layouts = [
        Layout(sizes, tuple(sizes[slots[0]] for slots in table[rank]))
        for rank in range(request.ranks)
    ]
    builder = ScheduleBuilder(request, RecursiveHalvingDoubling.name, chunking, layouts)
    total = [
        builder.scratch(rank, sizes) if rank in core.rank_of else []
        for rank in range(request.ranks)
    ]
    for channel in range(request.channels):
        steps = _Steps(builder, channel, _groups(core, table, channel), total)
        steps.fold()
        steps.halve()
        for member, rank in enumerate(core.rank_of):
            output = [len(sizes) + channel]
            builder.copy(rank, channel, output, [total[rank][table[rank][channel][0]]])
            if member in core.outsider_of:
                outsider = core.outsider_of[member]
                result = [total[rank][table[outsider][channel][0]]]
                builder.transfer(channel, rank, result, outsider, output)
    return builder.build()


def _all_gather(request: CollectiveRequest, chunking: Chunking) -> Schedule:
    """A member collects its own and its outsider's block, then all; the outsider gets the rest."""
    core, channels = Core(request.ranks), request.channels
    sizes, table = by_block(request.blocks, channels=channels, itemsize=1, chunking=_WHOLE)
    layouts = [
        Layout(tuple(sizes[slots[0]] for slots in table[rank]), sizes)
        for rank in range(request.ranks)
    ]
    builder = ScheduleBuilder(request, RecursiveHalvingDoubling.name, chunking, layouts)
    output = list(range(channels, channels + len(sizes)))
    for channel in range(channels):
        for rank in range(request.ranks):
            builder.copy(rank, channel, [output[table[rank][channel][0]]], [channel])
        for member, outsider in core.outsider_of.items():
            place = [output[table[outsider][channel][0]]]
            builder.transfer(channel, outsider, [channel], core.rank_of[member], place)
        groups = _groups(core, table, channel)
        steps = _Steps(builder, channel, groups, [output] * request.ranks)
        steps.double()
        for member, outsider in core.outsider_of.items():
            own = table[outsider][channel]
            rest = [slot for group in groups for slot in group if slot not in own]
            steps.move(core.rank_of[member], outsider, rest)
    return builder.build()


def _groups(core: Core, table: list[list[list[int]]], channel: int) -> list[list[int]]:
    return [
        [slot for rank in core.blocks_of(member) for slot in table[rank][channel]]
        for member in range(core.size)
    ]
