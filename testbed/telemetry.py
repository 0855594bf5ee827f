"""Watches a run from shared memory: queue depths over time, drops, and when time may be skipped."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from testbed.activity import ActivityBoard
from testbed.asic.mmu import Drop, Mmu
from testbed.clock import EmulatedClock
from testbed.topology import NodeKind, Topology

SHORTEST_SKIP = 0.003
"""Wall seconds; a shorter wait is cheaper than the wake-ups that skipping it costs."""

VANISHED_AFTER = 2.0
"""Wall seconds without any movement after which a frame that nobody has is called vanished."""


@dataclass
class DepthSeries:
    """Depth of every interface over time: emulated seconds, and bytes per row and interface."""

    names: list[str]
    times: list[float] = field(default_factory=list)
    depths: list[NDArray[np.int64]] = field(default_factory=list)

    def as_array(self) -> NDArray[np.int64]:
        """Depths as an array of shape (samples, interfaces)."""
        if not self.depths:
            return np.zeros((0, len(self.names)), dtype=np.int64)
        return np.stack(self.depths)


class Telemetry:
    """Samples the buffer program's counters. Call ``tick`` about a thousand times a second."""

    def __init__(
        self,
        topology: Topology,
        mmu: Mmu,
        clock: EmulatedClock,
        board: ActivityBoard,
        wake_descriptors: list[int],
    ) -> None:
        self._mmu = mmu
        self._clock = clock
        self._board = board
        self._wake = wake_descriptors
        self.series = DepthSeries([i.name for i in topology.interfaces.values()])
        self.drops: list[tuple[float, Drop]] = []
        self.longest_gap = 0.0
        """Longest wall time between two ticks, in seconds."""
        self.skips = 0
        nics = np.array(
            [topology.nodes[i.node].kind is NodeKind.SERVER for i in topology.interfaces.values()]
        )
        peers = np.array(
            [topology.nodes[i.peer_node].kind is NodeKind.SERVER
             for i in topology.interfaces.values()]
        )  # fmt: skip
        self._from_nic, self._to_nic = nics, peers
        self._last_tick = time.monotonic()
        self._last_movement = self._last_tick
        self._last_total = -1
        self._quiet = False

    def tick(self) -> None:
        """Take one sample of all depths, collect drop records, skip idle time."""
        now = time.monotonic()
        self.longest_gap = max(self.longest_gap, now - self._last_tick)
        self._last_tick = now
        depths = self._mmu.depths()
        quiet = not depths.any()
        # of a stretch of empty queues only the two ends are worth keeping
        if not (quiet and self._quiet):
            self.series.times.append(self._clock.now())
            self.series.depths.append(depths)
        self._quiet = quiet
        self.collect_drops()
        total = int(self._board.rows["wakeups"].sum())
        if total != self._last_total:
            self._last_total = total
            self._last_movement = now
        if quiet and self._board.all_waiting() and self.frames_in_flight() == 0:
            self._skip()

    def collect_drops(self) -> None:
        """Move new drop records over, with their time as emulated seconds."""
        taken = self._mmu.take_drops()
        if taken:
            now, emulated = time.monotonic_ns(), self._clock.now()
            scale = 1e-9 / self._clock.dilation
            self.drops += [(emulated - (now - drop.time) * scale, drop) for drop in taken]

    def frames_in_flight(self) -> int:
        """RoCE frames that NICs sent and that neither a NIC has nor a queue dropped."""
        ports = self._mmu.ports
        sent = int(self._board.rows["sent_frames"].sum())
        received = int(self._board.rows["received_frames"].sum())
        dropped = int(ports["dropped"]["packets"][:, :2].sum())
        return sent - received - dropped

    def vanished_frames(self) -> int:
        """Frames that nobody has although nothing has moved for a while; 0 in a sound run."""
        if time.monotonic() - self._last_movement < VANISHED_AFTER or self._mmu.depths().any():
            return 0
        return self.frames_in_flight() if self._board.all_waiting() else 0

    def _skip(self) -> None:
        target = self._board.next_timer()
        if target == float("inf"):
            return
        if self._clock.to_wall(target - self._clock.now()) < SHORTEST_SKIP:
            return
        self._clock.skip_to(target)
        self.skips += 1
        due = np.nonzero(self._board.rows["next_timer"] <= target)[0]
        for server in due:
            os.eventfd_write(self._wake[server], 1)
