"""The hash engine in a real fabric: labels, bytes, marks and drops, link loads, adaptation."""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from controllers.flows import Flow
from controllers.hashing import FiveTuple
from controllers.process import ControllerProcess
from controllers.program import write_program
from controllers.schemes import create_scheme
from controllers.table import FabricTables
from testbed.asic.mmu import BufferPolicy
from testbed.fabric import Fabric
from testbed.isolation import network_namespace_of, run_isolated
from testbed.results import RunResult
from testbed.syscalls import enter_network_namespace
from testbed.topology import Topology, topology_kinds
from tests.fabric.scenario_runner import ScenarioRunner, only_variant
from traffic.packet_socket import PacketSocket
from traffic.packets import BTH

pytestmark = [
    pytest.mark.fabric,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: builds a fabric"),
]

SLOWEST = 400_000
"""Dilation: 400 Gb/s become 1 Mb/s, so that a frame of 4 KB takes 33 ms."""

QUICK = 1000

HEADERS = 14 + 20 + 8 + 12 + 4
"""Ethernet, IPv4, UDP, BTH, ICRC."""
TAG = 4
SMALL = 64
"""Bytes of payload of a frame whose size does not matter."""


def leaf_spine(**size: int) -> Topology:
    kind = topology_kinds()["leaf-spine"]
    return kind().build(kind.parameters(**size))


class Leaves:
    """A built and programmed fabric, and sockets at its NICs."""

    def __init__(self, fabric: Fabric, scheme: Any, stack: ExitStack) -> None:
        self.fabric = fabric
        self.scheme = scheme
        self.topology = fabric.topology
        self.tables = FabricTables(self.topology, scheme.entries(self.topology))
        self.sockets = []
        for rank in self.topology.ranks:
            with network_namespace_of(fabric.pid_of(rank.server)):
                self.sockets.append(PacketSocket(rank.interfaces[0]))
            stack.callback(self.sockets[-1].close)

    def frame(
        self, flow: Flow, *, payload: int = SMALL, psn: int = 0, label: int | None = None
    ) -> bytes:
        tuples = flow.five_tuple
        frame = bytearray(self._template(tuples.source_ip, tuples.destination_ip, payload))
        frame[34:36] = tuples.source_port.to_bytes(2, "big")
        frame[47:50] = flow.destination_qp.to_bytes(3, "big")
        frame[51:54] = psn.to_bytes(3, "big")
        if label is not None:
            frame[12:12] = b"\x81\x00" + label.to_bytes(2, "big")
        return bytes(frame)

    @functools.lru_cache(maxsize=256)  # noqa: B019 (lives as long as the test's process)
    def _template(self, source_ip: str, destination_ip: str, payload: int) -> bytes:
        source = self.topology.nic(self.topology.rank_of_address(source_ip))
        ethernet = Ether(src=source.mac, dst=self.topology.nodes[source.peer_node].router_mac)
        ip = IP(src=source_ip, dst=destination_ip, tos=2)
        # scapy is too slow for every frame; without a UDP checksum its fields can be replaced
        return bytes(ethernet / ip / UDP(dport=4791, chksum=0) / BTH(opcode=4) / bytes(payload))

    def flow(self, source: int, destination: int, *, port: int = 50000, qp: int = 0x50) -> Flow:
        first, last = self.topology.nic(source), self.topology.nic(destination)
        return Flow(FiveTuple(first.address, last.address, port), qp, first.name)

    def path(self, flow: Flow) -> list[str]:
        leaf = self.topology.interfaces[flow.source_interface].peer_node
        return self.tables.path_of(flow, self.scheme.label(self.topology, leaf, flow))

    def row(self, interface: str) -> Any:
        return self.fabric.mmu.row(interface)

    def packets(self) -> Counter[str]:
        """Frames that every port has sent."""
        counts = self.fabric.mmu.ports["dequeued"]["packets"].sum(axis=1)
        return Counter(dict(zip(self.topology.interfaces, counts.tolist(), strict=True)))

    def wait(self, condition: Callable[[], bool], timeout: float = 20.0) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, "condition not met in time"
            time.sleep(0.001)

    def settle(self) -> None:
        """Wait until no queue has held anything for a while, or until nothing moves any more."""
        quiet, last = 0, b""
        while quiet < 20:
            depths = self.fabric.mmu.depths()
            quiet = quiet + 1 if not depths.any() or depths.tobytes() == last else 0
            last = depths.tobytes()
            time.sleep(0.005 if not depths.any() else 0.1)


