"""A private Open vSwitch for one run: its own database, daemon and sockets in the run directory.

The userspace datapath (``datapath_type=netdev``) sends every frame through packet sockets whose
send buffer caps all queues together, silently: what waits in a qdisc is charged to the socket. The
usual cure, raising net.core.wmem_default, changes the machine for everyone. Here the sockets
themselves are enlarged instead: pidfd_getfd(2) gives this process a copy of the daemon's socket,
and SO_SNDBUFFORCE and SO_RCVBUFFORCE act on the socket behind it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from testbed.syscalls import die_with_parent
from testbed.topology import Topology

SOCKET_BUFFER = 1 << 30
"""Bytes; more than any queue of a run holds. The kernel doubles it to account for overhead."""

_SYS_PIDFD_GETFD = 438
_SOL_PACKET = 263
_PACKET_STATISTICS = 6
_SO_SNDBUFFORCE = 32  # asm-generic/socket.h; Python has no name for them
_SO_RCVBUFFORCE = 33
_SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")

_libc = ctypes.CDLL(None, use_errno=True)


class OvsError(RuntimeError):
    """Open vSwitch did not do what it was told; the message carries its own words."""


@dataclass(frozen=True, slots=True)
class SocketAudit:
    """What the daemon's packet sockets look like: smallest buffer in bytes, frames they lost."""

    smallest_buffer: int
    dropped_frames: int

    def problems(self) -> list[str]:
        """In words; a buffer that stayed small caps all queues together, and nobody counts that."""
        if self.smallest_buffer >= SOCKET_BUFFER:
            return []
        return [
            f"Open vSwitch has a packet socket of {self.smallest_buffer} B; "
            f"planned at least {SOCKET_BUFFER}"
        ]


