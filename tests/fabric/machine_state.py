"""What a run could leave on a machine: looked at before, compared after."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from dataclasses import dataclass, fields
from pathlib import Path

SETTLING_TIME = 2.0
"""Wall seconds that the kernel may take to clear away what belonged to a killed run."""


@dataclass(frozen=True)
class MachineState:
    """Everything outside of processes, as seen from the initial namespaces."""

    network_namespaces: frozenset[str]
    interfaces: frozenset[str]
    bpf_programs: frozenset[str]
    bpf_maps: frozenset[str]
    mounts: frozenset[str]
    sysctls: frozenset[str]

    @classmethod
    def look(cls) -> MachineState:
        """The state now."""
        return cls(
            network_namespaces=frozenset(_network_namespaces()),
            interfaces=frozenset(path.name for path in Path("/sys/class/net").iterdir()),
            bpf_programs=frozenset(_bpf_objects("prog")),
            bpf_maps=frozenset(_bpf_objects("map")),
            mounts=frozenset(Path("/proc/self/mounts").read_text().splitlines()),
            sysctls=frozenset(_sysctls()),
        )

    def differences(self, later: MachineState) -> list[str]:
        """What has come, and what has gone or changed that a run has no business with."""
        found = []
        for field in fields(self):
            old, new = getattr(self, field.name), getattr(later, field.name)
            transient = field.name in ("network_namespaces", "bpf_programs", "bpf_maps")
            different = new - old if transient else new ^ old
            found += [f"{field.name}: {thing}" for thing in sorted(different)]
        return found

    def assert_unchanged(self) -> None:
        """The machine is, or within SETTLING_TIME becomes, what it was."""
        deadline = time.monotonic() + SETTLING_TIME
        while differences := self.differences(MachineState.look()):
            assert time.monotonic() < deadline, differences
            time.sleep(0.1)


def processes_with(variable: str) -> dict[int, str]:
    """PID -> command of every process whose environment has ``NAME=value``; children inherit it."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may end while we look
            if variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(entry.name)] = command.strip()
    return found


def children_of(pid: int) -> list[int]:
    """PIDs of a single-threaded process's children."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _network_namespaces() -> set[str]:
    found = set()
    for link in Path("/proc").glob("[0-9]*/ns/net"):
        with contextlib.suppress(OSError):
            found.add(str(link.readlink()))
    return found | {str(path) for path in Path("/run/netns").glob("*")}


def _bpf_objects(kind: str) -> list[str]:
    listing = subprocess.run(
        ["bpftool", "--json", kind, "list"], capture_output=True, text=True, check=True
    )
    return [f"{entry['id']} {entry.get('name', '')}" for entry in json.loads(listing.stdout)]


def _sysctls() -> list[str]:
    found = []
    for folder in ("core", "ipv4"):
        for path in Path("/proc/sys/net", folder).rglob("*"):
            with contextlib.suppress(OSError):  # a few can only be written
                if path.is_file():
                    found.append(f"{path} = {path.read_text().strip()}")
    return found
