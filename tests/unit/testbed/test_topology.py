"""Topologies as plain data: names, ports, addresses, limits."""

from __future__ import annotations

import ipaddress

import pytest
from pydantic import ValidationError

from testbed.topology import (
    NodeKind,
    RankRole,
    Topology,
    TopologyBuilder,
    TopologyError,
    create_topology,
)
from testbed.topology.base import IFINDEX_BASE


def leaf_spine(**parameters: object) -> Topology:
    return create_topology("leaf-spine", **parameters)


SIZES = [
    {"leaves": 1, "spines": 0, "servers_per_leaf": 2},
    {"leaves": 2, "spines": 2, "servers_per_leaf": 4},
    {"leaves": 4, "spines": 4, "servers_per_leaf": 4, "gpus_per_server": 2},
    {"leaves": 64, "spines": 16, "servers_per_leaf": 2, "gpus_per_server": 8},
]


@pytest.mark.parametrize("size", SIZES)
def test_structure(size):
    topology = leaf_spine(**size)
    gpus = size.get("gpus_per_server", 1)
    ranks = size["leaves"] * size["servers_per_leaf"] * gpus
    assert len(topology.ranks) == ranks
    assert len(topology.interfaces) == 2 * (ranks + size["leaves"] * size["spines"])
    names = list(topology.interfaces)
    assert max(map(len, names)) <= 15
    indices = [i.ifindex for i in topology.interfaces.values()]
    assert indices == list(range(IFINDEX_BASE, IFINDEX_BASE + len(names)))
    for interface in topology.interfaces.values():
        peer = topology.interfaces[interface.peer]
        assert peer.peer == interface.name and peer.node == interface.peer_node
    macs = [i.mac for i in topology.interfaces.values()]
    assert len(set(macs)) == len(macs)
    for node in topology.switches:
        ports = [i.port for i in topology.interfaces_of(node.name)]
        assert sorted(ports) == list(range(1, len(ports) + 1))


@pytest.mark.parametrize("size", SIZES)
def test_ranks_addresses_and_prefixes(size):
    topology = leaf_spine(**size)
    gpus = size.get("gpus_per_server", 1)
    servers = [n.name for n in topology.nodes.values() if n.kind is NodeKind.SERVER]
    for rank in topology.ranks:
        assert rank.rank == servers.index(rank.server) * gpus + rank.local_rank
        nic = topology.nic(rank.rank)
        prefix = ipaddress.ip_network(topology.prefixes[topology.leaf_of(rank.rank)])
        assert ipaddress.ip_address(nic.address) in prefix
        assert topology.rank_of_address(nic.address) == rank.rank
    addresses = [topology.nic(r.rank).address for r in topology.ranks]
    assert len(set(addresses)) == len(addresses)


def test_latency_counts_switches():
    topology = leaf_spine(hop_latency="1 us", nic_latency="2 us")
    assert topology.switch_hops(0, 1) == 1
    assert topology.switch_hops(0, 7) == 3
    assert topology.one_way_latency(3) == pytest.approx(5e-6)


def test_uplinks_may_have_another_rate():
    topology = leaf_spine(link_rate="200 Gbps", uplink_rate="400 Gbps")
    assert topology.interfaces["leaf1-spine1"].rate == 400e9
    assert topology.interfaces["rank0-leaf1"].rate == 200e9


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"servers_per_leaf": 300}, r"servers_per_leaf: 300 servers .* 302 ports .* at most 256"),
        ({"spines": 0}, r"spines: 0 leaves 2 leaves unconnected"),
    ],
)
def test_what_no_switch_can_be(parameters, words):
    with pytest.raises(TopologyError, match=words):
        leaf_spine(**parameters)


@pytest.mark.parametrize("parameters", [{"leaves": 0}, {"leaves": 65}, {"link_rate": "400"}])
def test_parameters_out_of_range(parameters):
    with pytest.raises(ValidationError):
        leaf_spine(**parameters)


