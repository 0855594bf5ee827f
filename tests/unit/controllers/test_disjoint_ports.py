"""Source ports that give a connection's queue pairs disjoint paths through ECMP's own hashes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import permutations

import pytest

from controllers.flows import Flow
from controllers.hashing import FiveTuple
from controllers.schemes import create_scheme
from controllers.table import FabricTables
from testbed.topology import NodeKind, Topology

Build = Callable[..., Topology]


def flows_of(topology: Topology, pairs: Iterable[tuple[int, int]], qps: int) -> list[Flow]:
    """Both directions of the queue pairs of some connections."""
    flows = []
    for connection, (source, destination) in enumerate(pair for pair in pairs for _ in range(qps)):
        for reverse in (False, True):
            ends = (destination, source) if reverse else (source, destination)
            nic, peer = topology.nic(ends[0]), topology.nic(ends[1])
            five_tuple = FiveTuple(nic.address, peer.address, 50000)
            size = 0 if reverse else 1000
            flows.append(Flow(five_tuple, connection, nic.name, size, connection, reverse))
    return flows


def fabric_links(topology: Topology, path: Iterable[str]) -> list[str]:
    """The links between switches on a path."""
    interfaces, nodes = topology.interfaces, topology.nodes

    def switches(name: str) -> bool:
        ends = nodes[interfaces[name].node], nodes[interfaces[name].peer_node]
        return all(end.kind is NodeKind.SWITCH for end in ends)

    return [name for name in path if switches(name)]


def chosen_links(
    topology: Topology, flows: list[Flow], seed: int = 1
) -> dict[tuple[int, bool], list[str]]:
    """(connection, reverse) -> links between switches, with the chosen ports."""
    scheme = create_scheme("disjoint", seed=seed)
    ports = scheme.choose_source_ports(topology, flows)
    assert set(ports) == {(flow.connection, flow.reverse) for flow in flows}
    assert all(49152 <= port <= 65535 for port in ports.values())
    tables = FabricTables(topology, scheme.entries(topology, flows))
    return {
        (flow.connection, flow.reverse): fabric_links(
            topology,
            tables.path_of(
                replace(
                    flow,
                    five_tuple=replace(
                        flow.five_tuple, source_port=ports[flow.connection, flow.reverse]
                    ),
                )
            ),
        )
        for flow in flows
    }


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("leaf-spine", {"spines": 4}),
        ("leaf-spine", {"spines": 7}),
        ("three-tier", {"spines": 4, "cores": 8}),
        ("hpn7-pod", {"spines": 8}),
    ],
)
def test_queue_pairs_of_a_connection_are_disjoint(
    family: Build, kind: str, parameters: dict[str, object], seed: int
) -> None:
    """As many queue pairs as a leaf has uplinks share no link between switches, both ways."""
    topology = family(kind, **parameters)
    last = len(topology.ranks) - 1
    uplinks = sum(
        topology.nodes[port.peer_node].tier == 2 for port in topology.interfaces_of("leaf1")
    )
    flows = flows_of(topology, [(0, last)], uplinks)
    links = chosen_links(topology, flows, seed)
    for reverse in (False, True):
        used = Counter(link for (_, way), path in links.items() if way is reverse for link in path)
        assert max(used.values()) == 1


def test_more_queue_pairs_than_paths_are_dealt_evenly(family: Build) -> None:
    topology = family("leaf-spine", spines=3)
    links = chosen_links(topology, flows_of(topology, [(0, 7)], 8))
    first = Counter(path[0] for (_, reverse), path in links.items() if not reverse)
    assert sorted(first.values()) == [2, 3, 3]


@pytest.mark.parametrize("seed", range(4))
def test_first_hops_are_even_over_all_pairs(family: Build, seed: int) -> None:
    """One queue pair each, so only the choice among pairs can balance; ECMP leaves it to chance."""
    topology = family("leaf-spine", leaves=2, spines=4, servers_per_leaf=8)
    flows = flows_of(topology, [(slot, 8 + slot) for slot in range(8)], 1)
    links = chosen_links(topology, flows, seed)
    for hop in (0, 1):
        used = Counter(path[hop] for (_, reverse), path in links.items() if not reverse)
        assert sorted(used.values()) == [2, 2, 2, 2]


def test_all_to_all_is_close_to_even(family: Build) -> None:
    topology = family("leaf-spine", leaves=4, spines=4, servers_per_leaf=2)
    links = chosen_links(topology, flows_of(topology, permutations(range(8), 2), 2))
    load = Counter(link for (_, reverse), path in links.items() if not reverse for link in path)
    # 2 NICs to 6 remote ones with 2 queue pairs each: 24 flows on 4 uplinks
    assert all(5 <= flows <= 7 for flows in load.values())
    assert sum(load.values()) == 2 * 4 * 24


def test_large_flows_count_for_more(family: Build) -> None:
    topology = family("leaf-spine", leaves=2, spines=2, servers_per_leaf=4)
    flows = [
        replace(flow, bytes=flow.bytes * (3 if flow.connection == 0 else 1))
        for flow in flows_of(topology, [(slot, 4 + slot) for slot in range(4)], 1)
    ]
    links = chosen_links(topology, flows)
    first = {connection: links[connection, False][0] for connection in range(4)}
    assert [first[connection] == first[0] for connection in range(4)] == [True, False, False, False]


def test_local_pairs_get_a_port_too(family: Build) -> None:
    topology = family("leaf-spine", leaves=1, spines=0)
    scheme = create_scheme("disjoint")
    ports = scheme.choose_source_ports(topology, flows_of(topology, [(0, 1)], 2))
    assert len(ports) == 4


def test_other_schemes_choose_no_ports(family: Build) -> None:
    topology = family("leaf-spine")
    assert (
        create_scheme("ecmp").choose_source_ports(topology, flows_of(topology, [(0, 7)], 2)) == {}
    )
