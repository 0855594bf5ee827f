"""Who listens on a TCP port: for an error message that a person can act on."""

from __future__ import annotations

from pathlib import Path

_TCP_LISTEN = "0A"
"""TCP_LISTEN of include/net/tcp_states.h, as /proc/net/tcp prints it."""


def port_owner(port: int) -> str | None:
    """PID and name of a process that listens on an IPv4 port of this network namespace.

    None if there is none, or none that we may look into.
    """
    sockets = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == _TCP_LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
            sockets.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(fd.readlink()) in sockets for fd in (process / "fd").iterdir()):
                return f"{process.name} ({(process / 'comm').read_text().strip()})"
        except OSError:  # it ended meanwhile, or belongs to somebody else
            continue
    return None
