"""What a schedule should take: the alpha-beta model, pipelined, and bounds below it.

A message of m bytes occupies its sender's port for m x beta and has arrived alpha after its last
byte has left, or later if the receiver's port is still busy with others (Hockney's model, with one
send and one receive port per rank). Switches never limit, and reductions take no time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from traffic.bounds import message_bytes
from traffic.collectives.graph import ScheduleGraph
from traffic.collectives.request import Collective, CollectiveRequest
from traffic.collectives.schedule import InstructionKind, Schedule
from traffic.nvlink import NvlinkSettings
from traffic.opcodes import IMMEDIATE_LENGTH, RETH_LENGTH

_WRITE_WITH_IMM = RETH_LENGTH + IMMEDIATE_LENGTH
"""Bytes of headers, once per message."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """Alpha in seconds of emulated time, and one over beta in bit/s; of NVLink as well.

    ``path_mtu`` adds the headers of RoCEv2's packets to every message; None leaves them out.
    """

    latency: float
    rate: float
    path_mtu: int | None = 4096
    nvlink: NvlinkSettings = field(default_factory=NvlinkSettings)

    def transfer_time(self, size: int, *, local: bool = False) -> float:
        """Seconds that a message of ``size`` bytes occupies a port."""
        if local:
            return size * 8 / self.nvlink.rate
        if self.path_mtu is not None:
            size = message_bytes(size, self.path_mtu, _WRITE_WITH_IMM)
        return size * 8 / self.rate


def estimate(
    schedule: Schedule,
    model: CostModel,
    latency: Callable[[int, int], float] | None = None,
    share_server: Callable[[int, int], bool] | None = None,
) -> float:
    """Seconds of emulated time from the start of a schedule to its last completion.

    A connection has no more messages under way than the schedule's chunking allows; a SEND is
    complete when its acknowledgement has come back. ``latency(source, destination)`` takes the
    place of the model's where paths through the network differ. Of the messages that the schedule
    calls local, those between ranks that do not ``share_server`` cross the network all the same.
    """
    return max(_Simulation(schedule, model, latency, share_server).run(), default=0.0)


class _Simulation:
    """Event-driven: messages wait for their dependencies, then for a port, in order of time."""

    def __init__(
        self,
        schedule: Schedule,
        model: CostModel,
        latency: Callable[[int, int], float] | None,
        share_server: Callable[[int, int], bool] | None,
    ) -> None:
        self._graph = graph = ScheduleGraph(schedule)
        self._model = model
        self._latency = latency or (lambda source, destination: model.latency)
        self._local = [
            step.local and (share_server is None or share_server(rank, step.peer))
            for rank, step in zip(graph.rank, graph.steps, strict=True)
        ]
        self._itemsize = schedule.request.itemsize
        self._in_flight = schedule.chunking.messages_in_flight
        self._unmet = [0] * len(graph.steps)
        self._dependents: list[list[int]] = [[] for _ in graph.steps]
        self._followers: list[list[int]] = [[] for _ in graph.steps]
        """SENDs that may begin once this one has begun: they come next on its connection."""
        for number, step in enumerate(graph.steps):
            for needed in graph.needs(number):
                self._dependents[needed].append(number)
            self._unmet[number] = len(step.depends_on)
            if step.kind is InstructionKind.RECEIVE:
                self._unmet[number] += 1  # the message
            elif step.kind is InstructionKind.SEND:
                self._order(number)
        self._finished = [math.inf] * len(graph.steps)
        self._waiting: dict[tuple[int, bool], list[tuple[float, int]]] = {}
        self._send_free: dict[tuple[int, bool], float] = {}
        self._receive_free: dict[tuple[int, bool], float] = {}
        self._events: list[tuple[float, int, bool]] = []
        """(time, instruction, whether it is complete, or else its sender's port is free)"""

    def _order(self, number: int) -> None:
        """Let a SEND wait for the one before it to begin, and for one further back to complete."""
        earlier = self._graph.previous[number]
        if earlier < 0:
            return
        self._followers[earlier].append(number)
        self._unmet[number] += 1
        for _ in range(self._in_flight - 1):
            earlier = self._graph.previous[earlier]
            if earlier < 0:
                return
        self._dependents[earlier].append(number)
        self._unmet[number] += 1

    def run(self) -> list[float]:
        """When each instruction is complete."""
        for number, unmet in enumerate(list(self._unmet)):
            if unmet == 0:
                self._begin(number, 0.0)
        while self._events:
            now, number, completed = heapq.heappop(self._events)
            if completed:
                self._complete(number, now)
            else:
                self._transmit(self._port(number), now)
        return self._finished

    def _port(self, number: int) -> tuple[int, bool]:
        return self._graph.rank[number], self._local[number]

    def _begin(self, number: int, now: float) -> None:
        if self._graph.steps[number].kind is InstructionKind.SEND:
            port = self._port(number)
            heapq.heappush(self._waiting.setdefault(port, []), (now, number))
            self._transmit(port, now)
        else:
            heapq.heappush(self._events, (now, number, True))

    def _release(self, numbers: list[int], now: float) -> None:
        for number in numbers:
            self._unmet[number] -= 1
            if self._unmet[number] == 0:
                self._begin(number, now)

    def _transmit(self, port: tuple[int, bool], now: float) -> None:
        waiting = self._waiting[port]
        if not waiting or self._send_free.get(port, 0.0) > now:
            return
        _, number = heapq.heappop(waiting)
        step, model = self._graph.steps[number], self._model
        sizes = self._graph.sizes[port[0]][step.slot : step.slot + step.count]
        local = self._local[number]
        duration = model.transfer_time(sum(sizes) * self._itemsize, local=local)
        latency = model.nvlink.latency if local else self._latency(port[0], step.peer)
        self._send_free[port] = now + duration
        heapq.heappush(self._events, (now + duration, number, False))
        peer = step.peer, local
        arrival = max(now + latency, self._receive_free.get(peer, 0.0)) + duration
        self._receive_free[peer] = arrival
        receive = self._graph.partner[number]
        heapq.heappush(self._events, (arrival + latency, number, True))
        self._unmet[receive] -= 1
        if self._unmet[receive] == 0:
            heapq.heappush(self._events, (arrival, receive, True))
        self._release(self._followers[number], now)

    def _complete(self, number: int, now: float) -> None:
        self._finished[number] = now
        self._release(self._dependents[number], now)


def lower_bound(request: CollectiveRequest, model: CostModel) -> float:
    """Seconds that no algorithm beats: one latency, and what must cross the busiest server's NICs.

    Headers are left out. For an all-reduce 2(n - 1)/n of the data (Patarasuk and Yuan, 2009).
    """
    busiest = max(_crossing(request, server) for server in range(request.servers))
    if busiest == 0:
        return 0.0
    size = busiest * request.itemsize / request.gpus_per_server
    return model.latency + size * 8 / model.rate


def _crossing(request: CollectiveRequest, server: int) -> float:
    """Elements that must at least enter, or at least leave, a server: the larger number."""
    gpus, ranks = request.gpus_per_server, range(request.ranks)
    inside = range(server * gpus, (server + 1) * gpus)
    has_root = request.root in inside
    if request.servers == 1:
        return 0
    outside_blocks = sum(request.blocks) - sum(request.blocks[rank] for rank in inside)
    match request.collective:
        case Collective.BROADCAST | Collective.REDUCE | Collective.SEND_RECV:
            return request.elements
        case Collective.GATHER | Collective.SCATTER:
            own = request.elements - outside_blocks
            return outside_blocks if has_root else own
        case Collective.ALL_GATHER | Collective.REDUCE_SCATTER:
            return outside_blocks
        case Collective.ALL_REDUCE | Collective.BARRIER:
            return 2 * request.elements * (request.servers - 1) / request.servers
    outside = [rank for rank in ranks if rank not in inside]
    leaving = sum(request.count(rank, peer) for rank in inside for peer in outside)
    entering = sum(request.count(peer, rank) for rank in inside for peer in outside)
    return max(leaving, entering)