@contextmanager
def programmed(
    topology: Topology, scheme: Any, directory: Path, dilation: float, policy: BufferPolicy
) -> Iterator[Leaves]:
    program = directory / "program.json"
    write_program(program, topology, scheme.entries(topology))
    controller = ControllerProcess(program, log=directory / "controller.log")
    fabric = Fabric(
        topology,
        dilation=dilation,
        policy=policy,
        directory=Path("/run/rocelab"),
        logs=directory,
        labels=scheme.label_settings(topology),
    )
    with ExitStack() as stack:
        stack.callback(fabric.stop)
        stack.callback(controller.stop)
        controller.start()
        fabric.build(before_bridges=lambda: controller.wait_listening(20))
        controller.wait_ready(20)
        leaves = Leaves(fabric, scheme, stack)
        # the switch daemon opens its sending socket with its first frame
        leaves.sockets[0].send(leaves.frame(leaves.flow(0, len(topology.ranks) - 1)))
        leaves.settle()
        leaves.sockets[-1].receive()
        fabric.ovs.enlarge_sockets()
        fabric.mmu.reset()
        yield leaves


def in_fabric(
    function: Callable[[Leaves], Any],
    directory: Path,
    topology: Topology,
    scheme: str,
    *,
    dilation: float = QUICK,
    policy: BufferPolicy | None = None,
    **parameters: Any,
) -> Any:
    """What a function finds in a fabric with such routing; must be JSON."""
    answer = directory / "answer.json"

    def inside() -> int:
        created = create_scheme(scheme, parameters, seed=7)
        with programmed(topology, created, directory, dilation, policy or BufferPolicy()) as built:
            answer.write_text(json.dumps(function(built)))
        return 0

    assert run_isolated(inside) == 0, "the fabric part failed; its traceback is on stderr"
    return json.loads(answer.read_text())


@pytest.mark.parametrize("scheme", ["ecmp", "e-ecmp"])
@pytest.mark.parametrize(("flows", "links", "expected"), [(64, 16, 1.974), (32, 4, 1.371)])
def test_link_loads_are_those_of_balls_in_bins(
    tmp_path: Path, scheme: str, flows: int, links: int, expected: float
) -> None:
    """Mean of max/mean over 150 sets of flows against E[max/mean] of a uniform hash, and every
    port counter against the prediction."""
    topology = leaf_spine(leaves=2, spines=links, servers_per_leaf=1)
    uplinks = [f"leaf1-spine{number + 1}" for number in range(links)]
    generator = random.Random(5)

    def send(built: Leaves) -> tuple[Counter[str], Counter[str]]:
        """What every port carried of one set of flows, and what it should have."""
        # what the scheme hashes differs from flow to flow, the rest is alike
        group = [
            built.flow(0, 1, port=n) if scheme == "ecmp" else built.flow(0, 1, qp=n)
            for n in generator.sample(range(49152, 65536), flows)
        ]
        before = built.packets()
        for flow in group:
            built.sockets[0].send(built.frame(flow))
        built.wait(lambda: (built.packets() - before)["leaf2-rank1"] == flows)
        expected: Counter[str] = Counter()
        for flow in group:
            expected.update(built.path(flow))
        return built.packets() - before, expected

    def look(built: Leaves) -> dict[str, Any]:
        sets = [send(built) for _ in range(150)]
        return {
            "ratios": [max(sent[u] for u in uplinks) * links / flows for sent, _ in sets],
            "wrong": [[sent, expected] for sent, expected in sets if sent != expected],
            "problems": built.fabric.problems(),
        }

    found = in_fabric(look, tmp_path, topology, scheme)
    assert found["problems"] == []
    assert found["wrong"] == []
    # standard error: 1.2 % for 64 flows on 16 links, 1.4 % for 32 on 4
    assert abs(statistics.mean(found["ratios"]) / expected - 1) < 0.05


