"""Do real switches forward as the model says? A private Open vSwitch, plain veths, no shaping.

``ROCELAB_CONTROLLER_PYTHON`` lets the controller run under another interpreter (Ryu's environment).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import select
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from controllers.entries import Drop, Entry
from controllers.hashing import FiveTuple
from controllers.process import INTERPRETER_VARIABLE, ControllerError, ControllerProcess
from controllers.program import write_program
from controllers.schemes import create_scheme
from controllers.table import FabricTables
from testbed.isolation import network_namespace_of, run_isolated
from testbed.ovs import OpenVSwitch
from testbed.topology import Interface, Topology, topology_kinds

pytestmark = [
    pytest.mark.fabric,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]

SCHEMES = ("ecmp", "static")
ETH_P_ALL = 3


def leaf_spine(**size: int) -> Topology:
    kind = topology_kinds()["leaf-spine"]
    return kind().build(kind.parameters(**size))


def isolated(function: Callable[[], Any], result: Path) -> Any:
    """What ``function`` returns when run in namespaces of its own; it must be JSON."""

    def body() -> int:
        result.write_text(json.dumps(function()))
        return 0

    status = run_isolated(body)
    assert status == 0, "the fabric part failed; its traceback is on stderr"
    return json.loads(result.read_text())


class PatientOpenVSwitch(OpenVSwitch):
    """Waits until a daemon's socket accepts, not only until it exists: bind comes before listen."""

    def _wait_for(self, path: Path, timeout: float = 20.0) -> None:
        super()._wait_for(path, timeout)

        def accepts() -> bool:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                return sock.connect_ex(str(path)) == 0

        wait_until(accepts, timeout=timeout)


class PlainFabric:
    """All NIC ends stay in the run's namespace, without addresses; frames are sent by hand."""

    def __init__(self, topology: Topology, scheme: str, directory: Path, **parameters: Any) -> None:
        self.topology = topology
        self.entries = create_scheme(scheme, parameters, seed=7).entries(topology)
        self.tables = FabricTables(topology, self.entries)
        self.ovs = PatientOpenVSwitch(directory / "ovs", directory / "logs")
        program = directory / "program.json"
        write_program(program, topology, self.entries)
        self.controller = ControllerProcess(program, log=directory / "controller.log")

    def start(self) -> None:
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

    def trace_path(self, flow: FiveTuple) -> list[str]:
        """The path according to ``ofproto/trace`` in every switch on the way."""
        nics = {i.address: i for i in self.topology.interfaces.values() if i.address}
        egress = nics[flow.source_ip]
        path = [egress.name]
        eth_dst = self.topology.nodes[egress.peer_node].router_mac
        kind = {17: "udp", 6: "tcp", 1: "icmp"}[flow.protocol]
        ports = f",{kind}_src={flow.source_port},{kind}_dst={flow.destination_port}"
        fields = f"{kind},nw_src={flow.source_ip},nw_dst={flow.destination_ip}"
        fields += ports if kind != "icmp" else ""
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
        return path

    def transmitted(self) -> Counter[str]:
        """Packets that each switch port has sent, by interface name."""
        counts: Counter[str] = Counter()
        for switch in self.entries:
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

    def frame(self, flow: FiveTuple, **ip: int) -> bytes:
        nics = {i.address: i for i in self.topology.interfaces.values() if i.address}
        sender = nics[flow.source_ip]
        return bytes(
            Ether(src=sender.mac, dst=self.topology.nodes[sender.peer_node].router_mac)
            / IP(src=flow.source_ip, dst=flow.destination_ip, **ip)
            / UDP(sport=flow.source_port, dport=flow.destination_port, chksum=0)
            / bytes(64)
        )

    def stop(self) -> None:
        self.controller.stop()
        self.ovs.stop()


@contextlib.contextmanager
def fabric(topology: Topology, scheme: str, directory: Path, **more: Any) -> Iterator[PlainFabric]:
    built = PlainFabric(topology, scheme, directory, **more)
    try:
        built.start()
        yield built
    finally:
        built.stop()


