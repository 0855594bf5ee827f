"""The hash engine's program, run by the kernel on single packets; no interface, no fabric."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption_NOP
from scapy.layers.l2 import ARP, Dot1Q, Ether

from controllers.hashing import FiveTuple
from controllers.labels import (
    SLOTS,
    LabelMember,
    LabelMode,
    LabelSettings,
    deal_slots,
    label_of,
)
from testbed.asic.label import LabelEngine
from testbed.asic.mmu import BufferPolicy, Mmu
from testbed.topology import Topology, create_topology
from traffic.packets import AETH, BTH

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: loads BPF programs"),
    pytest.mark.skipif(shutil.which("clang") is None, reason="needs clang"),
]

XDP_DROP, XDP_PASS = 1, 2
LOOPBACK = 1
"""Interface index of the device that the kernel pretends a test packet came from."""

GAP = 1000.0
"""Wall seconds; the emulated clock is what jumps over them."""


class _TestRun(ctypes.Structure):
    """struct bpf_test_run_opts of libbpf's bpf.h."""

    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("data_in", ctypes.c_char_p),
        ("data_out", ctypes.c_void_p),
        ("data_size_in", ctypes.c_uint32),
        ("data_size_out", ctypes.c_uint32),
        ("ctx_in", ctypes.c_void_p),
        ("ctx_out", ctypes.c_void_p),
        ("ctx_size_in", ctypes.c_uint32),
        ("ctx_size_out", ctypes.c_uint32),
        ("retval", ctypes.c_uint32),
        ("repeat", ctypes.c_int),
        ("duration", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("cpu", ctypes.c_uint32),
        ("batch_size", ctypes.c_uint32),
    )


class Leaf:
    """leaf1 of a small fabric, as a function from a frame to a frame."""

    def __init__(self, topology: Topology, directory: Path) -> None:
        self.topology = topology
        self.mmu = Mmu(topology, BufferPolicy(), directory)
        port = list(topology.interfaces).index("leaf1-rank0")
        self.engine = LabelEngine(
            topology, self.mmu, directory, first_ifindex=(LOOPBACK - port) % 2**32
        )
        self.members = tuple(
            LabelMember(f"leaf1-spine{n + 1}", tuple(range(n, SLOTS, 4))) for n in range(4)
        )
        self.configure(LabelMode.HASH)
        self._library = ctypes.CDLL("libbpf.so.1", use_errno=True)
        self._output = ctypes.create_string_buffer(4096)

    def configure(self, mode: LabelMode, gap: float = 0.0, **changes: object) -> LabelSettings:
        settings = LabelSettings(
            mode=mode, seed=11, upper_seed=12, use_destination_qp=True,
            flowlet_gap=gap, load_aware=False, members=self.members,
        )  # fmt: skip
        settings = replace(settings, **changes)  # type: ignore[arg-type]
        self.engine.configure({"leaf1": settings}, 1.0)
        return settings

    def load(self, *depths: int) -> None:
        """Set the depth of each uplink's queue, in bytes."""
        for number, depth in enumerate(depths, 1):
            port = self.mmu.row(f"leaf1-spine{number}")
            port["enqueued_bytes"] = port["dequeued_bytes"] + depth

    def __call__(self, frame: bytes) -> bytes:
        run = _TestRun(
            sz=ctypes.sizeof(_TestRun),
            data_in=frame,
            data_size_in=len(frame),
            data_out=ctypes.addressof(self._output),
            data_size_out=len(self._output),
            repeat=1,
        )
        result = self._library.bpf_prog_test_run_opts(self.engine.program, ctypes.byref(run))
        assert result == 0, os.strerror(-result)
        assert run.retval == XDP_PASS
        return self._output.raw[: run.data_size_out]

    def label(self, frame: bytes) -> int:
        """The VLAN id that the engine puts on a frame, otherwise unchanged."""
        out = self(frame)
        assert out[:12] + out[16:] == frame
        assert out[12:14] == b"\x81\x00"
        tag = int.from_bytes(out[14:16], "big")
        assert tag < 4096, "labels have no priority"
        return tag

    def uplink(self, frame: bytes) -> str:
        slot = self.label(frame) % SLOTS
        (name,) = (member.interface for member in self.members if slot in member.slots)
        return name


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Leaf]:
    topology = create_topology("leaf-spine", leaves=2, spines=4, servers_per_leaf=2)
    # one uplink of half the rate
    slow = replace(topology.interfaces["leaf1-spine4"], rate=topology.nic(0).rate / 2)
    topology = replace(topology, interfaces={**topology.interfaces, slow.name: slow})
    leaf = Leaf(topology, tmp_path_factory.mktemp("label"))
    yield leaf
    leaf.engine.close()
    leaf.mmu.close()


