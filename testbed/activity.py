"""A board in shared memory on which every server says what it does and what it waits for.

The runner reads it to show progress and to decide whether emulated time may be skipped: nothing in
flight, and everyone only waits for a timer. The other way round it tells the servers which ports
have lost their link. Nothing here imports from the rest of the project.
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
        ("finished_ranks", "<i8"),
        ("next_timer", "<f8"),
    ]
)
"""One server's row. ``wakeups`` counts the turns of its event loop; ``idle`` is 1 while it waits;
frames are what its NICs gave to and took from the fabric; ``finished_ranks`` have nothing left to
do; ``next_timer`` is in emulated seconds, infinity when it waits for none."""

_WAKEUPS, _IDLE, _SENT, _RECEIVED, _FINISHED, _TIMER = range(6)


class ActivityRow:
    """The writer's side of one row; single writer."""

    def __init__(self, memory: memoryview) -> None:
        self._integers = memory.cast("q")
        self._floats = memory.cast("d")

    def begin(self, wakeups: int) -> None:
        """Say that a turn of the event loop begins."""
        self._integers[_IDLE] = 0
        self._integers[_WAKEUPS] = wakeups

    def wait(self, next_timer: float) -> None:
        """Say that the loop waits for a frame or for a timer (emulated seconds)."""
        self._floats[_TIMER] = next_timer
        self._integers[_IDLE] = 1

    def sent(self, frames: int) -> None:
        """Count frames about to be given to the fabric."""
        self._integers[_SENT] += frames

    def received(self, frames: int) -> None:
        """Count frames taken from the fabric."""
        self._integers[_RECEIVED] += frames

    def finish_rank(self) -> None:
        """Count a rank that has nothing left to do."""
        self._integers[_FINISHED] += 1


class ActivityBoard:
    """Rows for a number of servers, in anonymous memory that forked processes share.

    ``port_down`` has one byte for each interface, in the topology's order: 1 while the port at
    that end has no link. The runner writes it, and then wakes the server that owns the port.
    """

    def __init__(self, servers: int, interfaces: int = 0) -> None:
        rows = max(1, servers) * ROW_DTYPE.itemsize
        self._memory = mmap.mmap(-1, rows + interfaces)
        self.rows = np.frombuffer(self._memory, dtype=ROW_DTYPE, count=servers)
        self._flags = memoryview(self._memory)[rows : rows + interfaces]
        self.port_down = np.frombuffer(self._flags, dtype=np.uint8)

    def row(self, server: int) -> ActivityRow:
        """The writer's side of a server's row."""
        start = server * ROW_DTYPE.itemsize
        return ActivityRow(memoryview(self._memory)[start : start + ROW_DTYPE.itemsize])

    @property
    def port_flags(self) -> memoryview:
        """``port_down`` as a server reads it: a byte is cheaper to get at than an array element."""
        return self._flags

    def all_waiting(self) -> bool:
        """Whether every server is waiting, with nothing received or done in between two looks."""
        first = self.rows["wakeups"].copy()
        if not bool(self.rows["idle"].all()):
            return False
        return bool((self.rows["wakeups"] == first).all())

    def next_timer(self) -> float:
        """Earliest timer of any server in emulated seconds; infinity when there is none."""
        return float(self.rows["next_timer"].min()) if len(self.rows) else float("inf")
