"""The process that runs in one Mininet host: the event loop of the server's ranks and their NICs.

It is forked from the runner, so it has plan, clock and activity board in memory already;
it talks to the runner over a pipe, so no control traffic touches the fabric.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import resource
import select
import signal
import traceback
from array import array
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Final

from testbed.activity import ActivityRow
from testbed.clock import EmulatedClock
from testbed.priority import Priority, set_priority
from traffic.faults import LossInjector
from traffic.nic import Nic
from traffic.packet_socket import PacketSocket
from traffic.plan import Plan
from traffic.rank import ConnectionReport, Endpoint, FlowProgress, Rank
from traffic.settings import PortSettings, ServerSettings

_CLONE_NEWNET: Final = 0x4000_0000
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_TIMERSLACK: Final = 29
_FRAMES_PER_TURN: Final = 64

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class RankReport:
    """What one rank tells after the traffic. Counts are name -> (packets, bytes of frames)."""

    rank: int
    interface: str
    counts: dict[str, tuple[int, int]]
    held_frames: list[tuple[int, int]]
    """Opcode and bytes of each frame left in the delay line."""
    send_lateness: array[float]
    delivery_lateness: array[float]
    busy_time: float
    """Emulated seconds that this NIC's frames took on the wire."""
    socket_drops: int
    wrong_elements: int
    done: bool
    failed: str | None
    flows: dict[int, FlowProgress]
    connections: list[ConnectionReport]
    cpu_seconds: float


class Server:
    """All ranks of one server. ``row`` is its row on the activity board."""

    def __init__(
        self,
        settings: ServerSettings,
        plan: Plan,
        clock: EmulatedClock,
        row: ActivityRow,
        pipe: Pipe,
        wake: int,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._row = row
        self._pipe = pipe
        self._wake = wake
        self._ranks: list[Rank] = []
        self._sockets: list[PacketSocket] = []
        self._announced: set[int] = set()
        for port in settings.ports:
            self._sockets.append(PacketSocket(port.interface))
            nic = Nic(
                rate=port.rate,
                latency=self._latency,
                lead=settings.lead,
                losses=self._losses(port),
            )
            rank = Rank(plan, port, settings.transport, nic, settings.traced_connections)
            self._ranks.append(rank)

    def _latency(self, hops: int) -> float:
        latencies = self._settings.latencies
        return latencies[min(hops, len(latencies) - 1)]

    def _losses(self, port: PortSettings) -> LossInjector:
        losses = self._settings.losses
        return LossInjector(
            seed=f"{losses.seed}/{port.rank}",
            probability=losses.probability,
            drops=losses.drops.get(port.rank, ()),
        )

    def run(self) -> None:
        """Connect, wait for the start, run until told to stop, report."""
        self._pipe.send([e for rank in self._ranks for e in rank.endpoints()])
        table: dict[tuple[int, int], Endpoint] = self._pipe.recv()
        for rank in self._ranks:
            own = rank.port.rank
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
        for rank, sock in zip(self._ranks, self._sockets, strict=True):
            while frames := sock.receive():
                self._row.received(len(frames))
                for frame in frames:
                    rank.nic.arrive(frame, math.inf)
        self._pipe.send([self._report(i) for i in range(len(self._ranks))])
        self._pipe.recv()

    def _loop(self) -> None:
        clock, row = self._clock, self._row
        pipe, wake = self._pipe.fileno(), self._wake
        waited = [pipe, wake, *(sock.fileno() for sock in self._sockets)]
        readable = waited
        wakeups = 0
        while True:
            wakeups += 1
            row.begin(wakeups)
            busy = False
            event = math.inf
            for rank, sock in zip(self._ranks, self._sockets, strict=True):
                # to ask a socket that has nothing costs a system call and an exception
                busy |= self._turn(rank, sock, arrived=sock.fileno() in readable)
                event = min(event, rank.next_event())
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

    def _turn(self, rank: Rank, sock: PacketSocket, *, arrived: bool) -> bool:
        """One round of a rank: receive, deliver, compute, send. Whether there may be more to do."""
        clock, nic = self._clock, rank.nic
        frames = sock.receive(_FRAMES_PER_TURN) if arrived else []
        if frames:
            now = clock.now()
            for frame in frames:
                nic.arrive(frame, now)
            self._row.received(len(frames))
        now = clock.now()
        nic.advance(now)
        rank.step(now)
        sent = self._send(nic, sock)
        if rank.done and rank.port.rank not in self._announced:
            self._announced.add(rank.port.rank)
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

    def _report(self, index: int) -> RankReport:
        rank, sock = self._ranks[index], self._sockets[index]
        counts = {
            name: (count.packets, count.bytes) for name, count in vars(rank.nic.counts).items()
        }
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return RankReport(
            rank=rank.port.rank,
            interface=rank.port.interface,
            counts=counts,
            held_frames=[(frame[42], len(frame)) for frame in rank.nic.held],
            send_lateness=rank.nic.send_lateness,
            delivery_lateness=rank.nic.delivery_lateness,
            busy_time=rank.nic.busy_time,
            socket_drops=sock.take_dropped(),
            wrong_elements=rank.verify(),
            done=rank.done,
            failed=rank.failed,
            flows=rank.flows,
            connections=rank.connection_reports(),
            cpu_seconds=usage.ru_utime + usage.ru_stime,
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
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _libc.prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        set_priority(Priority.SERVER)
        descriptor = os.open(settings.network_namespace, os.O_RDONLY)
        if _libc.setns(descriptor, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns", settings.network_namespace)
        os.close(descriptor)
        Server(settings, plan, clock, row, pipe, wake).run()
        status = 0
    except BaseException:
        pipe.send(traceback.format_exc())
    finally:
        os._exit(status)