@pytest.fixture
def leaf(built: Leaf) -> Leaf:
    built.load(0, 0, 0, 0)
    return built


def roce(
    source_port: int = 50000,
    qp: int = 0x50,
    source: str = "10.1.0.1",
    destination: str = "10.2.0.1",
    opcode: int = 0x04,
) -> bytes:
    headers = Ether(src="02:00:00:00:00:01", dst="02:01:00:00:00:01")
    headers /= IP(src=source, dst=destination) / UDP(sport=source_port, dport=4791)
    return bytes(headers / BTH(opcode=opcode, dqpn=qp, psn=7) / bytes(64))


def acknowledgement(**changes: int) -> bytes:
    frame = Ether() / IP(src="10.1.0.1", dst="10.2.0.1") / UDP(sport=50000, dport=4791)
    return bytes(frame / BTH(opcode=0x11, dqpn=0x51, **changes) / AETH())


ADDRESSES = st.integers(0x0A000001, 0x0AFFFFFE).map(
    lambda n: ".".join(str(byte) for byte in n.to_bytes(4, "big"))
)
SEEDS = st.integers(0, 2**32 - 1)


@hypothesis_settings(max_examples=150)
@given(
    source=ADDRESSES,
    destination=ADDRESSES,
    source_port=st.integers(0, 65535),
    qp=st.integers(0, 2**24 - 1),
    seeds=st.tuples(SEEDS, SEEDS),
    use_qp=st.booleans(),
)
def test_the_kernel_computes_the_labels_that_planning_predicts(
    built: Leaf,
    source: str,
    destination: str,
    source_port: int,
    qp: int,
    seeds: tuple[int, int],
    use_qp: bool,
) -> None:
    seed, upper_seed = seeds
    built.configure(LabelMode.HASH, seed=seed, upper_seed=upper_seed, use_destination_qp=use_qp)
    assert built.label(roce(source_port, qp, source, destination)) == label_of(
        FiveTuple(source, destination, source_port), qp,
        seed=seed, upper_seed=upper_seed, use_destination_qp=use_qp,
    )  # fmt: skip


def test_other_frames_pass_unchanged(leaf: Leaf) -> None:
    leaf.configure(LabelMode.HASH)
    ip = IP(src="10.1.0.1", dst="10.2.0.1")
    frames = {
        "labelled": Ether() / Dot1Q(vlan=5) / roce()[14:],
        "ARP": Ether() / ARP() / bytes(40),
        "ping": Ether() / ip / ICMP() / bytes(64),
        "TCP": Ether() / ip / TCP(sport=1, dport=4791) / bytes(64),
        "another UDP port": Ether() / ip / UDP(sport=4791, dport=4790) / bytes(64),
        "options": Ether()
        / IP(src="10.1.0.1", dst="10.2.0.1", options=[IPOption_NOP()] * 4)
        / UDP(dport=4791)
        / bytes(64),
        "shorter than a BTH": Ether() / ip / UDP(dport=4791) / bytes(8),
    }
    for name, frame in frames.items():
        assert leaf(bytes(frame)) == bytes(frame), name


