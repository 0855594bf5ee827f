"""The server processes of a run: forked, connected with each other, started, stopped, collected."""

from __future__ import annotations

import multiprocessing.connection
import os
import signal
from dataclasses import dataclass
from typing import Any

from testbed.activity import ActivityBoard
from testbed.clock import EmulatedClock
from traffic.plan import Plan
from traffic.rank import Endpoint
from traffic.server import RankReport, serve
from traffic.settings import ServerSettings

ANSWER_TIMEOUT = 60.0
"""Wall seconds in which a server must answer outside of the traffic."""


class ServerError(RuntimeError):
    """A server process failed; the message says how, its notes hold the process's traceback."""


@dataclass
class _Process:
    name: str
    pid: int
    pipe: Any
    wake: int


class ServerPool:
    """One process per server. Call ``connect``, ``go``, then ``stop``; ``kill`` at any time."""

    def __init__(self, clock: EmulatedClock, board: ActivityBoard) -> None:
        self._clock = clock
        self._board = board
        self._processes: list[_Process] = []

    @property
    def wake_descriptors(self) -> list[int]:
        """An eventfd per server, in order; writing to it ends the server's wait."""
        return [process.wake for process in self._processes]

    def start(self, settings: list[ServerSettings], plan: Plan) -> None:
        """Fork all servers; each enters its network namespace and opens its sockets."""
        for server in settings:
            own, theirs = multiprocessing.connection.Pipe()
            wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            row = self._board.row(server.index)
            pid = os.fork()
            if pid == 0:
                own.close()
                serve(server, plan, self._clock, row, self._board.port_flags, theirs, wake)
            theirs.close()
            self._processes.append(_Process(server.name, pid, own, wake))

    def connect(self) -> None:
        """Exchange {QPN, PSN, address, rkey} among all ends; all queue pairs reach RTS.

        Raises ServerError.
        """
        table: dict[tuple[int, int], Endpoint] = {}
        for process in self._processes:
            for endpoint in self._answer(process):
                table[endpoint.connection, endpoint.rank] = endpoint
        for process in self._processes:
            self._send(process, table)
        for process in self._processes:
            self._answer(process)

    def go(self) -> None:
        """Start the traffic everywhere; the clock starts now."""
        self._clock.start()
        for process in self._processes:
            self._send(process, "go")

    def check(self) -> None:
        """Raise ServerError if a server has failed in the middle of the traffic."""
        for process in self._processes:
            if process.pipe.poll():
                self._answer(process)
                raise ServerError(f"{process.name}: spoke out of turn")

    def halt(self) -> None:
        """Make all servers stop; returns when none sends or receives. Raises ServerError."""
        for process in self._processes:
            self._send(process, "halt")
        for process in self._processes:
            self._answer(process)

    def collect(self) -> list[RankReport]:
        """After ``halt``: the reports of all ranks, in rank order; the processes end."""
        for process in self._processes:
            self._send(process, "report")
        reports: list[RankReport] = []
        for process in self._processes:
            reports += self._answer(process)
        for process in self._processes:
            self._send(process, "bye")
        self._reap()
        return sorted(reports, key=lambda report: report.rank)

    def kill(self) -> None:
        """End all processes at once. Idempotent."""
        for process in self._processes:
            os.kill(process.pid, signal.SIGKILL)
        self._reap()

    def _reap(self) -> None:
        for process in self._processes:
            os.waitpid(process.pid, 0)
            process.pipe.close()
            os.close(process.wake)
        self._processes.clear()

    def _answer(self, process: _Process) -> Any:
        if not process.pipe.poll(ANSWER_TIMEOUT):
            raise ServerError(f"{process.name}: no answer within {ANSWER_TIMEOUT:.0f} s")
        try:
            answer = process.pipe.recv()
        except (EOFError, ConnectionResetError):
            raise ServerError(f"{process.name}: its process ended") from None
        if isinstance(answer, str) and answer not in ("ready", "halted"):
            *details, reason = answer.strip().splitlines()
            error = ServerError(f"{process.name}: {reason}")
            error.add_note("\n".join(details))
            raise error
        return answer

    @staticmethod
    def _send(process: _Process, message: Any) -> None:
        try:
            process.pipe.send(message)
        except (BrokenPipeError, ConnectionResetError):
            raise ServerError(f"{process.name}: its process ended") from None
