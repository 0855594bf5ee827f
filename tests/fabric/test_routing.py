"""Do real switches forward as the model says? A private Open vSwitch, plain veths, no shaping.

``ROCELAB_CONTROLLER_PYTHON`` lets the controller run under another interpreter (Ryu's environment).
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import socket
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import IP
from scapy.layers.l2 import Ether

from controllers.entries import Drop, Entry
from controllers.flows import Flow
from controllers.hashing import FiveTuple
from controllers.process import INTERPRETER_VARIABLE, ControllerError
from controllers.program import write_program
from controllers.schemes import create_scheme
from controllers.table import FabricTables
from testbed.isolation import network_namespace_of
from testbed.topology import Interface, Topology, create_topology
from tests.fabric.plain_fabric import (
    PlainFabric,
    fabric,
    ip_batch,
    leaf_spine,
    packet_socket,
    wait_until,
)
from tests.isolated import isolated

pytestmark = [
    pytest.mark.fabric,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]

SCHEMES = ("ecmp", "static")


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


@pytest.mark.parametrize(
    ("scheme", "parameters"),
    [
        ("ecmp", {}),
        ("ecmp", {"fields": "symmetric_l3l4"}),
        ("ecmp", {"algorithm": "hash_threshold"}),
        ("static", {}),
        ("path-pinning", {}),
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

    paths = isolated(body)
    for flow, (traced, predicted) in zip(flows, paths, strict=True):
        assert traced == predicted, flow
    assert len({tuple(traced) for traced, _ in paths}) > 30


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [("three-tier", {"spines": 3, "cores": 3}), ("hpn", {"dual_plane": False})],
)
def test_labels_choose_among_ports_in_every_tier(
    tmp_path: Path, kind: str, parameters: dict[str, Any]
) -> None:
    """All schemes with labels have these entries; without a tag a packet goes by slot 0."""
    topology = create_topology(kind, **parameters)
    generator = random.Random(5)
    flows = random_flows(topology, 80, seed=5)
    labels = [None, *(generator.randrange(1 << 12) for _ in flows[1:])]

    def body() -> list[list[list[str]]]:
        with fabric(topology, "e-ecmp", tmp_path) as built:
            return [
                [built.trace_path(flow, label), built.tables.path_of(flow, label)]
                for flow, label in zip(flows, labels, strict=True)
            ]

    paths = isolated(body)
    for flow, label, (traced, predicted) in zip(flows, labels, paths, strict=True):
        assert traced == predicted, (flow, label)
    assert len({tuple(traced) for traced, _ in paths}) > 40


def test_placed_flows_override_ecmp(tmp_path: Path) -> None:
    """TE's entries by ingress port, for half of the flows that are sent."""
    topology = leaf_spine(leaves=3, spines=3, servers_per_leaf=3)
    flows = random_flows(topology, 60, seed=6)
    placed = [Flow(flow, bytes=1 + number) for number, flow in enumerate(flows[::2])]

    def body() -> list[list[list[str]]]:
        with fabric(topology, "te", tmp_path, flows=placed) as built:
            return [[built.trace_path(flow), built.tables.path_of(flow)] for flow in flows]

    paths = isolated(body)
    hashed = FabricTables(topology, create_scheme("ecmp", seed=7).entries(topology))
    for flow, (traced, predicted) in zip(flows, paths, strict=True):
        assert traced == predicted, flow
    assert any(
        traced != hashed.path_of(flow) for flow, (traced, _) in zip(flows, paths, strict=True)
    )


COLLISIONS = {(32, 4): 1.371, (8, 4): 1.776}
"""(flows, links) -> max/mean load of balls in bins (Monte Carlo over 2000 trials)."""

COLLISION_SEEDS = 60


def test_port_counters_show_the_collisions_of_balls_in_bins(tmp_path: Path) -> None:
    """Every seed is a new program for the switches, and new source ports for the flows."""
    topology = leaf_spine(leaves=2, spines=4, servers_per_leaf=8)
    sent = [topology.nic(rank).name for rank in range(8)]
    uplinks = [f"leaf1-spine{number}" for number in range(1, 5)]

    def loads(built: PlainFabric) -> Counter[str]:
        counted = built.transmitted(["leaf1"])
        return Counter({name: counted[name] for name in uplinks})

    def body() -> dict[str, list[float]]:
        ratios: dict[str, list[float]] = {}
        with fabric(topology, "ecmp", tmp_path) as built, contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(packet_socket(name)) for name in sent]
            for seed in range(COLLISION_SEEDS):
                generator = random.Random(seed)
                program = tmp_path / f"program{seed}.json"
                write_program(program, topology, create_scheme("ecmp", seed=seed).entries(topology))
                version = built.controller.update(program)
                wait_until(lambda: built.controller.in_force(version))  # noqa: B023
                for count, links in COLLISIONS:
                    before = loads(built)
                    for number in range(count):
                        rank = number % 8
                        addresses = topology.nic(rank).address, topology.nic(8 + rank).address
                        port = generator.randrange(49152, 65536)
                        sockets[rank].send(built.frame(FiveTuple(*addresses, port)))
                    total = before.total() + count
                    wait_until(lambda: loads(built).total() == total)  # noqa: B023
                    carried = loads(built) - before
                    ratio = max(carried.values()) * links / count
                    ratios.setdefault(f"{count} on {links}", []).append(ratio)
        return ratios

    measured = isolated(body)
    for (count, links), expected in COLLISIONS.items():
        ratios = measured[f"{count} on {links}"]
        assert len(ratios) == COLLISION_SEEDS
        assert sum(ratios) / len(ratios) == pytest.approx(expected, rel=0.05)


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

    counted, expected = isolated(body)
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

    arrived, expired = isolated(body)
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

    assert isolated(body) == {"idle": 0, "forwarded": 1}


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

    result = isolated(body)
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

    result = isolated(body)
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

    result = isolated(body)
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
    errors = isolated(body)
    assert "127.0.0.1:6653 is busy" in errors["busy"]
    assert "0xff" in errors["unknown"]