def test_a_port_without_engine_labels_nothing(leaf: Leaf, tmp_path: Path) -> None:
    engine = LabelEngine(leaf.topology, leaf.mmu, tmp_path, first_ifindex=LOOPBACK)
    own, leaf.engine = leaf.engine, engine
    try:
        assert leaf(roce()) == roce()
    finally:
        leaf.engine = own
        engine.close()


def test_a_flowlet_keeps_its_label_until_the_flow_pauses(leaf: Leaf) -> None:
    leaf.configure(LabelMode.FLOWLET, GAP)
    frame = roce(source_port=50100)
    uplinks = []
    for _ in range(200):
        labels = [leaf.label(frame) for _ in range(3)]
        leaf.engine.skip(0.9 * GAP)
        labels.append(leaf.label(frame))
        assert len(set(labels)) == 1
        uplinks.append(leaf.uplink(frame))
        leaf.engine.skip(1.1 * GAP)
    # 200 draws of 4: mean 50, standard deviation 6.1
    assert all(30 < count < 70 for count in Counter(uplinks).values())
    changes = sum(one != other for one, other in pairwise(uplinks))
    assert 130 < changes < 170  # three of four draws: mean 149, standard deviation 6.1


def test_flows_pause_one_by_one(leaf: Leaf) -> None:
    leaf.configure(LabelMode.FLOWLET, GAP)
    busy, idle = roce(qp=0x60), roce(qp=0x61)
    first = leaf.label(busy), leaf.label(idle)
    for _ in range(3):
        leaf.engine.skip(0.5 * GAP)
        assert leaf.label(busy) == first[0]
    assert leaf.label(idle) != first[1]


def test_without_the_queue_pair_two_of_them_are_one_flow(leaf: Leaf) -> None:
    leaf.configure(LabelMode.FLOWLET, GAP, use_destination_qp=False)
    labels = {leaf.label(roce(source_port=50200, qp=qp)) for qp in range(0x70, 0x90)}
    assert len(labels) == 1


def test_a_flowlet_takes_the_shortest_queue_and_stays(leaf: Leaf) -> None:
    leaf.configure(LabelMode.FLOWLET, GAP, load_aware=True)
    frame = roce(source_port=50300)
    leaf.load(9000, 0, 9000, 9000)
    assert leaf.uplink(frame) == "leaf1-spine2"
    leaf.load(0, 9000, 9000, 9000)
    assert leaf.uplink(frame) == "leaf1-spine2"
    leaf.engine.skip(1.1 * GAP)
    assert leaf.uplink(frame) == "leaf1-spine1"


@pytest.mark.parametrize("members", [1, 2, 3, 4])
def test_spray_balances_within_one_packet(leaf: Leaf, members: int) -> None:
    leaf.configure(LabelMode.SPRAY, members=leaf.members[:members])
    data: Counter[str] = Counter()
    answers: Counter[str] = Counter()
    for number in range(100):
        data[leaf.uplink(roce(qp=number % 7))] += 1
        if number % 2:
            answers[leaf.uplink(acknowledgement())] += 1
        # what stays below the leaf takes no turn
        leaf.label(roce(destination="10.1.0.2"))
        for counts in filter(None, (data, answers)):
            loads = [counts[member.interface] for member in leaf.members[:members]]
            assert max(loads) - min(loads) <= 1
    assert data.total() == 100 and answers.total() == 50


