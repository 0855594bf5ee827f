"""Planning over arrays takes the paths that the switches' tables give, scheme by scheme."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers import schemes
from controllers.entries import Entry, HashAlgorithm, HashFields
from controllers.flows import Flow
from controllers.hashing import FiveTuple, flow_hash, link_of
from controllers.labels import label_hash, make_label
from controllers.planning import hashing
from controllers.planning import schemes as planners
from controllers.planning.catalogue import three_tier
from controllers.planning.fabric import ArrayFabric, edge_names, from_topology, live_links
from controllers.planning.flows import FlowArrays, make_flows
from controllers.planning.placement import NO_EDGE, Hop, RoutedFabric
from controllers.planning.schemes import HopByHopPlanner, create_planner, planner_names
from controllers.routes import LinkState
from controllers.schemes import RoutingScheme, RoutingView, create_scheme
from controllers.schemes.base import route, to_switch
from controllers.table import FabricTables, RoutingError
from testbed.topology import Topology, create_topology

WORD = st.integers(0, 0xFFFF_FFFF)
PORT = st.integers(0, 0xFFFF)

FABRICS = {
    "leaf-spine": {"leaves": 5, "spines": 3, "servers_per_leaf": 3, "gpus_per_server": 2},
    "three-tier": {
        "zones": 3, "leaves": 2, "spines": 3, "cores": 2, "servers_per_leaf": 2,
        "gpus_per_server": 2,
    },
    "rail-optimised": {"pods": 3, "servers_per_pod": 2, "gpus_per_server": 3, "spines": 2},
    "hpn": {
        "pods": 2, "segments": 2, "servers_per_segment": 2, "gpus_per_server": 2, "spines": 4,
        "cores": 4,
    },
    "hpn-one-plane": {
        "segments": 2, "servers_per_segment": 2, "gpus_per_server": 3, "spines": 3,
        "dual_plane": False,
    },
}  # fmt: skip


def build(name: str) -> Topology:
    return create_topology(name.removesuffix("-one-plane"), **FABRICS[name])


def flow_of(topology: Topology, fabric: ArrayFabric, flows: FlowArrays, row: int) -> Flow:
    def address(nic: int) -> str:
        return str(ipaddress.IPv4Address(int(fabric.addresses[nic])))

    source, destination = int(flows.sources[row]), int(flows.destinations[row])
    return Flow(
        FiveTuple(address(source), address(destination), int(flows.source_ports[row])),
        int(flows.destination_qps[row]),
        topology.ranks[source].interfaces[int(flows.nic_ports[row])],
    )


@given(rows=st.lists(st.tuples(WORD, WORD, PORT, WORD), min_size=1, max_size=20))
@settings(max_examples=50)
@pytest.mark.parametrize("fields", list(HashFields))
def test_flow_hashes_are_those_of_single_flows(fields, rows) -> None:
    source, destination, port, basis = (np.array(column) for column in zip(*rows, strict=True))
    values = hashing.flow_hashes(source, destination, port, fields=fields, bases=basis)
    for row, value in zip(rows, values.tolist(), strict=True):
        flow = FiveTuple(*(str(ipaddress.IPv4Address(word)) for word in row[:2]), row[2])
        assert value == flow_hash(flow, fields=fields, basis=row[3])


@given(rows=st.lists(st.tuples(WORD, WORD, PORT, st.integers(0, 0xFFFFFF), WORD), min_size=1))
@settings(max_examples=50)
@pytest.mark.parametrize("use_qp", [True, False])
def test_label_hashes_are_those_of_single_flows(use_qp, rows) -> None:
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    values = hashing.label_hashes(*columns[:4], seeds=columns[4], use_destination_qp=use_qp)
    for row, value in zip(rows, values.tolist(), strict=True):
        flow = FiveTuple(*(str(ipaddress.IPv4Address(word)) for word in row[:2]), row[2])
        assert value == label_hash(flow, row[3], seed=row[4], use_destination_qp=use_qp)


@given(rows=st.lists(st.tuples(WORD, st.integers(1, 300)), min_size=1))
@settings(max_examples=50)
@pytest.mark.parametrize("algorithm", list(HashAlgorithm))
def test_links_are_those_of_single_hashes(algorithm, rows) -> None:
    values, links = (np.array(column) for column in zip(*rows, strict=True))
    chosen = hashing.links_of(values.astype(np.uint64), algorithm=algorithm, links=links)
    assert chosen.tolist() == [link_of(v, algorithm=algorithm, links=n) for v, n in rows]


@pytest.mark.parametrize("failed", [0, 1, 3])
@pytest.mark.parametrize("name", FABRICS)
@pytest.mark.parametrize("scheme_name", planner_names())
def test_paths_are_those_of_the_tables(scheme_name: str, name: str, failed: int) -> None:
    topology = build(name)
    fabric, names = from_topology(topology), edge_names(topology)
    down = np.random.default_rng(failed).permutation(fabric.links)[:failed]
    state = LinkState(frozenset(names[link] for link in down))
    live = live_links(topology, state)
    assert sorted(np.flatnonzero(~live)) == sorted(down)
    planner = create_planner(scheme_name, seed=9)
    flows = make_flows(fabric, "permutation", gpus=fabric.nics, qps=3, port_per_qp=True, seed=3)
    placement = planner.place(RoutedFabric.of(fabric).with_live(live), flows)
    flows = placement.flows  # a scheme may have chosen other source ports, or cut flows up

    scheme = create_scheme(scheme_name, seed=9)
    all_flows = [flow_of(topology, fabric, flows, row) for row in range(len(flows))]
    tables = FabricTables(topology, scheme.entries(topology, all_flows, state))
    assert len({tuple(path) for path in placement.paths.tolist()}) >= len(topology.ranks) // 2
    for row, flow in enumerate(all_flows):
        path = [names[edge] for edge in placement.paths[row].tolist() if edge != NO_EDGE]
        leaf = topology.interfaces[flow.source_interface].peer_node
        label = scheme.label(topology, leaf, flow)
        if scheme_name == "spray":
            label = make_label(*(int(slots[row]) for slots in planner.labels))
        if placement.lost[row]:
            assert path == []
            with pytest.raises(RoutingError):
                tables.path_of(flow, label)
        else:
            assert path == tables.path_of(flow, label)


@pytest.mark.parametrize("name", FABRICS)
def test_disjoint_chooses_the_source_ports_that_the_scheme_chooses(name: str) -> None:
    topology = build(name)
    fabric = from_topology(topology)
    flows = make_flows(fabric, "permutation", gpus=fabric.nics, qps=5, seed=2)
    placement = create_planner("disjoint", seed=9).place(RoutedFabric.of(fabric), flows)
    told = [
        dataclasses.replace(flow_of(topology, fabric, flows, row), connection=row)
        for row in range(len(flows))
    ]
    chosen = create_scheme("disjoint", seed=9).choose_source_ports(topology, told)
    assert placement.flows.source_ports.tolist() == [chosen[row, False] for row in range(len(told))]


def test_disjoint_refuses_more_paths_than_it_can_try() -> None:
    fabric = three_tier("big", zones=2, leaves=1, spines=8, cores=8, gpus_per_leaf=8)
    flows = make_flows(fabric, "shift", gpus=16)
    with pytest.raises(ValueError, match="at most 256 paths between two NICs; big has 512: "):
        create_planner("disjoint").place(RoutedFabric.of(fabric), flows)


def test_spray_deals_packets_out_to_within_one() -> None:
    fabric = from_topology(build("leaf-spine"))
    flows = make_flows(fabric, "shift", gpus=fabric.nics, qps=2, seed=3)
    placement = create_planner("spray", seed=1).place(RoutedFabric.of(fabric), flows)
    assert len(placement.flows) == 64 * fabric.nics
    packets = np.bincount(placement.paths[:, 1])
    for leaf in range(5):
        counts = packets[: fabric.links][fabric.lower == leaf]
        assert counts.sum() == 64 * 6
        assert counts.max() - counts.min() <= 1


class LastPort(RoutingScheme):
    """Every switch sends by its last port."""

    name = "last-port"

    def remote_entries(self, view: RoutingView, switch: str) -> Iterator[Entry]:
        for prefix, ports in view.hops[switch].items():
            yield route(view.topology, switch, prefix, to_switch(view.topology, ports[-1]))


class LastPortPlanner(HopByHopPlanner):
    name = "last-port"

    def choose(self, routed: RoutedFabric, flows: FlowArrays, hop: Hop) -> np.ndarray:
        return routed.groups.member(hop.groups, routed.groups.sizes(hop.groups) - 1)


def test_a_scheme_from_outside_can_be_planned(monkeypatch) -> None:
    monkeypatch.setitem(schemes.base._registry, "last-port", LastPort)
    monkeypatch.setitem(planners.base._registry, "last-port", LastPortPlanner)
    test_paths_are_those_of_the_tables("last-port", "three-tier", 1)
