"""The hash engine in a real fabric: bytes, marks and drops, link loads, adaptation."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from testbed.asic.mmu import BufferPolicy
from testbed.syscalls import enter_network_namespace
from tests.fabric.labelled_fabric import Leaves, in_fabric
from tests.fabric.plain_fabric import leaf_spine, wait_until

pytestmark = [
    pytest.mark.fabric,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: builds a fabric"),
]

SLOWEST = 400_000
"""Dilation: 400 Gb/s become 1 Mb/s, so that a frame of 4 KB takes 33 ms."""

HEADERS = 14 + 20 + 8 + 12 + 4
"""Ethernet, IPv4, UDP, BTH, ICRC."""
TAG = 4


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
        wait_until(lambda: (built.packets() - before)["leaf2-rank1"] == flows, interval=0.001)
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
        wait_until(lambda: int(sender["dequeued"]["packets"][0]) == frames, timeout=20)
        row = built.row(slow.name)
        return [int(row["enqueued"]["packets"][0]), int(row["max_depth"])]

    share, depth = in_fabric(look, tmp_path, topology, "adaptive", dilation=SLOWEST)
    # a frame takes ten times as long there: it never waits behind another one
    assert depth <= 2 * size
    assert 1 <= share <= frames / 5
    share, depth = in_fabric(look, tmp_path, topology, "e-ecmp", dilation=SLOWEST)
    assert share > frames / 4
    assert depth > (share - frames / 10 - 3) * size
