"""Memory of one rank that collectives of a trace share, one after the other.

A region may be used again by a call all of whose members begin after the region's last user was
complete on its rank. Then no message can arrive in memory that is still in use.
"""

from __future__ import annotations

from dataclasses import dataclass

ALIGNMENT = 64
"""Bytes; a cache line, and a multiple of every element's size."""


def aligned(size: int) -> int:
    """The size, rounded up to whole cache lines."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(slots=True)
class _Region:
    offset: int
    size: int
    user: int


class RegionPool:
    """Regions of one rank's memory from ``begin`` on, in bytes."""

    def __init__(self, begin: int) -> None:
        self.end = aligned(begin)
        """Where memory may end."""
        self._regions: list[_Region] = []

    def take(self, size: int, user: int, complete: int) -> int:
        """Offset of a region of ``size`` bytes for a call, by its bit number ``user``.

        ``complete`` has the bits of the calls that are complete on this rank before any member
        begins. Of the regions that are free the smallest that is large enough is taken.
        """
        fits: _Region | None = None
        for region in self._regions:
            if region.size < size or (fits is not None and fits.size <= region.size):
                continue
            if complete >> region.user & 1:
                fits = region
        if fits is None:
            fits = _Region(self.end, aligned(size), user)
            self._regions.append(fits)
            self.end += fits.size
        fits.user = user
        return fits.offset

    def last_users(self) -> list[int]:
        """The bit numbers of the calls whose results nobody has overwritten."""
        return [region.user for region in self._regions]
