"""A board in shared memory on which every server says what it waits for.

The runner reads it to decide whether emulated time may be skipped: nothing in flight, and everyone
only waits for a timer. Nothing here imports from the rest of the project.
"""

from __future__ import annotations

import mmap

import numpy as np

ROW_DTYPE = np.dtype(
    [
        ("wakeups", "<i8"),
        ("idle", "<i8"),
        ("sent_frames", "<i8"),
        ("received_frames", "<i8"),
        ("next_timer", "<f8"),
        ("payload_bytes", "<i8"),
    ]
)
"""One server's row. ``wakeups`` grows with every turn of its event loop; ``idle`` is 1 while it
waits; frames are what its NICs gave to and took from the fabric; ``next_timer`` is in emulated
seconds, infinity when it waits for none; ``payload_bytes`` is what its ranks have received."""


class ActivityBoard:
    """Rows for a number of servers, in anonymous memory that forked processes share."""

    def __init__(self, servers: int) -> None:
        size = max(1, servers) * ROW_DTYPE.itemsize
        self._memory = mmap.mmap(-1, size)
        self.rows = np.frombuffer(self._memory, dtype=ROW_DTYPE, count=servers)

    def all_waiting(self) -> bool:
        """Whether every server is waiting, with nothing received or done in between two looks."""
        first = self.rows["wakeups"].copy()
        if not bool(self.rows["idle"].all()):
            return False
        return bool((self.rows["wakeups"] == first).all())

    def next_timer(self) -> float:
        """Earliest timer of any server in emulated seconds; infinity when there is none."""
        return float(self.rows["next_timer"].min()) if len(self.rows) else float("inf")
