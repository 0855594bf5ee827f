"""The switch model against the kernel's own account: depths, drops, marks, the planned tree."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testbed.asic.mmu import BufferPolicy
from testbed.fabric import Fabric
from testbed.isolation import network_namespace_of
from testbed.offload import enabled_offloads
from testbed.topology import create_topology
from tests.isolated import isolated
from traffic.packet_socket import PacketSocket
from traffic.packets import BTH

pytestmark = [
    pytest.mark.fabric,
    pytest.mark.alone,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: builds a fabric"),
]

LINK_RATE, DILATION = 400e9, 400_000
"""1 Mb/s of wall time: a frame of 4 KB takes 33 ms, so a queue stands still while it is read."""

PAYLOAD = 4096
FRAMES = 20
"""From each of two senders into one port."""


def in_fabric(function: Callable[[Fabric], Any], tmp_path: Path, **policy: int) -> Any:
    """Build two senders, one receiver and a leaf; return what the function found."""
    topology = create_topology("leaf-spine", leaves=1, spines=0, servers_per_leaf=3)

    def inside() -> Any:
        fabric = Fabric(
            topology,
            dilation=DILATION,
            policy=BufferPolicy(**policy),
            directory=Path("/run/rocelab"),
            logs=tmp_path,
        )
        try:
            fabric.build()
            fabric.ovs.ofctl("add-flow", "leaf1", "actions=output:3")
            return function(fabric)
        finally:
            fabric.stop()

    return isolated(inside)


def frame(fabric: Fabric, sender: int, psn: int) -> bytes:
    from scapy.layers.inet import IP, UDP
    from scapy.layers.l2 import Ether

    source, destination = fabric.topology.nic(sender), fabric.topology.nic(2)
    return bytes(
        Ether(src=source.mac, dst=destination.mac)
        / IP(src=source.address, dst=destination.address, tos=2)
        / UDP(sport=50000 + sender, dport=4791)
        / BTH(opcode=0x04, dqpn=0x50 + sender, psn=psn)
        / bytes(PAYLOAD)
    )


def burst(fabric: Fabric) -> int:
    """Offer FRAMES frames from each sender at once; returns the size of a frame."""
    size = 0
    for sender in (0, 1):
        with network_namespace_of(fabric.pid_of(f"server{sender + 1}")):
            sock = PacketSocket(f"rank{sender}-leaf1")
        for psn in range(FRAMES):
            data = frame(fabric, sender, psn)
            size = len(data)
            sock.send(data)
        sock.close()
        if sender == 0:
            fabric.ovs.enlarge_sockets()
    return size


def tc_backlog(interface: str) -> list[int]:
    """Bytes and packets in the leaf qdisc of a port, as the kernel counts them."""
    command = ["tc", "-s", "-j", "qdisc", "show", "dev", interface]
    shown = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    pfifo = next(qdisc for qdisc in shown if qdisc["kind"] == "pfifo")
    return [pfifo["backlog"], pfifo["qlen"]]


def test_depth_equals_what_the_kernel_queues(tmp_path):
    def look(fabric: Fabric) -> Any:
        size = burst(fabric)
        samples = []
        for _ in range(12):
            time.sleep(0.05)
            before = int(fabric.mmu.depths()[list(fabric.topology.interfaces).index("leaf1-rank2")])
            backlog = tc_backlog("leaf1-rank2")
            after = int(fabric.mmu.depths()[list(fabric.topology.interfaces).index("leaf1-rank2")])
            samples.append([before, backlog, after])
        return {"size": size, "samples": samples}

    found = in_fabric(look, tmp_path)
    # a frame may come or go between two readings; where none did, all three must agree
    still = [(b, backlog) for b, backlog, after in found["samples"] if b == after]
    assert len(still) >= 6
    assert max(depth for depth, _ in still) > 5 * found["size"]
    for depth, (backlog_bytes, backlog_packets) in still:
        assert depth == backlog_bytes == backlog_packets * found["size"]


def test_every_drop_is_counted_and_recorded(tmp_path):
    limit = 5 * (PAYLOAD + 58) + 100

    def look(fabric: Fabric) -> Any:
        size = burst(fabric)
        while int(fabric.mmu.row("leaf1-rank2")["dequeued"]["packets"].sum()) < FRAMES // 2 or (
            fabric.mmu.depths().any()
        ):
            time.sleep(0.05)
        port = fabric.mmu.row("leaf1-rank2")
        drops = fabric.mmu.take_drops()
        return {
            "size": size,
            "passed": int(port["enqueued"]["packets"][0]),
            "left": int(port["dequeued"]["packets"][0]),
            "dropped": int(port["dropped"]["packets"][0, 0]),
            "max_depth": int(port["max_depth"]),
            "lost_records": int(port["lost_records"]),
            "records": [
                [d.interface, d.reason, d.source, d.source_port, d.destination_qp, d.psn, d.bytes]
                for d in drops
            ],
        }

    found = in_fabric(look, tmp_path, limit=limit)
    assert found["passed"] == found["left"]
    assert found["dropped"] > 0
    assert found["passed"] + found["dropped"] == 2 * FRAMES
    assert limit - found["size"] < found["max_depth"] <= limit
    assert len(found["records"]) == found["dropped"]
    assert found["lost_records"] == 0
    for interface, reason, source, source_port, qp, psn, size in found["records"]:
        assert (interface, reason, size) == ("leaf1-rank2", "port limit", found["size"])
        sender = qp - 0x50
        assert source == f"10.1.0.{sender + 1}" and source_port == 50000 + sender
        assert 0 <= psn < FRAMES


def test_marking_begins_at_the_threshold(tmp_path):
    threshold = 3 * (PAYLOAD + 58)

    def look(fabric: Fabric) -> Any:
        with network_namespace_of(fabric.pid_of("server3")):
            receiver = PacketSocket("rank2-leaf1")
        burst(fabric)
        frames: list[bytes] = []
        while len(frames) < 2 * FRAMES:
            time.sleep(0.05)
            frames += receiver.receive()
        receiver.close()
        return {
            "marked": int(fabric.mmu.row("leaf1-rank2")["marked"]),
            "max_depth": int(fabric.mmu.row("leaf1-rank2")["max_depth"]),
            "ecn": [f[15] & 3 for f in frames],
            "checksums": [sum(int.from_bytes(f[i : i + 2], "big") for i in range(14, 34, 2))
                          % 0xFFFF for f in frames],
        }  # fmt: skip

    found = in_fabric(look, tmp_path, ecn_threshold=threshold)
    assert found["max_depth"] > threshold
    assert 0 < found["marked"] < 2 * FRAMES
    assert found["ecn"].count(3) == found["marked"]
    assert found["ecn"][:3] == [2, 2, 2]
    assert set(found["checksums"]) == {0}


def test_a_changed_queueing_tree_is_noticed(tmp_path):
    def look(fabric: Fabric) -> Any:
        def after(*command: str) -> list[str]:
            subprocess.run(command, check=True)
            return fabric.problems()

        changes = {
            "as built": [],
            "rate": ["tc", "class", "change", "dev", "leaf1-rank0", "parent", "1:", "classid",
                     "1:10", "htb", "rate", "2mbit", "burst", "4238", "quantum", "4238",
                     "overhead", "24"],
            "program": ["tc", "filter", "del", "dev", "leaf1-rank1", "egress"],
            "qdisc": ["tc", "qdisc", "del", "dev", "leaf1-rank2", "root"],
        }  # fmt: skip
        found = {
            name: after(*command) if command else fabric.problems()
            for name, command in changes.items()
        }
        subprocess.run(["ethtool", "-K", "leaf1-rank0", "gro", "on"], check=True)
        found["offload"] = fabric.problems()
        return found

    found = in_fabric(look, tmp_path)
    assert found["as built"] == []
    assert any("leaf1-rank0: rate 250000 B/s; planned 125000 B/s" in p for p in found["rate"])
    assert any(p.startswith("leaf1-rank1: clsact runs") for p in found["program"])
    assert any(p.startswith("leaf1-rank2: qdiscs are") for p in found["qdisc"])
    assert any("offloads still on: generic-receive-offload" in p for p in found["offload"])


def test_a_packet_socket_with_a_small_buffer_is_noticed(tmp_path):
    def look(fabric: Fabric) -> list[list[str]]:
        before = fabric.ovs.audit_sockets().problems()
        fabric.ovs.enlarge_sockets()
        return [before, fabric.ovs.audit_sockets().problems()]

    (problem,), after = in_fabric(look, tmp_path)
    assert "Open vSwitch has a packet socket of" in problem
    assert after == []


def test_no_htb_complaint_reaches_the_kernel_log_and_stop_is_safe_twice(tmp_path):
    def look(fabric: Fabric) -> Any:
        names = [i.name for i in fabric.topology.interfaces.values() if not i.address]
        offloads = {name: enabled_offloads(name) for name in names}
        fabric.stop()
        left = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True)
        fabric.stop()
        return {"offloads": offloads, "left": left.stdout}

    def quantum_lines() -> int:
        return subprocess.run(["dmesg"], capture_output=True, text=True, check=False).stdout.count(
            "HTB: quantum"
        )

    before = quantum_lines()
    found = in_fabric(look, tmp_path)
    assert quantum_lines() == before
    assert all(not on for on in found["offloads"].values())
    assert "leaf1" not in found["left"]
