"""Watches a run from shared memory: queue depths over time, drops, and when time may be skipped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from testbed.activity import ActivityBoard
from testbed.asic.mmu import Drop, Mmu
from testbed.clock import EmulatedClock
from testbed.fidelity import LinkRate
from testbed.topology import NodeKind, Topology
from traffic.codec import FRAME_OVERHEAD

SHORTEST_SKIP = 0.003
"""Wall seconds; a shorter wait is cheaper than the wake-ups that skipping it costs."""

FRAME = 4200
"""Bytes of a full frame, near enough."""

BUSY_FRAMES = 200
"""A rate is measured over at least so many frames: one more or less at either end is 1 % then."""

USUAL_GAP = 0.003
"""Wall seconds."""

LONGEST_READING = 0.0005
"""Wall seconds that reading the clock and the counters may take together."""

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


class Schedule(Protocol):
    """What happens by itself at given times while traffic runs."""

    @property
    def next_time(self) -> float:
        """Emulated time of the next event; infinity if there is none."""

    @property
    def settled(self) -> bool:
        """Whether all that was begun is in force: until then no time may be skipped."""


class _BusyRates:
    """Throughput of each switch port over its longest stretch of an uninterruptedly full queue."""

    def __init__(self, topology: Topology, dilation: float) -> None:
        interfaces = list(topology.interfaces.values())
        self._names = [i.name for i in interfaces]
        self._dilation = dilation
        self._rates = np.array([i.rate for i in interfaces]) / dilation
        self._on_switch = np.array(
            [topology.nodes[i.node].kind is NodeKind.SWITCH for i in interfaces]
        )
        count = len(interfaces)
        self._busy = np.zeros(count, dtype=bool)
        self._since = np.zeros(count)
        self._start = np.zeros(count)
        self._best_time = np.zeros(count)
        self._best_bytes = np.zeros(count)
        self._last = 0.0

    def sample(self, mmu: Mmu) -> None:
        """Take one sample."""
        now = time.monotonic()
        depths = mmu.depths()
        dequeued = mmu.ports["dequeued"]
        wire = dequeued["bytes"].sum(axis=1) + FRAME_OVERHEAD * dequeued["packets"].sum(axis=1)
        if time.monotonic() - now > LONGEST_READING:
            return  # interrupted: the time does not belong to the counters
        drained = self._rates / 8 * (now - self._last)
        self._last = now
        # a queue that could have emptied since the last sample does not count as busy
        busy = self._on_switch & (depths > 2 * drained + FRAME)
        if not (busy.any() or self._busy.any()):
            return
        begins = busy & ~self._busy
        self._since[begins] = now
        self._start[begins] = wire[begins]
        span = np.where(busy, now - self._since, 0.0)
        better = span > self._best_time
        self._best_time[better] = span[better]
        self._best_bytes[better] = (wire - self._start)[better]
        self._busy = busy

    def change(self, interface: str, rate: float) -> None:
        """The port's rate is another one from now on, in emulated bit/s: start afresh."""
        column = self._names.index(interface)
        self._rates[column] = rate / self._dilation
        self._busy[column] = False
        self._best_time[column] = self._best_bytes[column] = 0.0

    def results(self) -> list[LinkRate]:
        """Ports whose stretch was at least BUSY_FRAMES frames long."""
        return [
            LinkRate(
                interface=self._names[i],
                nominal=float(self._rates[i]) * self._dilation,
                measured=float(self._best_bytes[i] * 8 / self._best_time[i]) * self._dilation,
            )
            for i in np.flatnonzero(self._best_bytes >= BUSY_FRAMES * FRAME)
        ]


class Telemetry:
    """Samples the buffer program's counters. Call ``tick`` about a thousand times a second.

    ``on_skip`` is told the wall seconds that the clock jumps over, before anybody is woken.
    """

    def __init__(
        self,
        topology: Topology,
        mmu: Mmu,
        clock: EmulatedClock,
        board: ActivityBoard,
        wake_descriptors: list[int],
        on_skip: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._mmu = mmu
        self._clock = clock
        self._board = board
        self._wake = wake_descriptors
        self._on_skip = on_skip
        self.series = DepthSeries([i.name for i in topology.interfaces.values()])
        self.drops: list[tuple[float, Drop]] = []
        self.gaps: list[float] = []
        """Wall seconds between two ticks, where longer than usual."""
        self._rates = _BusyRates(topology, clock.dilation)
        self._last_tick = time.monotonic()
        self._last_movement = self._last_tick
        self._last_total = -1
        self._quiet = False
        self._ranks = len(topology.ranks)
        self._schedule: Schedule | None = None

    def follow(self, schedule: Schedule) -> None:
        """Neither skip what is scheduled nor end before it, while anybody has something to do."""
        self._schedule = schedule

    def rate_changed(self, interface: str, rate: float) -> None:
        """A port transmits at another rate from now on, in emulated bit/s."""
        self._rates.change(interface, rate)

    def tick(self) -> None:
        """Take one sample of all depths, collect drop records, skip idle time."""
        now = time.monotonic()
        if now - self._last_tick > USUAL_GAP:
            self.gaps.append(now - self._last_tick)
        self._last_tick = now
        depths = self._mmu.depths()
        quiet = not depths.any()
        # of a stretch of empty queues only the two ends are worth keeping
        if not (quiet and self._quiet):
            self.series.times.append(self._clock.now())
            self.series.depths.append(depths)
        self._quiet = quiet
        self.collect_drops()
        self._rates.sample(self._mmu)
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

    def link_rates(self) -> list[LinkRate]:
        """Rates of the switch ports that were busy long enough to measure, in emulated bit/s."""
        return self._rates.results()

    @property
    def quiescent(self) -> bool:
        """Nothing is in flight and nobody waits for a timer: nothing will ever happen again.

        Nor does anybody with something left to do wait for what is scheduled.
        """
        return (
            not self._mmu.depths().any()
            and self._board.all_waiting()
            and self._board.next_timer() == float("inf")
            and self.frames_in_flight() == 0
            and (self._next_scheduled() == float("inf") or self._all_finished())
        )

    def _next_scheduled(self) -> float:
        return self._schedule.next_time if self._schedule else float("inf")

    def _all_finished(self) -> bool:
        return int(self._board.rows["finished_ranks"].sum()) == self._ranks

    def frames_in_flight(self) -> int:
        """RoCE frames that NICs sent and that neither a NIC has nor a queue dropped."""
        ports = self._mmu.ports
        sent = int(self._board.rows["sent_frames"].sum())
        received = int(self._board.rows["received_frames"].sum())
        dropped = int(ports["dropped"]["packets"][:, :, :2].sum())
        return sent - received - dropped

    def vanished_frames(self) -> int:
        """Frames that nobody has although nothing has moved for a while; 0 in a sound run."""
        if time.monotonic() - self._last_movement < VANISHED_AFTER or self._mmu.depths().any():
            return 0
        return self.frames_in_flight() if self._board.all_waiting() else 0

    def _skip(self) -> None:
        target = min(self._board.next_timer(), self._next_scheduled())
        if target == float("inf") or (self._schedule and not self._schedule.settled):
            return
        if self.quiescent:
            return  # this is the end; what is scheduled for later will not happen
        if self._clock.to_wall(target - self._clock.now()) < SHORTEST_SKIP:
            return
        self._on_skip(self._clock.skip_to(target))
        # all of them, not only those that are due: each sleeps for a span of wall time that it
        # computed before the skip
        for server in np.flatnonzero(np.isfinite(self._board.rows["next_timer"])):
            os.eventfd_write(self._wake[server], 1)
