"""Emulated time: dilation and idle skipping.

A run is slowed down by a factor k, the dilation: emulated time = (CLOCK_MONOTONIC + skew) / k. The
skew and the state that decides whether time may be skipped live in one page shared by every process
of the run. Nothing here imports from the rest of the project.
"""

from __future__ import annotations

import mmap
import struct
import time

_HEADER = struct.Struct("<qqd")  # epoch (ns), skew (ns), dilation


class EmulatedClock:
    """Reads emulated time, in seconds since ``start()``, from a page shared over fork.

    ``page`` is any writable buffer of at least 24 bytes that all processes of the run share.
    """

    def __init__(self, page: mmap.mmap | bytearray, dilation: float) -> None:
        if dilation <= 0:
            raise ValueError(f"dilation {dilation!r} must be above 0")
        self.dilation = float(dilation)
        self._words = memoryview(page).cast("q")
        self._scale = 1e-9 / self.dilation
        _HEADER.pack_into(page, 0, time.monotonic_ns(), 0, self.dilation)

    @classmethod
    def shared(cls, dilation: float) -> EmulatedClock:
        """A clock on an anonymous shared page, inherited by forked processes."""
        return cls(mmap.mmap(-1, mmap.PAGESIZE), dilation)

    def start(self) -> None:
        """Make now the origin of emulated time and forget all skipped time."""
        self._words[1] = 0
        self._words[0] = time.monotonic_ns()

    def now(self) -> float:
        """Emulated seconds since ``start()``."""
        words = self._words
        return (time.monotonic_ns() + words[1] - words[0]) * self._scale

    def wall(self) -> float:
        """Wall seconds since ``start()``, without what was skipped."""
        return (time.monotonic_ns() - self._words[0]) * 1e-9

    def skip_to(self, emulated: float) -> float:
        """Jump forward to an emulated time; returns the wall seconds saved (0 if already past)."""
        delta = int((emulated - self.now()) * self.dilation * 1e9)
        if delta <= 0:
            return 0.0
        self._words[1] += delta
        return delta * 1e-9

    @property
    def skipped(self) -> float:
        """Wall seconds that were skipped so far."""
        return self._words[1] * 1e-9

    def to_wall(self, emulated: float) -> float:
        """Wall seconds that a span of emulated seconds takes."""
        return emulated * self.dilation
