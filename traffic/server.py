"""The process that runs in one Mininet host: the event loop of the server's ranks and their NICs.

It is forked from the runner, so it has plan, clock and activity board in memory already;
it talks to the runner over a pipe, so no control traffic touches the fabric.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import resource
import select
import signal
import traceback
from array import array
from collections.abc import Collection
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Final, NamedTuple

from testbed.activity import ActivityRow
from testbed.clock import EmulatedClock
from testbed.priority import Priority, set_priority
from testbed.syscalls import die_with_parent, enter_network_namespace, set_timer_slack
from traffic.executor import Timeline
from traffic.faults import LossInjector
from traffic.nic import Nic
from traffic.nvlink import NvSwitch
from traffic.packet_socket import PacketSocket
from traffic.plan import Plan
from traffic.rank import ConnectionReport, Endpoint, FlowProgress, Rank
from traffic.settings import PortSettings, ServerSettings

_FRAMES_PER_TURN: Final = 64
_TIMER_SLACK: Final = 1000
"""Nanoseconds."""


@dataclass
class PortReport:
    """What one port of a NIC tells. Counts are name -> (packets, bytes of frames)."""

    interface: str
    counts: dict[str, tuple[int, int]]
    held_frames: list[tuple[int, int]]
    """Opcode and bytes of each frame left in the delay line."""
    send_lateness: array[float]
    delivery_lateness: array[float]
    busy_time: float
    """Emulated seconds that this port's frames took on the wire."""
    socket_drops: int


@dataclass
class RankReport:
    """What one rank tells after the traffic, with one entry in ``ports`` for each of its NIC's."""

    rank: int
    ports: list[PortReport]
    wrong_elements: int
    done: bool
    failed: str | None
    flows: dict[int, FlowProgress]
    connections: list[ConnectionReport]
    cpu_seconds: float
    timeline: Timeline
    timer_lateness: array[float]

    @property
    def counts(self) -> dict[str, tuple[int, int]]:
        """The sums of all ports."""
        return {
            name: (
                sum(port.counts[name][0] for port in self.ports),
                sum(port.counts[name][1] for port in self.ports),
            )
            for name in self.ports[0].counts
        }


class _Port(NamedTuple):
    """One port of a rank's NIC, number ``number`` of it."""

    rank: Rank
    number: int
    settings: PortSettings
    nic: Nic
    socket: PacketSocket


@dataclass
class _Member:
    """A rank of the server in its event loop, with the descriptors of its ports' sockets.

    ``due`` is when it has something to do without a packet's arriving, as of its last turn.
    """

    rank: Rank
    ports: list[_Port]
    descriptors: frozenset[int]
    due: float = -math.inf