def test_two_tiers_need_no_second_slot(leaf: Leaf) -> None:
    for mode in (LabelMode.SPRAY, LabelMode.ADAPTIVE, LabelMode.FLOWLET):
        leaf.configure(mode, GAP)
        assert {leaf.label(roce(qp=0x400 + n)) // SLOTS for n in range(12)} == {0}


def test_a_sprayed_member_uses_slots_that_are_dealt_evenly_when_it_is_out_of_reach(
    leaf: Leaf,
) -> None:
    leaf.configure(LabelMode.SPRAY)
    sent = Counter(leaf.label(roce()) for _ in range(36))
    names = [member.interface for member in leaf.members]
    for lost in names:
        dealt = deal_slots(names, [name for name in names if name != lost])
        loads = Counter[str]()
        for label, packets in sent.items():
            loads[dealt[label % SLOTS]] += packets
        assert set(loads.values()) == {12}


def test_with_a_third_tier_spray_deals_the_second_slots_too(tmp_path: Path) -> None:
    """Spines with three uplinks each: every path gets as many packets as any other."""
    topology = create_topology("three-tier", zones=2, leaves=2, spines=4, cores=3)
    leaf = Leaf(topology, tmp_path)
    try:
        leaf.configure(LabelMode.SPRAY)
        paths = Counter[tuple[str, int]]()
        for _ in range(7 * 4 * 3):
            label = leaf.label(roce(destination="10.3.0.1"))
            paths[leaf.members[label % SLOTS % 4].interface, label // SLOTS] += 1
        assert paths == {(m.interface, upper): 7 for m in leaf.members for upper in range(3)}
        leaf.configure(LabelMode.FLOWLET, GAP)
        seconds = Counter(leaf.label(roce(qp=0x900 + n)) // SLOTS for n in range(300))
        # 300 draws of 3: mean 100, standard deviation 8.2
        assert set(seconds) == {0, 1, 2}
        assert all(70 < count < 130 for count in seconds.values())
    finally:
        leaf.engine.close()
        leaf.mmu.close()


def test_adaptive_takes_the_queue_that_drains_first(leaf: Leaf) -> None:
    leaf.configure(LabelMode.ADAPTIVE)
    leaf.load(5000, 4000, 4500, 2100)  # the last one drains at half the rate: 4200
    assert {leaf.uplink(roce()) for _ in range(8)} == {"leaf1-spine2"}
    leaf.load(5000, 4000, 4500, 1900)
    assert {leaf.uplink(roce()) for _ in range(8)} == {"leaf1-spine4"}


def test_equal_queues_take_turns(leaf: Leaf) -> None:
    leaf.configure(LabelMode.ADAPTIVE)
    assert set(Counter(leaf.uplink(roce()) for _ in range(40)).values()) == {10}
    leaf.load(0, 4200, 0, 0)
    # not twice as much for the neighbour of the one that is passed over
    assert Counter(leaf.uplink(roce()) for _ in range(30)) == {
        "leaf1-spine1": 10, "leaf1-spine3": 10, "leaf1-spine4": 10,
    }  # fmt: skip


def test_members_change_while_packets_come(leaf: Leaf) -> None:
    for mode in (LabelMode.SPRAY, LabelMode.ADAPTIVE):
        leaf.configure(mode)
        assert len({leaf.uplink(roce()) for _ in range(8)}) == 4
        leaf.configure(mode, members=leaf.members[1:])
        assert {leaf.uplink(roce()) for _ in range(9)} == {
            "leaf1-spine2", "leaf1-spine3", "leaf1-spine4",
        }  # fmt: skip
    leaf.configure(LabelMode.ADAPTIVE, members=())
    settings = leaf.configure(LabelMode.SPRAY, members=())
    assert leaf.label(roce()) == label_of(
        FiveTuple("10.1.0.1", "10.2.0.1", 50000), 0x50,
        seed=settings.seed, upper_seed=settings.upper_seed, use_destination_qp=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    "slots", [((),), (tuple(range(SLOTS)), (0,))], ids=["a member without slots", "65 slots"]
)
def test_impossible_members_are_refused(leaf: Leaf, slots: tuple[tuple[int, ...], ...]) -> None:
    members = tuple(LabelMember("leaf1-spine1", own) for own in slots)
    with pytest.raises(ValueError, match="leaf1: members need 1 to 64 slots"):
        leaf.configure(LabelMode.SPRAY, members=members)