@pytest.mark.parametrize("scheme", ["e-ecmp", "flowlet", "spray", "adaptive"])
def test_every_queue_gives_back_every_byte(tmp_path: Path, scheme: str) -> None:
    """What was enqueued is dequeued, to the byte, at every port: with and without labels, RoCE and
    not, pushed here and forced by a sender."""
    topology = leaf_spine(leaves=2, spines=3, servers_per_leaf=2)

    def look(built: Leaves) -> dict[str, Any]:
        for number in range(60):
            for source, destination in ((0, 2), (1, 3), (2, 0), (0, 1)):
                flow = built.flow(source, destination, qp=number)
                label = number if number % 5 == 0 else None
                built.sockets[source].send(built.frame(flow, payload=40 * number, label=label))
        ping = subprocess.run(
            ["ping", "-c", "3", "-i", "0.05", "-W", "2", topology.nic(3).address],
            preexec_fn=lambda: enter_namespace_of(built.fabric.pid_of("server1")),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        built.settle()
        ports = {
            name: {
                key: {
                    "packets": built.row(name)[key]["packets"].tolist(),
                    "bytes": built.row(name)[key]["bytes"].tolist(),
                }
                for key in ("enqueued", "dequeued")
            }
            for name in topology.interfaces
        }
        return {"ports": ports, "ping": ping.stdout, "problems": built.fabric.problems()}

    found = in_fabric(look, tmp_path, topology, scheme)
    ports = found["ports"]
    assert found["problems"] == []
    assert "3 received" in found["ping"]
    for name, port in ports.items():
        assert port["enqueued"] == port["dequeued"], name

    def total(names: Iterable[str], what: str, kind: int) -> int:
        return sum(ports[name]["enqueued"][what][kind] for name in names)

    data, other = 0, 2
    remote = sum(HEADERS + 40 * number for number in range(60))
    uplinks = [f"leaf1-spine{number + 1}" for number in range(3)]
    # 120 of the NICs' 180 data frames leave by an uplink, every one with a tag
    assert total(uplinks, "packets", data) == 120
    assert total(uplinks, "bytes", data) == 2 * remote + 120 * TAG
    # at the NICs no frame has one, save the twelfth part that was sent with it
    assert total(["leaf2-rank2", "leaf2-rank3"], "bytes", data) == 2 * remote
    assert ports["rank1-leaf1"]["enqueued"]["bytes"][data] == remote + 12 * TAG
    assert ports["rank0-leaf1"]["enqueued"]["packets"][other] == 3


def enter_namespace_of(pid: int) -> None:
    descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    enter_network_namespace(descriptor)


def test_drops_and_marks_behind_a_label(tmp_path: Path) -> None:
    """At an uplink: the tag counts in depth and record, the mark is in the IP header behind it."""
    topology = leaf_spine(leaves=2, spines=1, servers_per_leaf=2)
    size = HEADERS + 4096 + TAG
    policy = BufferPolicy(limit=6 * size, ecn_threshold=2 * size)

    def look(built: Leaves) -> dict[str, Any]:
        for psn in range(12):
            for source in (0, 1):
                flow = built.flow(source, 2 + source, port=50000 + source, qp=0x50 + source)
                built.sockets[source].send(built.frame(flow, payload=4096, psn=psn))
        built.settle()
        frames = [frame for sock in built.sockets[2:] for frame in sock.receive(1000)]
        row = built.row("leaf1-spine1")
        return {
            "frames": [frame[:54].hex() for frame in frames],
            "marked": int(row["marked"]),
            "dropped": [int(row["dropped"][what].sum()) for what in ("packets", "bytes")],
            "max_depth": int(row["max_depth"]),
            "records": [
                [d.interface, d.source, d.destination, d.source_port, d.opcode, d.destination_qp,
                 d.psn, d.bytes]
                for d in built.fabric.mmu.take_drops()
            ],
        }  # fmt: skip

    found = in_fabric(look, tmp_path, topology, "e-ecmp", dilation=SLOWEST, policy=policy)
    frames = [bytes.fromhex(text) for text in found["frames"]]
    lost = 24 - len(frames)
    assert lost > 0
    assert found["dropped"] == [lost, lost * size]
    assert found["max_depth"] == 6 * size
    assert len(found["records"]) == lost
    for interface, source, destination, port, opcode, qp, psn, size_of in found["records"]:
        sender = qp - 0x50
        assert (interface, opcode, size_of) == ("leaf1-spine1", 4, size)
        assert (source, destination) == (f"10.1.0.{sender + 1}", f"10.2.0.{sender + 1}")
        assert port == 50000 + sender and 0 <= psn < 12
    assert 0 < found["marked"] < len(frames)
    assert [frame[15] & 3 for frame in frames].count(3) == found["marked"]
    for frame in frames:
        words = sum(int.from_bytes(frame[i : i + 2], "big") for i in range(14, 34, 2))
        assert words % 0xFFFF == 0


def test_a_missing_hash_engine_is_noticed(tmp_path: Path) -> None:
    topology = leaf_spine(leaves=2, spines=1, servers_per_leaf=1)

    def look(built: Leaves) -> list[str]:
        command = ["ip", "link", "set", "leaf2-rank1", "xdpgeneric", "off"]
        subprocess.run(command, check=True)
        return built.fabric.problems()

    (problem,) = in_fabric(look, tmp_path, topology, "spray")
    assert problem.startswith("leaf2-rank1: XDP runs program 0; planned ")


def test_adaptive_leaves_a_slow_uplink_alone(tmp_path: Path) -> None:
    """One of two uplinks at a tenth of its rate; the NIC offers what both together can carry."""
    topology = leaf_spine(leaves=2, spines=2, servers_per_leaf=1)
    slow = replace(topology.interfaces["leaf1-spine1"], rate=topology.nic(0).rate / 10)
    topology = replace(topology, interfaces={**topology.interfaces, slow.name: slow})
    frames, size = 66, HEADERS + 4096 + TAG

    def look(built: Leaves) -> list[int]:
        for number in range(frames):
            flow = built.flow(0, 1, qp=number)
            built.sockets[0].send(built.frame(flow, payload=4096))
        sender = built.row("rank0-leaf1")
        built.wait(lambda: int(sender["dequeued"]["packets"][0]) == frames)
        row = built.row(slow.name)
        return [int(row["enqueued"]["packets"][0]), int(row["max_depth"])]

    share, depth = in_fabric(look, tmp_path, topology, "adaptive", dilation=SLOWEST)
    # a frame takes ten times as long there: it never waits behind another one
    assert depth <= 2 * size
    assert 1 <= share <= frames / 5
    share, depth = in_fabric(look, tmp_path, topology, "e-ecmp", dilation=SLOWEST)
    assert share > frames / 4
    assert depth > (share - frames / 10 - 3) * size


def fields(path: Path, *names: str) -> list[tuple[str, ...]]:
    """Fields of every frame of a capture, as Wireshark dissects it."""
    command = ["tshark", "-r", str(path), "-T", "fields"]
    for name in names:
        command += ["-e", name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [tuple(line.split("\t")) for line in done.stdout.splitlines()]


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_labels_are_seen_inside_the_fabric_only(run: ScenarioRunner) -> None:
    """On a link between switches every frame has the label that planning predicts, with sound RoCE
    behind it; on a NIC's link, at either end, none has one."""
    size = {"leaves": 2, "spines": 1, "servers_per_leaf": 2}
    ports = ("leaf1-spine1", "rank0-leaf1", "leaf1-rank0")
    topology = leaf_spine(**size)
    scheme = create_scheme("e-ecmp", {}, seed=3)

    def check(result: RunResult) -> None:
        variant = only_variant(result)
        assert variant.ledger.open == 0
        captures = run.latest / "pcap"
        names = (
            "vlan.id", "ip.src", "ip.dst", "udp.srcport", "infiniband.bth.destqp",
            "infiniband.bth.opcode", "_ws.malformed",
        )  # fmt: skip
        found = {port: fields(captures / f"{port}.pcap", *names) for port in ports}
        carried = {port.interface: port.dequeued_packets for port in variant.ports}
        inside = found["leaf1-spine1"]
        assert len(inside) == carried["leaf1-spine1"] + carried["spine1-leaf1"] > 100
        labels = set()
        for label, source, destination, port, qp, opcode, malformed in inside:
            assert opcode and not malformed
            flow = Flow(FiveTuple(source, destination, int(port)), int(qp, 16))
            leaf = topology.leaf_of(topology.rank_of_address(source))
            assert int(label) == scheme.label(topology, leaf, flow)
            labels.add(label)
        assert len(labels) >= 8  # two NICs, two others, both ways, requests and answers
        for port in ("rank0-leaf1", "leaf1-rank0"):
            assert len(found[port]) > 100
            assert all(not frame[0] and frame[5] and not frame[6] for frame in found[port])
        assert sorted(found["rank0-leaf1"]) == sorted(found["leaf1-rank0"])

    run(
        {
            "name": "labels",
            "seed": 3,
            "topology": {"kind": "leaf-spine", **size},
            "routing": {"scheme": "e-ecmp"},
            "capture": list(ports),
            "workload": {"kind": "all-to-all", "message_size": "64 KB"},
        },
        dilation=20_000,
        check=check,
    )


def test_spray_deals_evenly_and_needs_a_recovery_that_waits(run: ScenarioRunner) -> None:
    """Uplinks differ by one packet at most. Of what arrives early, go-back-N takes every packet for
    a loss; selective repeat that waits for as many packets as are in flight sends nothing again.

    One uplink is slow, so that packets do overtake each other; spraying does not look at that."""
    packets = 64
    scenario = {
        "name": "spray",
        "topology": {"kind": "leaf-spine", "leaves": 2, "spines": 4, "servers_per_leaf": 4},
        "switch": {"buffer": {"limit": "infinite"}},
        "faults": {"slow": [{"link": "leaf1-spine1", "rate": "100 Gbps"}]},
        "nic": {"reordering_threshold": 2 * packets, "reordering_timeout": "10 ms"},
        "workload": {
            "kind": "flows",
            "flows": [
                {"source": rank, "destination": 4 + rank, "size": packets * 4096}
                for rank in range(4)
            ],
        },
        "variants": [
            {"name": f"{scheme}-{recovery}",
             "set": {"routing.scheme": scheme, "nic.recovery": recovery}}
            for scheme in ("e-ecmp", "spray")
            for recovery in ("go-back-n", "selective-repeat")
        ],
    }  # fmt: skip

    def check(result: RunResult) -> None:
        by_name = {variant.name: variant for variant in result.variants}
        again = {}
        for name, variant in by_name.items():
            assert variant.ledger.open == 0
            again[name] = sum(flow.retransmitted_packets for flow in variant.flows)
            early = sum(flow.out_of_order_packets for flow in variant.flows)
            assert (early > 0) == name.startswith("spray"), name
        for recovery in ("go-back-n", "selective-repeat"):
            ports = by_name[f"spray-{recovery}"].ports
            for leaf in ("leaf1", "leaf2"):
                # one sends requests only, the other answers only
                sent = [
                    p.dequeued_packets for p in ports if p.interface.startswith(f"{leaf}-spine")
                ]
                assert sum(sent) > 0
                assert max(sent) - min(sent) <= 1
        assert again["e-ecmp-go-back-n"] == again["e-ecmp-selective-repeat"] == 0
        assert again["spray-selective-repeat"] == 0
        assert again["spray-go-back-n"] > packets

    run(scenario, dilation=30_000, check=check)


def test_a_flowlet_gap_shorter_than_the_spread_of_delays_reorders(run: ScenarioRunner) -> None:
    """Messages of 5 us at line rate every 40 us; one of two uplinks takes 52 us for one.

    A gap of 256 us, as published, never sees a pause; a tenth of it sends a message over the fast
    uplink while the one before it still waits at the slow one.
    """
    size = 64 * 4096
    scenario = {
        "name": "flowlets",
        "topology": {"kind": "leaf-spine", "leaves": 2, "spines": 2, "servers_per_leaf": 1},
        "switch": {"buffer": {"limit": "infinite"}},
        "nic": {"recovery": "selective-repeat", "reordering_threshold": 128},
        "faults": {"slow": [{"link": "leaf1-spine1", "rate": "40 Gbps"}]},
        "workload": {
            "kind": "flows",
            "flows": [
                {"source": 0, "destination": 1, "size": size, "messages": 6, "period": "40 us"}
            ],
        },
        "routing": {"scheme": "flowlet"},
        "variants": [
            {"name": "published", "set": {"routing.gap": "256 us"}},
            {"name": "tenth", "set": {"routing.gap": "25.6 us"}},
        ],
    }

    def check(result: RunResult) -> None:
        early, used = {}, {}
        for variant in result.variants:
            assert variant.ledger.open == 0
            (flow,) = variant.flows
            assert flow.received_packets == 6 * 64
            early[variant.name] = flow.out_of_order_packets
            used[variant.name] = sorted(
                port.dequeued_packets // 64
                for port in variant.ports
                if port.interface in ("leaf1-spine1", "leaf1-spine2")
            )
        assert used == {"published": [0, 6], "tenth": [3, 3]}
        assert early["published"] == 0
        assert early["tenth"] > 0

    run(scenario, dilation=20_000, check=check)
