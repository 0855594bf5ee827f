"""Exploring all hashes and labels: nothing possible is missed, faults are found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controllers.entries import (
    TAGGED,
    Action,
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
from controllers.exploration import FabricExplorer, SwitchExplorer
from controllers.hashing import FiveTuple
from controllers.schemes import create_scheme
from controllers.table import BlackHoleError, ForwardingLoopError, Packet
from testbed.topology import Topology

Build = Callable[..., Topology]

FLOW = FiveTuple("10.1.0.1", "10.2.0.9", 50000)
PLAIN = Packet(FLOW, eth_src="02:00:0a:01:00:01", eth_dst="02:01:00:00:00:01")
LABELLED = Packet(FLOW, eth_src=PLAIN.eth_src, eth_dst=PLAIN.eth_dst, vlan=0)


def entry(priority: int, match: dict[str, int | str], *actions: Action, table: int = 0) -> Entry:
    return Entry(table, priority, match, actions)


def ports(*entries: Entry, packet: Packet = PLAIN, in_port: int = 1) -> set[int | None]:
    return {outcome.port for outcome in SwitchExplorer(entries).outcomes(packet, in_port)}


HASH = Multipath(HashFields.SYMMETRIC_L3L4_UDP, 1, HashAlgorithm.MODULO_N, 3, 0)


def members(*outputs: int) -> list[Entry]:
    return [entry(1, {"reg0": link}, Output(port), table=1) for link, port in enumerate(outputs)]


def test_every_link_of_a_hash_is_possible() -> None:
    assert ports(entry(1, {}, HASH, GotoTable(1)), *members(7, 8, 9)) == {7, 8, 9}


def test_a_link_without_member_is_a_possible_drop() -> None:
    assert ports(entry(1, {}, HASH, GotoTable(1)), *members(7, 8)) == {7, 8, None}


def test_every_slot_of_a_label_is_possible() -> None:
    move = entry(1, {}, MoveVlanToRegister(0, 6, 6), GotoTable(1))
    table = members(*(100 + slot % 5 for slot in range(64)))
    assert ports(move, *table, packet=LABELLED) == {100, 101, 102, 103, 104}
    assert ports(move, *table, packet=PLAIN) == {100}  # without a tag it is slot 0
    assert None in ports(move, *table[:-1], packet=LABELLED)


def test_choices_multiply_over_tables() -> None:
    again = Multipath(HASH.fields, 2, HASH.algorithm, 2, 1)
    second = [
        entry(1, {"reg0": first, "reg1": link}, Output(10 * first + link + 5), table=2)
        for first in range(3)
        for link in range(2)
    ]
    assert ports(
        entry(1, {}, HASH, GotoTable(1)), entry(1, {}, again, GotoTable(2), table=1), *second
    ) == {5, 6, 15, 16, 25, 26}


def test_the_ingress_port_counts() -> None:
    assert ports(entry(1, {}, Output(1))) == {None}  # never back
    by_port = entry(2, {"in_port": 3}, Output(5)), entry(1, {}, Output(6))
    explorer = SwitchExplorer(by_port)
    assert {outcome.port for outcome in explorer.outcomes(PLAIN, 3)} == {5}
    assert {outcome.port for outcome in explorer.outcomes(PLAIN, 4)} == {6}


def test_drop_and_miss() -> None:
    assert ports(entry(1, {}, Drop())) == {None}
    assert ports() == {None}


def two_leaves(family: Build) -> Topology:
    return family("leaf-spine", leaves=2, spines=2, servers_per_leaf=1)


def deliver(topology: Topology, nic: str, *, tag: bool = False) -> Entry:
    interface = topology.interfaces[nic]
    port = topology.interfaces[interface.peer].port
    steps = (SetEthDst(interface.mac), Output(port))
    match: dict[str, int | str] = {"ipv4_dst": interface.address}
    if tag:
        return entry(4, match | {"vlan_vid": TAGGED}, PopVlan(), *steps)
    return entry(3, match, *steps)


def test_one_bad_member_is_found(family: Build) -> None:
    """Seven of eight source ports would miss it."""
    topology = two_leaves(family)
    entries = create_scheme("ecmp").entries(topology)
    healthy = FabricExplorer(topology, entries)
    healthy.check(topology.nic(0), topology.nic(1), tagged=False)
    broken = entries | {"spine2": [entry(1, {}, Drop())]}
    with pytest.raises(BlackHoleError, match="spine2 drops it"):
        FabricExplorer(topology, broken, before=healthy).check(
            topology.nic(0), topology.nic(1), tagged=False
        )


def test_a_loop_behind_one_member_is_found(family: Build) -> None:
    topology = two_leaves(family)
    entries = create_scheme("ecmp").entries(topology)

    def hop(ingress: str, egress: str) -> Entry:
        in_port = topology.interfaces[ingress].port
        return entry(9999, {"in_port": in_port}, Output(topology.interfaces[egress].port))

    looping = entries | {
        "leaf2": [hop("leaf2-spine1", "leaf2-spine2"), *entries["leaf2"]],
        "spine2": [hop("spine2-leaf2", "spine2-leaf1"), *entries["spine2"]],
        "leaf1": [hop("leaf1-spine2", "leaf1-spine1"), *entries["leaf1"]],
    }
    with pytest.raises(ForwardingLoopError):
        FabricExplorer(topology, looping).check(topology.nic(0), topology.nic(1), tagged=False)


def test_a_tag_that_gets_out_is_found(family: Build) -> None:
    topology = family("leaf-spine", leaves=1, spines=0, servers_per_leaf=2)
    plain = [deliver(topology, "rank1-leaf1")]
    with pytest.raises(BlackHoleError, match="with its tag"):
        FabricExplorer(topology, {"leaf1": plain}).check(
            topology.nic(0), topology.nic(1), tagged=True
        )
    both = [*plain, deliver(topology, "rank1-leaf1", tag=True)]
    FabricExplorer(topology, {"leaf1": both}).check(topology.nic(0), topology.nic(1), tagged=True)


def test_a_wrong_mac_address_is_found(family: Build) -> None:
    topology = family("leaf-spine", leaves=1, spines=0, servers_per_leaf=2)
    wrong = [entry(1, {}, LoadRegister(0, 1), Output(2))]
    with pytest.raises(BlackHoleError, match="wrong NIC"):
        FabricExplorer(topology, {"leaf1": wrong}).check(
            topology.nic(0), topology.nic(1), tagged=False
        )
