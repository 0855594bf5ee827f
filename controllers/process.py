"""The controller as a child process: start it, give it programs, wait for the fabric, stop it.

The child runs ``controllers.launch`` under this Python or, for Ryu's own environment, under another
one. It sends its status over a Unix socket in the abstract namespace, which leaves no file behind
and belongs to the run's network namespace alone.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

INTERPRETER_VARIABLE = "ROCELAB_CONTROLLER_PYTHON"
"""Environment variable: the Python that runs the controller, if not this one."""

_STOP_TIMEOUT = 5.0
_numbers = itertools.count(1)


class ControllerError(RuntimeError):
    """The controller ended, reported an error or is late; the message says which."""


class ControllerProcess:
    """One controller for one program. Times are wall seconds.

    ``listen`` is HOST:PORT; port 0 lets the kernel choose, and ``port`` tells which one it was.
    ``log`` receives the child's stdout and stderr. Start it from the thread that outlives it: the
    kernel kills the child when that thread ends.
    """

    def __init__(
        self,
        program: Path,
        *,
        log: Path,
        listen: str = "127.0.0.1:6653",
        interpreter: str | None = None,
    ) -> None:
        self._program = program
        self._log = log
        self._listen = listen
        self._interpreter = interpreter or os.environ.get(INTERPRETER_VARIABLE) or sys.executable
        self._process: subprocess.Popen[bytes] | None = None
        self._status: socket.socket | None = None
        self._pending = b""
        self._commands: list[bytes] = []
        self._version = self._started_with = 0
        self.events: list[dict[str, Any]] = []
        """All events of the running child so far, in order of arrival."""

    def start(self) -> None:
        """Start the child. Does nothing if it runs. Raises OSError if it cannot be executed."""
        if self._process is not None and self._process.poll() is None:
            return
        self.stop()
        self.events = []
        self._pending = b""
        self._commands = []
        self._started_with = self._version
        name = f"rocelab-controller-{os.getpid()}-{next(_numbers)}"
        self._status = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._status.bind(f"\0{name}")
        self._status.listen(1)
        command = [self._interpreter, "-m", "controllers.launch"]
        command += ["--program", str(self._program.absolute()), "--status", f"@{name}"]
        command += ["--listen", self._listen, "--parent", str(os.getpid())]
        path = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
                process_group=0,  # out of reach of a terminal's ^C
            )

    def wait_listening(self, timeout: float) -> int:
        """Wait until switches can connect; returns the TCP port. Raises ControllerError."""
        return int(self._wait_for("listening", timeout)["port"])

    def wait_ready(self, timeout: float) -> dict[str, Any]:
        """Wait until every switch holds its entries; returns the event. Raises ControllerError."""
        return self._wait_for("ready", timeout)

    def update(self, program: Path) -> int:
        """Have the switches brought to another program; returns its version, for ``in_force``.

        Does not wait. The file must stay as it is. Raises ControllerError if the child has ended.
        """
        self._program = program
        self._version += 1
        command = {"command": "update", "program": str(program.absolute())}
        line = json.dumps({**command, "version": self._version}).encode() + b"\n"
        self._commands.append(line)
        self._send_commands()
        return self._version

    def restart(self) -> None:
        """Kill the child and start another one with the latest program. Does not wait for it."""
        if self._process is not None:
            self._process.kill()
        self.stop()
        self.start()

    def in_force(self, version: int) -> bool:
        """Whether all switches hold that version of the program, or a later one. Never blocks.

        Raises ControllerError if the controller has ended or has reported an error.
        """
        while received := self._receive(0.0):
            pass
        self._raise_errors()
        if received is False:
            raise ControllerError(self._last_words())
        names = [event["event"] for event in self.events]
        reached = [self._started_with] if "ready" in names else []
        reached += [int(event["version"]) for event in self.events if event["event"] == "updated"]
        return max(reached, default=-1) >= version

    def poll(self) -> list[dict[str, Any]]:
        """Take in what the child has reported since; returns all events. Never blocks."""
        while self._receive(0.0):
            pass
        return self.events

    @property
    def running(self) -> bool:
        """Whether the child runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The child's process id. Raises ControllerError before ``start``."""
        if self._process is None:
            raise ControllerError("the controller was not started")
        return self._process.pid

    def stop(self) -> None:
        """End the child, in bounded time. Idempotent; what the switches hold stays."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._status is not None:
            self._status.close()
            self._status = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait_for(self, wanted: str, timeout: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout
        while True:
            self._raise_errors()
            for event in self.events:
                if event["event"] == wanted:
                    return event
            left = deadline - time.monotonic()
            if left <= 0:
                raise ControllerError(
                    f"controller: not {wanted} after {timeout:g} s ({self._progress()}); "
                    f"its log is {self._log}"
                )
            if self._receive(left) is False:
                raise ControllerError(self._last_words())

    def _raise_errors(self) -> None:
        for event in self.events:
            if event["event"] == "error":
                switch = f"{event['switch']}: " if event.get("switch") else ""
                raise ControllerError(f"controller: {switch}{event['text']}")

    def _send_commands(self) -> None:
        """Send what waits, if the child has connected its status socket."""
        if self._status is None or self._listens(self._status):
            return
        try:
            while self._commands:
                self._status.sendall(self._commands[0])
                del self._commands[0]
        except OSError:
            raise ControllerError(self._last_words()) from None

    @staticmethod
    def _listens(stream: socket.socket) -> bool:
        return bool(stream.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))

    def _progress(self) -> str:
        installed = sorted({e["switch"] for e in self.events if e["event"] == "installed"})
        return f"switches installed: {', '.join(installed) or 'none'}"

    def _receive(self, timeout: float) -> bool | None:
        """Collect what the child reports within ``timeout``.

        True if something came, None if nothing did, False once the child has ended.
        """
        if self._process is None or self._status is None:
            raise ControllerError("the controller was not started")
        status = self._status.fileno()
        ended = os.pidfd_open(self._process.pid)
        waiter = select.poll()  # not select(): a fabric of many servers has many descriptors open
        for descriptor in (status, ended):
            waiter.register(descriptor, select.POLLIN)
        try:
            readable = [descriptor for descriptor, _ in waiter.poll(timeout * 1000)]
        finally:
            os.close(ended)
        if status not in readable:
            return False if readable else None
        if self._listens(self._status):
            connection, _ = self._status.accept()
            self._status.close()
            self._status = connection
            self._send_commands()
            return True
        data = self._status.recv(65536)
        *lines, self._pending = (self._pending + data).split(b"\n")
        self.events += [json.loads(line) for line in lines]
        return bool(data)

    def _last_words(self) -> str:
        assert self._process is not None
        try:
            status = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return f"controller: closed its status socket; its log is {self._log}"
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"controller: ended with status {status}"