def ip_batch(lines: list[str]) -> None:
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)


@contextlib.contextmanager
def packet_socket(interface: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as sock:
        sock.bind((interface, ETH_P_ALL))
        yield sock


def received(sock: socket.socket, *, timeout: float) -> list[bytes]:
    """Frames that arrive until the line is silent for ``timeout`` seconds; own ones left out."""
    frames = []
    while select.select([sock], [], [], timeout)[0]:
        frame, address = sock.recvfrom(65536)
        if address[2] != socket.PACKET_OUTGOING:
            frames.append(frame)
    return frames


def random_flows(topology: Topology, count: int, seed: int, **more: int) -> list[FiveTuple]:
    generator = random.Random(seed)
    flows = []
    for _ in range(count):
        source, destination = generator.sample(range(len(topology.ranks)), 2)
        flows.append(
            FiveTuple(
                topology.nic(source).address,
                topology.nic(destination).address,
                generator.randrange(49152, 65536),
                **more,
            )
        )
    return flows


def wait_until(condition: Callable[[], bool], *, timeout: float = 10.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("scheme", "parameters"),
    [
        ("ecmp", {}),
        ("ecmp", {"fields": "symmetric_l3l4"}),
        ("ecmp", {"algorithm": "hash_threshold"}),
        ("static", {}),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else value,
)
def test_prediction_equals_trace(tmp_path: Path, scheme: str, parameters: dict[str, str]) -> None:
    topology = leaf_spine(leaves=3, spines=3, servers_per_leaf=3)
    flows = random_flows(topology, 120, seed=1)
    flows += random_flows(topology, 20, seed=2, protocol=6, destination_port=5201)
    flows += random_flows(topology, 10, seed=3, protocol=1)

    def body() -> list[list[list[str]]]:
        with fabric(topology, scheme, tmp_path, **parameters) as built:
            return [[built.trace_path(flow), built.tables.path_of(flow)] for flow in flows]

    paths = isolated(body, tmp_path / "result.json")
    for flow, (traced, predicted) in zip(flows, paths, strict=True):
        assert traced == predicted, flow
    assert len({tuple(traced) for traced, _ in paths}) > 30


@pytest.mark.parametrize("scheme", SCHEMES)
def test_prediction_equals_port_counters(tmp_path: Path, scheme: str) -> None:
    topology = leaf_spine(leaves=4, spines=4, servers_per_leaf=2)
    flows = random_flows(topology, 400, seed=4)

    def body() -> list[dict[str, int]]:
        with fabric(topology, scheme, tmp_path) as built, contextlib.ExitStack() as stack:
            senders = {
                nic.address: stack.enter_context(packet_socket(nic.name))
                for nic in topology.interfaces.values()
                if nic.address
            }
            expected: Counter[str] = Counter()
            for number, flow in enumerate(flows):
                copies = 1 + number % 3
                expected.update(dict.fromkeys(built.tables.path_of(flow)[1:], copies))
                for _ in range(copies):
                    senders[flow.source_ip].send(built.frame(flow))
                time.sleep(0.0005)
            wait_until(lambda: built.transmitted().total() >= expected.total())
            return [built.transmitted(), expected]

    counted, expected = isolated(body, tmp_path / "result.json")
    assert {name: count for name, count in counted.items() if count} == expected


def test_switches_rewrite_as_routers_do(tmp_path: Path) -> None:
    topology = leaf_spine(leaves=2, spines=2, servers_per_leaf=1)
    sender, receiver = topology.nic(0), topology.nic(1)
    flow = FiveTuple(sender.address, receiver.address, 50000)

    def body() -> list[list[str]]:
        with (
            fabric(topology, "ecmp", tmp_path) as built,
            packet_socket(sender.name) as out,
            packet_socket(receiver.name) as into,
        ):
            out.send(built.frame(flow, ttl=64))
            arrived = received(into, timeout=0.5)
            # Three switches decrement; the third one meets TTL 1 and must drop.
            out.send(built.frame(flow, ttl=3))
            expired = received(into, timeout=0.5)
            return [[frame.hex() for frame in arrived], [frame.hex() for frame in expired]]

    arrived, expired = isolated(body, tmp_path / "result.json")
    assert expired == []
    (frame,) = [Ether(bytes.fromhex(text)) for text in arrived]
    assert frame.dst == receiver.mac
    assert frame.src == topology.nodes["leaf2"].router_mac
    assert frame[IP].ttl == 61
    checksum = frame[IP].chksum
    del frame[IP].chksum
    assert Ether(bytes(frame))[IP].chksum == checksum


def test_unknown_destinations_are_dropped_and_idle_is_silent(tmp_path: Path) -> None:
    topology = leaf_spine(leaves=2, spines=2, servers_per_leaf=2)
    sender = topology.nic(0)

    def body() -> dict[str, int]:
        with fabric(topology, "ecmp", tmp_path) as built, packet_socket(sender.name) as out:
            idle_before = built.packets_seen()
            time.sleep(3)
            idle = built.packets_seen() - idle_before
            for address in ("10.1.0.99", "10.9.0.1", "255.255.255.255", "192.0.2.1"):
                out.send(built.frame(FiveTuple(sender.address, address, 50000)))
            who_has = Ether(src=sender.mac, dst="ff:ff:ff:ff:ff:ff", type=0x0806) / bytes(46)
            out.send(bytes(who_has))
            # one packet that is forwarded shows that all before it were not
            out.send(built.frame(FiveTuple(sender.address, topology.nic(1).address, 50000)))
            wait_until(lambda: built.transmitted().total() > 0)
            return {"idle": idle, "forwarded": built.transmitted().total()}

    assert isolated(body, tmp_path / "result.json") == {"idle": 0, "forwarded": 1}


def test_controller_restart_loses_no_packet(tmp_path: Path) -> None:
    topology = leaf_spine(leaves=2, spines=2, servers_per_leaf=1)
    sender, receiver = topology.nic(0), topology.nic(1)
    flow = FiveTuple(sender.address, receiver.address, 50000)
    count = 3000

    def body() -> dict[str, Any]:
        with (
            fabric(topology, "ecmp", tmp_path) as built,
            packet_socket(sender.name) as out,
        ):
            frame = built.frame(flow)
            ready_again = 0
            for number in range(count):
                out.send(frame)
                if number == count // 4:
                    os.kill(built.controller.pid, 9)
                if number == count // 3:
                    built.controller.start()
                if number % 10 == 0:
                    time.sleep(0.01)
                    if number > count // 3 and not ready_again:
                        events = [event["event"] for event in built.controller.poll()]
                        ready_again = number if "ready" in events else 0
            event = built.controller.wait_ready(10)
            time.sleep(0.3)
            return {
                "received": built.transmitted()[receiver.peer],
                "ready_again": ready_again,
                "switches": event["switches"],
                "library": event["library"],
            }

    result = isolated(body, tmp_path / "result.json")
    assert result["received"] == count
    assert result["switches"] == 4
    assert result["library"] == ("ryu" if os.environ.get(INTERPRETER_VARIABLE) else "os-ken")
    assert count // 3 < result["ready_again"] < count, "the tables were replaced during traffic"


def test_a_refused_entry_changes_nothing(tmp_path: Path) -> None:
    topology = leaf_spine(leaves=2, spines=1, servers_per_leaf=1)

    def body() -> dict[str, Any]:
        with fabric(topology, "ecmp", tmp_path) as built:
            before = built.ovs.ofctl("--no-stats", "dump-flows", "leaf1")
            built.controller.stop()
            entries = {**built.entries}
            # OpenFlow wants the EtherType beside an IPv4 address
            entries["leaf1"] = [Entry(0, 5, {"ipv4_dst": "10.0.0.0/8"}, (Drop(),))]
            write_program(tmp_path / "program.json", topology, entries)
            built.controller.start()
            try:
                built.controller.wait_ready(10)
            except ControllerError as error:
                after = built.ovs.ofctl("--no-stats", "dump-flows", "leaf1")
                return {"error": str(error), "before": before, "after": after}
        return {"error": "none"}

    result = isolated(body, tmp_path / "result.json")
    assert "leaf1: OFPET_BAD_MATCH(4), OFPBMC_BAD_PREREQ(9)" in result["error"]
    assert "10.0.0.0/8" in result["error"]
    assert result["after"] == result["before"]
    assert "nw_dst=10.1.0.1" in result["before"]


def test_ping_and_tcp_between_servers(tmp_path: Path) -> None:
    topology = leaf_spine(leaves=2, spines=2, servers_per_leaf=1)

    def move(nic: Interface) -> subprocess.Popen[bytes]:
        server = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        own = Path("/proc/self/ns/net").readlink()
        wait_until(lambda: Path(f"/proc/{server.pid}/ns/net").readlink() != own)
        ip_batch([f"link set {nic.name} netns {server.pid}"])
        router = topology.nodes[nic.peer_node].router_mac
        with network_namespace_of(server.pid):
            ip_batch(
                [
                    f"link set {nic.name} up",
                    f"addr add {nic.address}/32 dev {nic.name}",
                    f"neigh add 10.255.255.254 lladdr {router} dev {nic.name} nud permanent",
                    f"route add 10.0.0.0/8 via 10.255.255.254 dev {nic.name} onlink",
                ]
            )
            # veth leaves checksums to hardware that is not there
            subprocess.run(["ethtool", "-K", nic.name, "tx", "off"], check=True)
        return server

    def body() -> dict[str, Any]:
        with fabric(topology, "ecmp", tmp_path):
            client, server = topology.nic(0), topology.nic(1)
            processes = [move(client), move(server)]
            with network_namespace_of(processes[1].pid):
                listener = socket.create_server((server.address, 5201))
            with network_namespace_of(processes[0].pid):
                ping = subprocess.run(
                    ["ping", "-c", "3", "-i", "0.05", "-W", "2", server.address],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                stream = socket.create_connection((server.address, 5201), timeout=5)
            connection, peer = listener.accept()
            with listener, stream, connection:
                stream.sendall(b"x" * 1000)
                data = connection.recv(1000, socket.MSG_WAITALL)
            for process in processes:
                process.kill()
                process.wait()
            return {"ping": ping.stdout, "bytes": len(data), "peer": peer[0]}

    result = isolated(body, tmp_path / "result.json")
    assert "3 received" in result["ping"]
    assert "ttl=61" in result["ping"]
    assert result["bytes"] == 1000
    assert result["peer"] == topology.nic(0).address


def test_controller_names_a_busy_port_and_an_unknown_switch(tmp_path: Path) -> None:
    topology = leaf_spine(leaves=1, spines=0, servers_per_leaf=2)

    def body() -> dict[str, str]:
        errors = {}
        with socket.create_server(("127.0.0.1", 6653)):
            busy = PlainFabric(topology, "ecmp", tmp_path)
            try:
                busy.start()
            except ControllerError as error:
                errors["busy"] = str(error)
            busy.stop()
        ip_batch([f"link delete {nic.name}" for nic in (topology.nic(0), topology.nic(1))])
        with fabric(topology, "ecmp", tmp_path / "second") as built:
            built.ovs.vsctl(
                "add-br", "stranger", "--", "set", "bridge", "stranger", "datapath_type=netdev",
                "protocols=OpenFlow13", "other-config:datapath-id=00000000000000ff",
                "--", "set-controller", "stranger", "tcp:127.0.0.1:6653",
            )  # fmt: skip
            wait_until(lambda: any(e["event"] == "error" for e in built.controller.poll()))
            errors["unknown"] = built.controller.events[-1]["text"]
            started = time.monotonic()
            for _ in range(2):
                built.controller.stop()
            assert time.monotonic() - started < 5
            assert not built.controller.running
        return errors

    (tmp_path / "second").mkdir()
    errors = isolated(body, tmp_path / "result.json")
    assert "127.0.0.1:6653 is busy" in errors["busy"]
    assert "0xff" in errors["unknown"]
