"""Topologies as plain data: names, ports, addresses, limits."""

from __future__ import annotations

import ipaddress

import pytest
from pydantic import ValidationError

from testbed.topology import NodeKind, Topology, TopologyError, topology_kinds
from testbed.topology.base import IFINDEX_BASE


def leaf_spine(**parameters: object) -> Topology:
    kind = topology_kinds()["leaf-spine"]
    return kind().build(kind.parameters(**parameters))


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
