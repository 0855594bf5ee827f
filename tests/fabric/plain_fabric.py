"""Real switches without the rest: a private Open vSwitch and its controller on plain veths.

No shaping, no servers: all NIC ends stay in the run's namespace and frames are sent by hand.
"""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Dot1Q, Ether

from controllers.flows import Flow
from controllers.hashing import FiveTuple
from controllers.process import ControllerProcess
from controllers.program import write_program
from controllers.schemes import create_scheme
from controllers.table import FabricTables
from testbed.ovs import OpenVSwitch
from testbed.topology import Topology, create_topology

ETH_P_ALL = 3


def leaf_spine(**size: int) -> Topology:
    """A leaf-spine fabric."""
    return create_topology("leaf-spine", **size)


class PatientOpenVSwitch(OpenVSwitch):
    """Waits until a daemon's socket accepts, not only until it exists: bind comes before listen."""

    def _wait_for(self, path: Path, timeout: float = 20.0) -> None:
        super()._wait_for(path, timeout)

        def accepts() -> bool:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                return sock.connect_ex(str(path)) == 0

        wait_until(accepts, timeout=timeout)


class PlainFabric:
    """A topology's switches, programmed by a scheme. NIC ends have no addresses."""

    def __init__(
        self,
        topology: Topology,
        scheme: str,
        directory: Path,
        flows: Sequence[Flow] = (),
        **parameters: Any,
    ) -> None:
        self.topology = topology
        self.entries = create_scheme(scheme, parameters, seed=7).entries(topology, flows)
        self.tables = FabricTables(topology, self.entries)
        self.ovs = PatientOpenVSwitch(directory / "ovs", directory / "logs")
        program = directory / "program.json"
        write_program(program, topology, self.entries)
        self.controller = ControllerProcess(program, log=directory / "controller.log")

    def start(self) -> None:
        """Wire everything and wait until the switches hold their entries."""
        self.controller.start()
        lines, done = [], set()
        for interface in self.topology.interfaces.values():
            if interface.name not in done:
                peer = self.topology.interfaces[interface.peer]
                lines.append(f"link add {interface.name} type veth peer name {peer.name}")
                done |= {interface.name, peer.name}
            lines.append(f"link set {interface.name} address {interface.mac} up")
        ip_batch(lines)
        self.ovs.start()
        self.controller.wait_listening(20)
        self.ovs.add_bridges(self.topology, "tcp:127.0.0.1:6653")
        self.controller.wait_ready(20)

    def trace_path(self, flow: FiveTuple, label: int | None = None) -> list[str]:
        """The path according to ``ofproto/trace`` in every switch on the way.

        Raises AssertionError if the last switch leaves a tag on the packet.
        """
        egress = self.topology.nic(self.topology.rank_of_address(flow.source_ip))
        path = [egress.name]
        eth_dst = self.topology.nodes[egress.peer_node].router_mac
        kind = {17: "udp", 6: "tcp", 1: "icmp"}[flow.protocol]
        ports = f",{kind}_src={flow.source_port},{kind}_dst={flow.destination_port}"
        fields = f"{kind},nw_src={flow.source_ip},nw_dst={flow.destination_ip}"
        fields += ports if kind != "icmp" else ""
        if label is not None:
            fields += f",dl_vlan={label}"
        while egress.peer_node in self.entries:
            ingress = self.topology.interfaces[egress.peer]
            text = self.ovs.appctl(
                "ofproto/trace",
                ingress.node,
                f"in_port={ingress.port},dl_dst={eth_dst},{fields},nw_ttl=64",
            )
            out = int(re.findall(r"^ *output:(\d+)$", text, re.MULTILINE)[-1])
            eth_dst = re.findall(r"set_field:([0-9a-f:]+)->eth_dst", text)[-1]
            egress = next(i for i in self.topology.interfaces_of(ingress.node) if i.port == out)
            path.append(egress.name)
            at_the_end = egress.peer_node not in self.entries
            assert ("pop_vlan" in text) == (label is not None and at_the_end), text
        return path

    def transmitted(self, switches: Iterable[str] | None = None) -> Counter[str]:
        """Packets that each port of some switches, by default all, has sent, by interface name."""
        counts: Counter[str] = Counter()
        for switch in self.entries if switches is None else switches:
            names = {i.port: i.name for i in self.topology.interfaces_of(switch)}
            text = self.ovs.ofctl("dump-ports", switch)
            for port, sent in re.findall(r"port +(\d+): .*?tx pkts=(\d+)", text, re.DOTALL):
                counts[names[int(port)]] = int(sent)
        return counts

    def packets_seen(self) -> int:
        """Packets that any interface has sent or received, ever."""
        return sum(
            int(Path(f"/sys/class/net/{name}/statistics/{way}_packets").read_text())
            for name in self.topology.interfaces
            for way in ("tx", "rx")
        )

    def frame(self, flow: FiveTuple, *, label: int | None = None, **ip: int) -> bytes:
        """A small packet of a flow, as its NIC sends it or with a label."""
        sender = self.topology.nic(self.topology.rank_of_address(flow.source_ip))
        ethernet = Ether(src=sender.mac, dst=self.topology.nodes[sender.peer_node].router_mac)
        return bytes(
            (ethernet if label is None else ethernet / Dot1Q(vlan=label))
            / IP(src=flow.source_ip, dst=flow.destination_ip, **ip)
            / UDP(sport=flow.source_port, dport=flow.destination_port, chksum=0)
            / bytes(64)
        )

    def stop(self) -> None:
        """End the daemons; the veths go with the namespace."""
        self.controller.stop()
        self.ovs.stop()


@contextlib.contextmanager
def fabric(topology: Topology, scheme: str, directory: Path, **more: Any) -> Iterator[PlainFabric]:
    """A fabric that runs; ``more`` are flows and the scheme's parameters."""
    built = PlainFabric(topology, scheme, directory, **more)
    try:
        built.start()
        yield built
    finally:
        built.stop()


def ip_batch(lines: list[str]) -> None:
    """Run ``ip`` once for many commands."""
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)


@contextlib.contextmanager
def packet_socket(interface: str) -> Iterator[socket.socket]:
    """A raw socket on an interface."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as sock:
        sock.bind((interface, ETH_P_ALL))
        yield sock


def wait_until(
    condition: Callable[[], bool], *, timeout: float = 10.0, interval: float = 0.02
) -> None:
    """Poll a condition; AssertionError after ``timeout`` wall seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(interval)
