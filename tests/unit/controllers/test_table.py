"""The pipeline model: OpenFlow's matching rules, and the faults it must find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from controllers.entries import (
    TAGGED,
    Action,
    DecrementTtl,
    Drop,
    Entry,
    GotoTable,
    HashAlgorithm,
    HashFields,
    LoadRegister,
    MoveVlanToRegister,
    Multipath,
    Output,
    PopVlan,
    SetEthDst,
)
from controllers.hashing import FiveTuple, flow_hash
from controllers.schemes import create_scheme
from controllers.table import (
    BlackHoleError,
    FabricTables,
    ForwardingLoopError,
    Packet,
    SwitchTables,
    path_of,
)
from testbed.topology import Topology

Build = Callable[..., Topology]

FLOW = FiveTuple("10.1.0.1", "10.2.0.9", 50000)
PACKET = Packet(FLOW, eth_src="02:00:0a:01:00:01", eth_dst="02:01:00:00:00:01")


def entry(priority: int, match: dict[str, int | str], *actions: Action, table: int = 0) -> Entry:
    return Entry(table, priority, match, actions)


def output_of(*entries: Entry, packet: Packet = PACKET, in_port: int = 1) -> int | None:
    return SwitchTables(entries).execute(packet, in_port=in_port)[1]


def test_highest_priority_wins_whatever_the_order() -> None:
    low = entry(1, {}, Output(2))
    high = entry(2, {"ipv4_dst": "10.2.0.0/16"}, Output(3))
    assert output_of(low, high) == output_of(high, low) == 3


@pytest.mark.parametrize(
    ("match", "matches"),
    [
        ({"ipv4_dst": "10.2.0.9/32"}, True),
        ({"ipv4_dst": "10.2.0.9"}, True),
        ({"ipv4_dst": "10.2.0.8/31"}, True),
        ({"ipv4_dst": "10.2.0.8/32"}, False),
        ({"ipv4_dst": "10.3.0.0/16"}, False),
        ({"eth_type": 0x0800, "udp_dst": 4791}, True),
        ({"eth_type": 0x0806}, False),
        ({"eth_dst": "02:01:00:00:00:01"}, True),
        ({"in_port": 1}, True),
        ({"reg0": 0}, True),
        ({"reg0": 1}, False),
        ({"vlan_vid": 1}, False),
    ],
)
def test_match(match: dict[str, int | str], matches: bool) -> None:
    assert output_of(entry(1, match, Output(2))) == (2 if matches else None)


def test_a_miss_drops() -> None:
    assert output_of() is None
    assert output_of(entry(1, {}, GotoTable(1))) is None


def test_drop_entry_drops() -> None:
    assert output_of(entry(2, {}, Drop()), entry(1, {}, Output(2))) is None


def test_output_to_the_ingress_port_is_suppressed() -> None:
    assert output_of(entry(1, {}, Output(1)), in_port=1) is None


def test_ttl_is_decremented_and_expires() -> None:
    switch = SwitchTables([entry(1, {}, DecrementTtl(), Output(2))])
    after, port = switch.execute(replace(PACKET, ttl=2), in_port=1)
    assert (after.ttl, port) == (1, 2)
    assert switch.execute(replace(PACKET, ttl=1), in_port=1)[1] is None


def test_registers_and_rewritten_fields_are_seen_by_later_tables() -> None:
    assert output_of(
        entry(1, {}, LoadRegister(3, 7), SetEthDst("02:00:00:00:00:99"), GotoTable(2)),
        entry(1, {"reg3": 7, "eth_dst": "02:00:00:00:00:99"}, Output(5), table=2),
    ) == 5  # fmt: skip


@pytest.mark.parametrize(
    ("vlan", "match", "matches"),
    [
        (None, {"vlan_vid": TAGGED}, False),
        (0, {"vlan_vid": TAGGED}, True),
        (77, {"vlan_vid": TAGGED}, True),
        (77, {"vlan_vid": "0x104d/0x1fff"}, True),
        (78, {"vlan_vid": "0x104d/0x1fff"}, False),
        (None, {"vlan_vid": 0}, True),
        (0, {"vlan_vid": 0}, False),
    ],
)
def test_tags_are_matched(vlan: int | None, match: dict[str, int | str], matches: bool) -> None:
    packet = replace(PACKET, vlan=vlan)
    assert output_of(entry(1, match, Output(2)), packet=packet) == (2 if matches else None)


@pytest.mark.parametrize(("first_bit", "value"), [(0, 0b001101), (6, 0b100001), (3, 0b001001)])
def test_bits_of_a_tag_go_to_a_register(first_bit: int, value: int) -> None:
    tagged = replace(PACKET, vlan=0b100001_001101)
    for packet, expected in ((tagged, value), (PACKET, 0)):
        move = MoveVlanToRegister(2, first_bit, 6)
        after = SwitchTables(
            [
                entry(1, {}, move, GotoTable(1)),
                *(entry(1, {"reg2": slot}, Output(slot + 1), table=1) for slot in range(64)),
            ]
        )
        assert after.execute(packet, in_port=99)[1] == expected + 1


def test_a_register_keeps_its_upper_bits() -> None:
    assert output_of(
        entry(1, {}, LoadRegister(2, 0xFFF), MoveVlanToRegister(2, 0, 6), GotoTable(1)),
        entry(1, {"reg2": 0xFC0 | 5}, Output(9), table=1),
        packet=replace(PACKET, vlan=5),
    ) == 9  # fmt: skip


def test_a_popped_tag_is_gone() -> None:
    switch = SwitchTables([
        entry(2, {"vlan_vid": TAGGED}, PopVlan(), GotoTable(1)),
        entry(1, {"vlan_vid": 0}, Output(3), table=1),
    ])  # fmt: skip
    packet, port = switch.execute(replace(PACKET, vlan=5), in_port=1)
    assert (packet.vlan, port) == (None, 3)


@pytest.mark.parametrize("links", [1, 2, 3, 64])
def test_multipath_stores_the_hash_modulo_links(links: int) -> None:
    fields = HashFields.SYMMETRIC_L3L4_UDP
    select = Multipath(fields, 77, HashAlgorithm.MODULO_N, links, 0)
    members = [entry(1, {"reg0": link}, Output(100 + link), table=1) for link in range(links)]
    chosen = output_of(entry(1, {}, select, GotoTable(1)), *members)
    assert chosen == 100 + flow_hash(FLOW, fields=fields, basis=77) % links


def test_equal_match_and_priority_is_refused() -> None:
    with pytest.raises(ValueError, match="two entries of priority 4"):
        SwitchTables([entry(4, {"reg0": 1}, Output(1)), entry(4, {"reg0": 1}, Output(2))])


def test_two_outputs_are_refused() -> None:
    with pytest.raises(ValueError, match="more than one output"):
        output_of(entry(1, {}, Output(2), Output(3)))


@pytest.mark.parametrize(
    "actions",
    [(Drop(), Output(1)), (GotoTable(1), Output(1)), (GotoTable(0),)],
    ids=["drop and output", "goto not last", "goto backwards"],
)
def test_impossible_actions_are_refused(actions: tuple[Action, ...]) -> None:
    with pytest.raises(ValueError, match=r"drops|GotoTable"):
        Entry(0, 1, {}, actions)


def test_a_loop_is_found(leaf_spine: Build) -> None:
    topology = leaf_spine(leaves=2, spines=2, servers_per_leaf=1)
    towards = {
        "leaf1": "leaf1-spine1", "spine1": "spine1-leaf2",
        "leaf2": "leaf2-spine2", "spine2": "spine2-leaf1",
    }  # fmt: skip
    entries = {
        name: [entry(1, {}, Output(topology.interfaces[egress].port))]
        for name, egress in towards.items()
    }
    flow = FiveTuple(topology.nic(0).address, topology.nic(1).address, 50000)
    with pytest.raises(ForwardingLoopError) as caught:
        FabricTables(topology, entries).path_of(flow)
    assert caught.value.interfaces == (
        "rank0-leaf1", "leaf1-spine1", "spine1-leaf2", "leaf2-spine2", "spine2-leaf1",
        "leaf1-spine1",
    )  # fmt: skip


def test_black_holes_are_found(leaf_spine: Build) -> None:
    topology = leaf_spine(leaves=1, spines=0, servers_per_leaf=3)
    flow = FiveTuple(topology.nic(0).address, topology.nic(1).address, 50000)
    wrong = SetEthDst(topology.nic(1).mac)
    for entries, reason in (
        ([], "drops it"),
        ([entry(1, {}, Output(99))], "has no port 99"),
        ([entry(1, {}, wrong, Output(3))], "wrong NIC rank2-leaf1"),
        ([entry(1, {}, Output(2))], "wrong NIC rank1-leaf1"),  # MAC address not rewritten
    ):
        with pytest.raises(BlackHoleError, match=reason):
            FabricTables(topology, {"leaf1": entries}).path_of(flow)


def test_path_of_names_every_transmitting_interface(leaf_spine: Build) -> None:
    topology = leaf_spine(leaves=2, spines=1, servers_per_leaf=1)
    path = path_of(
        topology,
        create_scheme("ecmp").entries(topology),
        source_ip="10.1.0.1",
        destination_ip="10.2.0.1",
        source_port=49152,
    )
    assert path == ["rank0-leaf1", "leaf1-spine1", "spine1-leaf2", "leaf2-rank1"]


def test_a_source_that_is_no_nic_is_a_key_error(leaf_spine: Build) -> None:
    topology = leaf_spine(leaves=1, spines=0, servers_per_leaf=2)
    fabric = FabricTables(topology, create_scheme("static").entries(topology))
    with pytest.raises(KeyError, match=r"192\.0\.2\.1"):
        fabric.path_of(FiveTuple("192.0.2.1", "10.1.0.1", 50000))