def dual_homed() -> Topology:
    """Two servers on both leaves of a pair, one on the first only; a front end of its own."""
    builder = TopologyBuilder("dual", hop_latency=1e-6, nic_latency=1e-6)
    leaves = [builder.switch("leaf", tier=1, index=i, plane=i % 2) for i in range(3)]
    spine = builder.switch("spine", tier=2, index=0)
    for index, below in enumerate((leaves[:2], leaves[:2], leaves[:1])):
        builder.rank(builder.server(index, group="pod1"), 0, below, rate=200e9)
    builder.rank("server1", 0, leaves[2:], rate=100e9, role=RankRole.FRONT_END)
    for leaf in leaves[:2]:
        builder.link(leaf, spine, up_rate=400e9, down_rate=400e9)
    return builder.build()


def test_ports_of_a_nic_share_address_and_mac():
    topology = dual_homed()
    for rank in topology.ranks:
        ports = topology.nic_ports(rank.rank)
        assert tuple(port.name for port in ports) == rank.interfaces
        assert len({(port.address, port.mac) for port in ports}) == 1
        assert topology.rank_of_address(ports[0].address) == rank.rank
    assert [len(rank.interfaces) for rank in topology.ranks] == [2, 2, 1, 1]
    addresses = {topology.nic(rank.rank).address for rank in topology.ranks}
    assert len(addresses) == 4
    with pytest.raises(KeyError):
        topology.rank_of_address("10.9.9.9")


def test_leaves_that_share_nics_share_their_prefix():
    topology = dual_homed()
    assert topology.prefixes == {
        "leaf1": "10.1.0.0/16",
        "leaf2": "10.1.0.0/16",
        "leaf3": "10.3.0.0/16",
    }
    for rank in topology.ranks:
        for port in topology.nic_ports(rank.rank):
            prefix = ipaddress.ip_network(topology.prefixes[port.peer_node])
            assert ipaddress.ip_address(port.address) in prefix


def test_roles_planes_and_groups():
    topology = dual_homed()
    assert [rank.rank for rank in topology.gpu_ranks] == [0, 1, 2]
    assert [rank.rank for rank in topology.ranks_of(RankRole.FRONT_END)] == [3]
    assert topology.ranks_of(RankRole.STORAGE) == ()
    assert [switch.plane for switch in topology.switches] == [0, 1, 0, 0]
    assert {server.group for server in topology.servers} == {"pod1"}


def test_networks_that_are_not_joined():
    topology = dual_homed()
    assert topology.connected(0, 2) and not topology.connected(0, 3)
    assert topology.prefixes_from("leaf2") == {"10.1.0.0/16"}
    assert topology.prefixes_from("leaf3") == {"10.3.0.0/16"}
    with pytest.raises(TopologyError, match="no path leads from rank 3 to rank 1"):
        topology.switch_hops(3, 1)


def test_builder_refuses_what_cannot_be_wired():
    builder = TopologyBuilder("wrong", hop_latency=0, nic_latency=0)
    leaf = builder.switch("leaf", tier=1, index=0)
    spine = builder.switch("spine", tier=2, index=0)
    builder.link(leaf, spine, up_rate=1e9, down_rate=1e9)
    server = builder.server(0)
    builder.rank(server, 0, [leaf], rate=1e9, role=RankRole.STORAGE)
    with pytest.raises(TopologyError, match="leaf1 and spine1 are wired twice"):
        builder.link(leaf, spine, up_rate=1e9, down_rate=1e9)
    with pytest.raises(TopologyError, match="two nodes named 'leaf1'"):
        builder.switch("leaf", tier=1, index=0)
    with pytest.raises(TopologyError, match="GPU 1 comes after ranks that are no GPUs"):
        builder.rank(server, 0, [leaf], rate=1e9)
    with pytest.raises(TopologyError, match="server1 is wired to spine1, which is no leaf"):
        builder.rank(server, 0, [spine], rate=1e9, role=RankRole.STORAGE)
    builder.switch("leaf", tier=1, index=255)
    with pytest.raises(TopologyError, match="at most 255"):
        builder.build()


def test_an_unknown_family_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="topology 'ring' is unknown; allowed: file, hpn, "):
        create_topology("ring")