class Server:
    """All ranks of one server. ``row`` is its row on the activity board.

    ``port_down`` holds a byte for every interface of the fabric, 1 while it has no link.
    """

    def __init__(
        self,
        settings: ServerSettings,
        plan: Plan,
        clock: EmulatedClock,
        row: ActivityRow,
        port_down: memoryview,
        pipe: Pipe,
        wake: int,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._row = row
        self._pipe = pipe
        self._wake = wake
        self._port_down = port_down
        self._ranks: list[Rank] = []
        self._ports: list[_Port] = []
        self._announced: set[int] = set()
        self._nvlink = NvSwitch(settings.nvlink)
        for ports in settings.ranks:
            self._add_rank(plan, ports)

    def _add_rank(self, plan: Plan, ports: tuple[PortSettings, ...]) -> None:
        settings = self._settings
        losses = self._losses(ports[0].rank)
        nics = [
            Nic(rate=port.rate, latency=self._latency, lead=settings.lead, losses=losses)
            for port in ports
        ]
        rank = Rank(
            plan, ports, settings.transport, nics, settings.traced_connections, self._nvlink
        )
        self._ranks.append(rank)
        for number, (port, nic) in enumerate(zip(ports, nics, strict=True)):
            self._ports.append(_Port(rank, number, port, nic, PacketSocket(port.interface)))

    def _latency(self, hops: int) -> float:
        latencies = self._settings.latencies
        return latencies[min(hops, len(latencies) - 1)]

    def _losses(self, rank: int) -> LossInjector:
        losses = self._settings.losses
        return LossInjector(
            seed=f"{losses.seed}/{rank}",
            probability=losses.probability,
            drops=losses.drops.get(rank, ()),
        )

    def run(self) -> None:
        """Connect, wait for the start, run until told to stop, report."""
        self._pipe.send([e for rank in self._ranks for e in rank.endpoints()])
        table: dict[tuple[int, int], Endpoint] = self._pipe.recv()
        for rank in self._ranks:
            own = rank.rank
            peers = {c: e for (c, r), e in table.items() if r != own and (c, own) in table}
            rank.connect(peers)
        self._pipe.send("ready")
        self._pipe.recv()
        for rank in self._ranks:
            rank.executor.start(0.0)
        self._loop()
        # nobody sends any more; the runner waits until all queues are empty and then asks
        self._pipe.send("halted")
        self._pipe.recv()
        for port in self._ports:
            while frames := port.socket.receive():
                self._row.received(len(frames))
                for frame in frames:
                    port.nic.arrive(frame, math.inf)
        self._pipe.send([self._report(rank) for rank in self._ranks])
        self._pipe.recv()

    def _loop(self) -> None:
        clock, row = self._clock, self._row
        pipe, wake = self._pipe.fileno(), self._wake
        members = [self._member(rank) for rank in self._ranks]
        waited = [pipe, wake, *(d for member in members for d in member.descriptors)]
        # where there is no other port to move to, nothing is done about a lost link
        movable = [port for port in self._ports if len(port.rank.nic.nics) > 1]
        readable: Collection[int] = waited
        wakeups = 0
        while True:
            wakeups += 1
            row.begin(wakeups)
            busy = False
            self._nvlink.advance(clock.now())
            for port in movable:
                down = self._port_down[port.settings.row] != 0
                port.rank.nic.set_down(port.number, down)
            now = clock.now()
            for member in members:
                # most wakeups are about one rank; a turn of each would cost as much as a packet
                if (
                    member.due <= now
                    or member.rank.notified
                    or len(member.ports) > 1  # one port's failure is another's work
                    or not member.descriptors.isdisjoint(readable)
                ):
                    for port in member.ports:
                        # to ask a socket that has nothing costs a system call and an exception
                        busy |= self._turn(port, arrived=port.socket.fileno() in readable)
                    member.due = member.rank.next_event()
            event = min(member.due for member in members)
            event = min(event, self._nvlink.next_event())
            timeout: float | None = None
            if busy:
                timeout = 0.0
            elif event < math.inf:
                timeout = max(0.0, clock.to_wall(event - clock.now()))
            row.wait(event)
            readable, _, _ = select.select(waited, (), (), timeout)
            if pipe in readable:
                self._pipe.recv()
                return
            if wake in readable:
                os.eventfd_read(wake)

    def _member(self, rank: Rank) -> _Member:
        ports = [port for port in self._ports if port.rank is rank]
        return _Member(rank, ports, frozenset(port.socket.fileno() for port in ports))

    def _turn(self, port: _Port, *, arrived: bool) -> bool:
        """One round of a port: receive, deliver, compute, send. Whether there may be more to do."""
        clock, nic, rank = self._clock, port.nic, port.rank
        frames = port.socket.receive(_FRAMES_PER_TURN) if arrived else []
        if frames:
            now = clock.now()
            for frame in frames:
                nic.arrive(frame, now)
            self._row.received(len(frames))
        now = clock.now()
        nic.advance(now)
        rank.step(now)
        sent = self._send(nic, port.socket)
        if rank.done and rank.rank not in self._announced:
            self._announced.add(rank.rank)
            self._row.finish_rank()
        return len(frames) == _FRAMES_PER_TURN or sent == _FRAMES_PER_TURN

    def _send(self, nic: Nic, sock: PacketSocket) -> int:
        clock, send = self._clock, sock.send
        sent = 0
        while sent < _FRAMES_PER_TURN:
            frame = nic.next_frame(clock.now())
            if frame is None:
                break
            # on the board first: a frame must never be in the fabric before it is counted
            self._row.sent(1)
            send(frame)
            sent += 1
        return sent

    def _report(self, rank: Rank) -> RankReport:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return RankReport(
            rank=rank.rank,
            ports=[self._port_report(port) for port in self._ports if port.rank is rank],
            wrong_elements=rank.verify(),
            done=rank.done,
            failed=rank.failed,
            flows=rank.flows,
            connections=rank.connection_reports(),
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            timeline=rank.executor.timeline(),
            timer_lateness=rank.timer_lateness,
        )

    @staticmethod
    def _port_report(port: _Port) -> PortReport:
        nic = port.nic
        return PortReport(
            interface=port.settings.interface,
            counts={n: (count.packets, count.bytes) for n, count in vars(nic.counts).items()},
            held_frames=[(frame[42], len(frame)) for frame in nic.held],
            send_lateness=nic.send_lateness,
            delivery_lateness=nic.delivery_lateness,
            busy_time=nic.busy_time,
            socket_drops=port.socket.take_dropped(),
        )


def _keep_only(pipe: Pipe, wake: int) -> tuple[Pipe, int]:
    """Close all inherited descriptors but the standard streams, the pipe and the wake-up event.

    Descriptors beyond 1023, which a runner with many servers has, do not fit into select().
    """
    kept = {0, 1, 2, pipe.fileno(), wake}
    for entry in Path("/proc/self/fd").iterdir():
        if int(entry.name) not in kept:
            with contextlib.suppress(OSError):  # the one that lists the directory is gone already
                os.close(int(entry.name))
    return Pipe(os.dup(pipe.fileno())), os.dup(wake)


def serve(
    settings: ServerSettings,
    plan: Plan,
    clock: EmulatedClock,
    row: ActivityRow,
    port_down: memoryview,
    pipe: Pipe,
    wake: int,
) -> None:
    """Body of the forked process: enter the server's network namespace, run, leave by _exit.

    An exception reaches the runner as its traceback, in a string, in place of the next message.
    """
    status = 1
    gc.disable()  # what the runner left must not be closed behind our back
    try:
        pipe, wake = _keep_only(pipe, wake)
        die_with_parent()
        set_timer_slack(_TIMER_SLACK)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        set_priority(Priority.SERVER)
        descriptor = os.open(settings.network_namespace, os.O_RDONLY)
        enter_network_namespace(descriptor)
        os.close(descriptor)
        Server(settings, plan, clock, row, port_down, pipe, wake).run()
        status = 0
    except BaseException:
        pipe.send(traceback.format_exc())
    finally:
        os._exit(status)