class OpenVSwitch:
    """One database and one switch daemon; sockets and database in ``directory``, logs in ``logs``.

    ``OVS_RUNDIR`` in the environment of every tool points to it, so Mininet's and a user's
    ``ovs-vsctl`` find this instance and no other.
    """

    def __init__(self, directory: Path, logs: Path) -> None:
        self.directory = directory
        self.logs = logs
        self._processes: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **os.environ,
            "OVS_RUNDIR": str(directory),
            "OVS_DBDIR": str(directory),
            "OVS_LOGDIR": str(logs),
        }

    def start(self) -> None:
        """Start database and daemon; returns when the daemon answers. Raises OvsError."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        # Mininet and the user's shell run ovs-vsctl from this process
        os.environ.update(
            {k: self.environment[k] for k in ("OVS_RUNDIR", "OVS_DBDIR", "OVS_LOGDIR")}
        )
        database = self.directory / "conf.db"
        self._tool("ovsdb-tool", "create", str(database), str(_SCHEMA))
        self._spawn(
            "ovsdb-server",
            str(database),
            f"--remote=punix:{self.directory / 'db.sock'}",
            f"--unixctl={self.directory / 'ovsdb-server.ctl'}",
            "--log-file",
            "-vconsole:off",
        )
        self._wait_for(self.directory / "db.sock")
        # an upcall per flow is enough: entries of a flow that pauses must stay
        self.vsctl(
            "--no-wait", "init", "--", "set", "Open_vSwitch", ".",
            "other_config:max-idle=86400000", "other_config:n-revalidator-threads=1",
            "other_config:n-handler-threads=1",
        )  # fmt: skip
        self._spawn(
            "ovs-vswitchd",
            f"unix:{self.directory / 'db.sock'}",
            f"--unixctl={self._control}",
            "--log-file",
            "-vconsole:off",
        )
        self._wait_for(self._control)

    @property
    def _control(self) -> Path:
        return self.directory / "ovs-vswitchd.ctl"

    @property
    def daemon_pid(self) -> int:
        """PID of ovs-vswitchd."""
        return self._processes[1].pid

    def add_bridges(self, topology: Topology, controller: str) -> None:
        """Create every switch with its ports in one transaction. Raises OvsError.

        ``controller`` is an OpenFlow target such as ``tcp:127.0.0.1:6653``. Switches forward
        nothing until told (fail_mode secure), and keep their entries when the controller goes.
        """
        command: list[str] = []
        for switch in topology.switches:
            name = switch.name
            command += ["--", "add-br", name, "--", "set", "bridge", name]
            command += ["datapath_type=netdev", "fail_mode=secure", "protocols=OpenFlow13"]
            command += [
                f"other-config:datapath-id={switch.datapath_id:016x}",
                f'other-config:hwaddr="{switch.router_mac}"',
                "other-config:disable-in-band=true",
                "mcast_snooping_enable=false",
            ]
            for interface in topology.interfaces_of(name):
                command += ["--", "add-port", name, interface.name]
                command += ["--", "set", "interface", interface.name]
                command += [f"ofport_request={interface.port}"]
            command += ["--", "set-controller", name, controller]
            command += ["--", "set", "controller", name, "inactivity_probe=0", "max_backoff=1000"]
        self.vsctl("--timeout=30", *command[1:])
        listed = self.vsctl("--format=csv", "--no-headings", "--columns=name,ofport,error",
                            "list", "interface")  # fmt: skip
        ports = {
            parts[0]: (parts[1], parts[2])
            for line in listed.splitlines()
            if len(parts := line.replace('"', "").split(",", 2)) == 3
        }
        for switch in topology.switches:
            for interface in topology.interfaces_of(switch.name):
                number, error = ports.get(interface.name, ("", "missing"))
                if number != str(interface.port):
                    raise OvsError(
                        f"port {interface.name}: OpenFlow port is {number or 'none'}, "
                        f"planned {interface.port} {error}"
                    )

    def vsctl(self, *arguments: str) -> str:
        """Run ovs-vsctl and return what it printed. Raises OvsError."""
        return self._tool("ovs-vsctl", f"--db=unix:{self.directory / 'db.sock'}", *arguments)

    def ofctl(self, *arguments: str) -> str:
        """Run ovs-ofctl over OpenFlow 1.3. Raises OvsError."""
        return self._tool("ovs-ofctl", "-O", "OpenFlow13", *arguments)

    def appctl(self, *arguments: str) -> str:
        """Run ovs-appctl against the daemon. Raises OvsError."""
        return self._tool("ovs-appctl", "-t", str(self._control), *arguments)

    def enlarge_sockets(self) -> None:
        """Give all packet sockets of the daemon large buffers. Raises OvsError.

        The daemon opens its sending socket with the first frame it sends, so call this after the
        first traffic; ``audit_sockets`` tells whether all are large, and counts from here on.
        """
        for descriptor in self._packet_sockets():
            with descriptor as sock:
                sock.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, SOCKET_BUFFER - 1)
                sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, SOCKET_BUFFER - 1)
        self.audit_sockets()

    def audit_sockets(self) -> SocketAudit:
        """Look at all packet sockets of the daemon. The loss counters restart with each call."""
        sizes, dropped = [], 0
        for descriptor in self._packet_sockets():
            with descriptor as sock:
                sizes.append(sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))
                sizes.append(sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF))
                statistics = sock.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
                dropped += struct.unpack("II", statistics)[1]
        if not sizes:
            raise OvsError("ovs-vswitchd has no packet socket; is the datapath running?")
        return SocketAudit(min(sizes), dropped)

    def _packet_sockets(self) -> list[socket.socket]:
        pid = self.daemon_pid
        found = []
        pidfd = os.pidfd_open(pid)
        try:
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                try:
                    if not str(entry.readlink()).startswith("socket:"):
                        continue
                except FileNotFoundError:  # closed meanwhile
                    continue
                descriptor = _libc.syscall(_SYS_PIDFD_GETFD, pidfd, int(entry.name), 0)
                if descriptor < 0:
                    error = ctypes.get_errno()
                    raise OvsError(f"pidfd_getfd on ovs-vswitchd: {os.strerror(error)}")
                sock = socket.socket(fileno=descriptor)
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN) == socket.AF_PACKET:
                    found.append(sock)
                else:
                    sock.close()
        finally:
            os.close(pidfd)
        return found

    def check(self) -> None:
        """Raise OvsError if one of the daemons has ended by itself."""
        for process in self._processes:
            if process.poll() is not None:
                raise OvsError(self._obituary(process))

    def _obituary(self, process: subprocess.Popen[bytes]) -> str:
        name = Path(str(process.args[0])).name  # type: ignore[index]
        code = process.returncode
        end = f"status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        return f"{name} ended with {end}; its log is in {self.logs}"

    def stop(self) -> None:
        """End both daemons, bounded in time. Idempotent."""
        for process in reversed(self._processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in reversed(self._processes):
            try:
                process.wait(timeout=3)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def _spawn(self, *command: str) -> None:
        log = (self.logs / f"{command[0]}.out").open("wb")
        with log:
            self._processes.append(
                subprocess.Popen(
                    list(command),
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    preexec_fn=die_with_parent,
                    process_group=0,  # out of reach of a terminal's ^C
                )
            )

    def _wait_for(self, path: Path, timeout: float = 20.0) -> None:
        """Wait until somebody listens on a socket; that it exists is not enough."""
        deadline = time.monotonic() + timeout
        with socket.socket(socket.AF_UNIX) as probe:
            while probe.connect_ex(str(path)) != 0:
                process = self._processes[-1]
                if process.poll() is not None:
                    raise OvsError(self._obituary(process))
                if time.monotonic() > deadline:
                    raise OvsError(
                        f"nobody listens on {path.name} after {timeout:.0f} s; "
                        f"logs are in {self.logs}"
                    )
                time.sleep(0.005)

    def _tool(self, *command: str) -> str:
        result = subprocess.run(
            list(command), env=self.environment, capture_output=True, text=True, check=False
        )
        if result.returncode != 0:
            raise OvsError(f"{command[0]}: {result.stderr.strip()}")
        return result.stdout
