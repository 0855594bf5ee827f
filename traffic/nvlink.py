"""NVLink inside one server, sans-IO: who sends when to whom, and when the bytes are there.

All GPUs hang on NVSwitches that never are a bottleneck: each GPU has one way out and one way in, at
the same rate. The messages of a GPU leave one after the other, in the order in which they became
ready, and so do those for one GPU arrive; the switches keep what has to wait for the way in. Where
there are no NVSwitches, GPUs have wires to each other (``LocalPath``), or PCIe, whose switches are
taken to be like these. The first byte is there ``latency`` seconds after it left. A LOCAL_SEND is
complete when its sender knows that the bytes are there, another latency later.
``traffic.collectives.cost`` computes with the same rules.

Bytes are really copied, from the sender's memory to the receiver's, at the time of arrival.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from traffic.plan import Op


@dataclass(frozen=True, slots=True)
class LocalPath:
    """From one GPU of a server to another: bit/s, one direction.

    A ``private`` path has wires of its own; the others of a GPU share its one way out and in.
    """

    rate: float
    private: bool = False


@dataclass(frozen=True, slots=True)
class NvlinkSettings:
    """``rate`` in bit/s of a GPU, one direction; ``latency`` in seconds of emulated time, one way.

    ``paths[a][b]`` is the path between the GPUs at two places of a server, where these differ;
    ``rate`` is then that of the fastest. Empty: all share, at ``rate``.

    By default H100's NVLink 4: 18 links of 25 GB/s in each direction (data sheet: 900 GB/s both
    ways). NCCL reckons with 0.5 us (protocol LL) to 1.9 us (LL128) for a step over NVLink (hwLat in
    its graph/tuning.cc).
    """

    rate: float = 3.6e12
    latency: float = 1e-6
    paths: tuple[tuple[LocalPath, ...], ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.rate < math.inf:
            raise ValueError(f"rate: {self.rate} bit/s of NVLink; allowed: more than 0")
        if not 0 <= self.latency < math.inf:
            raise ValueError(f"latency: {self.latency} s of NVLink; allowed: 0 or more")

    def path(self, source: int, destination: int) -> LocalPath:
        """The path between the GPUs at two different places of the server."""
        return self.paths[source][destination] if self.paths else LocalPath(self.rate)


class _Event(IntEnum):
    """What happens to a message."""

    LEFT = 0
    ARRIVED = 1
    CONFIRMED = 2


class NvlinkPort(Protocol):
    """A GPU on NVLink."""

    @property
    def rank(self) -> int:
        """Its number."""

    @property
    def memory(self) -> memoryview:
        """All of its memory, in bytes."""

    def local_sent(self, op_id: int, now: float) -> None:
        """Its LOCAL_SEND is complete."""

    def local_received(self, source: int, tag: int, now: float, lateness: float) -> None:
        """Message ``tag`` of ``source`` is in its memory, ``lateness`` seconds after it was due."""


_Way = tuple[int, int]
"""A way out or in: of a GPU, (rank, -1), or of a private path, (rank, rank of the other end)."""


class NvSwitch:
    """The NVLinks of one server. Times are seconds of emulated time."""

    def __init__(self, settings: NvlinkSettings) -> None:
        self._settings = settings
        self._ports: dict[int, NvlinkPort] = {}
        self._places: dict[int, int] = {}
        self._waiting: defaultdict[_Way, deque[Op]] = defaultdict(deque)
        self._sending: set[_Way] = set()
        self._in_free: defaultdict[_Way, float] = defaultdict(float)
        self._events: list[tuple[float, int, _Event, Op]] = []
        self._count = 0
        self.carried_bytes = 0
        """Of all messages that have arrived."""

    def attach(self, port: NvlinkPort) -> None:
        """Connect a GPU; they come in the order of their places in the server."""
        self._places[port.rank] = len(self._ports)
        self._ports[port.rank] = port

    def send(self, op: Op, now: float) -> None:
        """Take a LOCAL_SEND that may begin. Raises KeyError for a peer of another server."""
        if op.peer not in self._ports:
            raise KeyError(f"rank {op.peer} is not on the NVLink of rank {op.rank}")
        way_out, _ = self._ways(op)
        if way_out in self._sending:
            self._waiting[way_out].append(op)
        else:
            self._start(op, now)

    def _path(self, op: Op) -> LocalPath:
        return self._settings.path(self._places[op.rank], self._places[op.peer])

    def _ways(self, op: Op) -> tuple[_Way, _Way]:
        """The ways out and in that a message takes."""
        if self._path(op).private:
            return (op.rank, op.peer), (op.peer, op.rank)
        return (op.rank, -1), (op.peer, -1)

    def _start(self, op: Op, now: float) -> None:
        """The first byte leaves at ``now``; the way in is the message's as soon as it is free."""
        way_out, way_in = self._ways(op)
        self._sending.add(way_out)
        duration = op.length * 8 / self._path(op).rate
        latency = self._settings.latency
        arrival = max(now + latency, self._in_free[way_in]) + duration
        self._in_free[way_in] = arrival
        self._at(now + duration, _Event.LEFT, op)
        self._at(arrival, _Event.ARRIVED, op)
        self._at(arrival + latency, _Event.CONFIRMED, op)

    def _at(self, time: float, event: _Event, op: Op) -> None:
        self._count += 1
        heapq.heappush(self._events, (time, self._count, event, op))

    def advance(self, now: float) -> None:
        """Do everything that is due. What waited leaves when the way out became free."""
        while self._events and self._events[0][0] <= now:
            due, _, event, op = heapq.heappop(self._events)
            if event is _Event.ARRIVED:
                self._deliver(op, due, now)
            elif event is _Event.CONFIRMED:
                self._ports[op.rank].local_sent(op.op_id, now)
            else:
                self._follow(op, due)

    def _follow(self, op: Op, now: float) -> None:
        """A message has left: what waited for its way out is next."""
        way_out, _ = self._ways(op)
        if self._waiting[way_out]:
            self._start(self._waiting[way_out].popleft(), now)
        else:
            self._sending.discard(way_out)

    def _deliver(self, op: Op, due: float, now: float) -> None:
        source, target = self._ports[op.rank], self._ports[op.peer]
        target.memory[op.remote_offset : op.remote_offset + op.length] = source.memory[
            op.offset : op.offset + op.length
        ]
        self.carried_bytes += op.length
        target.local_received(op.rank, op.tag, now, now - due)

    def next_event(self) -> float:
        """When something is due next; infinity if nothing is under way."""
        return self._events[0][0] if self._events else math.inf
