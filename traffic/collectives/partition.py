"""How buffers are cut into slots: by channel, by block, and into slices that travel as messages."""

from __future__ import annotations

from collections.abc import Sequence

from traffic.collectives.request import Chunking, ScheduleError, cut

_SMALLEST_SLICE = 32
"""A chunk is not cut into slices below this fraction of the largest (NCCL: prims_simple.h)."""

SLOT_LIMIT = 100_000
"""Slots of one rank's buffer; more would take minutes to schedule and gigabytes to hold."""


def slices(elements: int, itemsize: int, chunking: Chunking) -> list[int]:
    """Sizes of the slices of one chunk, or of a longer run that is sent chunk after chunk."""
    largest = max(1, chunking.slice_bytes // itemsize)
    chunks = max(1, -(-elements // (largest * chunking.slices_per_chunk)))
    sizes: list[int] = []
    for chunk in cut(elements, chunks):
        parts = chunking.slices_per_chunk
        if chunk * _SMALLEST_SLICE < largest * parts:
            parts = 1
        sizes += cut(chunk, parts)
    return sizes


class Slots:
    """Collects the slots of a buffer; ``first`` is the number of the first one.

    Raises ScheduleError for more than SLOT_LIMIT.
    """

    def __init__(self, itemsize: int, chunking: Chunking, first: int = 0) -> None:
        self._itemsize, self._chunking, self._first = itemsize, chunking, first
        self._slices: dict[int, list[int]] = {}
        self.sizes: list[int] = []

    def add(self, elements: int) -> list[int]:
        """Append the slices of so many elements; returns the numbers of their slots."""
        sizes = self._slices.get(elements)
        if sizes is None:
            self.check(-(-elements * self._itemsize // self._chunking.slice_bytes))
            sizes = self._slices[elements] = slices(elements, self._itemsize, self._chunking)
        self.check(len(sizes))
        begin = self._first + len(self.sizes)
        self.sizes += sizes
        return list(range(begin, begin + len(sizes)))

    def check(self, more: int) -> None:
        """Raise ScheduleError if there is no room for so many more."""
        if len(self.sizes) + more > SLOT_LIMIT:
            raise ScheduleError(
                f"chunk: messages of {self._chunking.slice_bytes} bytes cut a buffer into more "
                f"than {SLOT_LIMIT} pieces; allowed: larger ones, or less data"
            )


def by_block(
    blocks: Sequence[int],
    *,
    channels: int,
    itemsize: int,
    chunking: Chunking,
    first: int = 0,
) -> tuple[tuple[int, ...], list[list[list[int]]]]:
    """Cut each block into a share per channel, and that into slices.

    Returns the sizes and the slots of ``[block][channel]``.
    """
    buffer = Slots(itemsize, chunking, first)
    table = [[buffer.add(share) for share in cut(block, channels)] for block in blocks]
    return tuple(buffer.sizes), table


def by_loop(
    elements: int,
    blocks: int,
    *,
    channels: int,
    itemsize: int,
    chunking: Chunking,
    first: int = 0,
) -> tuple[tuple[int, ...], list[list[list[list[int]]]]]:
    """Cut the data into a share per channel, that into loops of one chunk per block, and slices.

    Returns the sizes and the slots of ``[channel][loop][block]``.
    """
    buffer = Slots(itemsize, chunking, first)
    chunk = max(1, chunking.slice_bytes // itemsize) * chunking.slices_per_chunk
    table = []
    for share in cut(elements, channels):
        count = max(1, -(-share // (chunk * blocks)))
        buffer.check(count)
        loops = cut(share, count)
        table.append([[buffer.add(part) for part in cut(loop, blocks)] for loop in loops])
    return tuple(buffer.sizes), table
