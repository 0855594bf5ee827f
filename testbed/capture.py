"""Records of what passes an interface, as pcap files that Wireshark opens."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

from testbed.isolation import network_namespace_of
from testbed.syscalls import die_with_parent

SNAPSHOT = 9216
"""Bytes kept of a frame: all of it."""

BUFFER = 65536
"""tcpdump's buffer in KiB; with the default one it loses frames silently."""

START_TIMEOUT = 10.0
"""Wall seconds."""


class CaptureError(RuntimeError):
    """tcpdump does not run; the message carries its own words."""


class Capture:
    """tcpdump on one interface. ``pid`` is a process in the interface's network namespace."""

    def __init__(self, interface: str, path: Path, pid: int) -> None:
        self._interface = interface
        self._log = path.with_suffix(".log")
        self.path = path
        command = ["tcpdump", "-i", interface, "-w", str(path), "-U", "-n"]
        command += ["-s", str(SNAPSHOT), "-B", str(BUFFER), "-Z", "root"]
        with network_namespace_of(pid), self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                preexec_fn=die_with_parent,
                process_group=0,  # out of reach of a terminal's ^C
            )
        self._wait_until_listening()

    def _wait_until_listening(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while "listening on" not in self._log.read_text(errors="replace"):
            if self._process.poll() is not None or time.monotonic() > deadline:
                words = self._log.read_text(errors="replace").strip() or "it does not start"
                self._process.kill()
                raise CaptureError(f"tcpdump on {self._interface}: {words}")
            time.sleep(0.01)

    def stop(self) -> int:
        """End the capture when all it has seen is written; returns frames the kernel dropped.

        Raises CaptureError.
        """
        # what is in the kernel's buffer reaches tcpdump within its read timeout of one second
        time.sleep(1.2)
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise CaptureError(f"tcpdump on {self._interface} does not end") from None
        for line in self._log.read_text(errors="replace").splitlines():
            if line.endswith("dropped by kernel"):
                return int(line.split()[0])
        raise CaptureError(f"tcpdump on {self._interface} did not say what it dropped")
