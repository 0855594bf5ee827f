"""Routes as planned for a scenario: ports, labels, failures, and a scheme from outside."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from plugin import import_file

from controllers.routes import LinkState
from controllers.schemes import base, scheme_names
from controllers.table import BlackHoleError
from testbed.routes import PlannedPath, PlannedRoutes, plan_routes
from testbed.scenario import ScenarioError, build_topology, load_scenario, plan_traffic
from testbed.topology import Topology, TopologyBuilder

SCENARIO = """
name: planned
topology: {kind: %s}
routing: {scheme: %s}
workload: {kind: all-to-all, message_size: 256 KiB}
"""


def planned(
    path: Path,
    kind: str,
    scheme: str,
    *overrides: str,
    failed: tuple[str, ...] = (),
) -> tuple[Topology, PlannedRoutes]:
    path = path / "planned.yaml"
    path.write_text(SCENARIO % (kind, scheme))
    scenario = load_scenario(path, overrides)
    topology = build_topology(scenario)
    plan = plan_traffic(scenario, topology)
    return topology, plan_routes(scenario, topology, plan, LinkState(frozenset(failed)))


def assert_wired(topology: Topology, way: PlannedPath, source: int, destination: int) -> None:
    interfaces = [topology.interfaces[name] for name in way.interfaces]
    assert interfaces[0].name in topology.ranks[source].interfaces
    assert interfaces[-1].peer in topology.ranks[destination].interfaces
    for near, far in pairwise(interfaces):
        assert near.peer_node == far.node


@pytest.mark.parametrize("scheme", scheme_names())
@pytest.mark.parametrize("kind", ["leaf-spine", "three-tier", "hpn7-pod", "rail-optimised"])
@pytest.mark.parametrize("failure", ["none", "uplink"])
def test_every_scheme_has_a_way_for_every_connection(
    tmp_path: Path, kind: str, scheme: str, failure: str
) -> None:
    failed = ("leaf1-spine1",) if failure == "uplink" else ()
    topology, routes = planned(tmp_path, kind, scheme, failed=failed)
    assert set(routes.paths) == {
        (connection.index, reverse)
        for connection in routes.plan.connections
        for reverse in (False, True)
    }
    for (index, reverse), ways in routes.paths.items():
        connection = routes.plan.connections[index]
        ends = [connection.source_rank, connection.destination_rank]
        assert ways
        assert len({way.interfaces for way in ways}) == len(ways)
        for way in ways:
            assert_wired(topology, way, *(ends[::-1] if reverse else ends))
            assert not set(failed) & set(way.interfaces)


@pytest.mark.parametrize(("scheme", "count"), [("e-ecmp", 1), ("spray", 3), ("flowlet", 3)])
def test_ways_of_a_flow(tmp_path: Path, scheme: str, count: int) -> None:
    """A flow with one way needs no label; each of several has a label that forces it."""
    topology, routes = planned(tmp_path, "leaf-spine", scheme, "topology.spines=3")
    assert set(routes.labels) == {"leaf1", "leaf2"}
    for (index, _), ways in routes.paths.items():
        connection = routes.plan.connections[index]
        local = topology.leaf_of(connection.source_rank) == topology.leaf_of(
            connection.destination_rank
        )
        labels = {way.label for way in ways}
        if local or count == 1:
            assert len(ways) == 1 and labels == {None}
        else:
            assert len(ways) == count == len(labels) and None not in labels


def test_ports_that_cycle_are_ways_of_their_own(tmp_path: Path) -> None:
    overrides = ["nic.source_port_policy=per-packet", "nic.source_ports=16", "topology.spines=3"]
    topology, routes = planned(tmp_path, "leaf-spine", "ecmp", *overrides)
    assert len(routes.paths) == 2 * len(routes.plan.connections) > 0
    for (index, reverse), ways in routes.paths.items():
        connection = routes.plan.connections[index]
        remote = topology.switch_hops(connection.source_rank, connection.destination_rank) > 1
        if reverse:
            assert [way.source_port for way in ways] == [None]
        else:
            assert all(way.source_port is not None for way in ways)
            # 16 ports miss one of 3 spines with probability 3 * (2/3)**16 < 0.5 %
            assert len(ways) >= (2 if remote else 1)


def test_a_queue_pair_leaves_by_its_own_nic_port(tmp_path: Path) -> None:
    topology, routes = planned(tmp_path, "hpn7-pod", "ecmp")
    used = Counter()
    for connection in routes.plan.connections:
        for reverse, rank, port in (
            (False, connection.source_rank, connection.source_nic_port),
            (True, connection.destination_rank, connection.destination_nic_port),
        ):
            (way,) = routes.paths[connection.index, reverse]
            assert way.interfaces[0] == topology.nic(rank, port).name
            used[port] += 1
    assert set(used) == {0, 1}


def test_a_queue_pair_moves_when_its_port_has_no_link(tmp_path: Path) -> None:
    topology, routes = planned(tmp_path, "hpn7-pod", "te", failed=("rank0-leaf1",))
    sent = [
        way
        for (index, reverse), ways in routes.paths.items()
        for way in ways
        if routes.plan.connections[index].source_rank == 0 and not reverse
    ]
    assert sent
    assert {way.interfaces[0] for way in sent} == {topology.ranks[0].interfaces[1]}


def test_a_queue_pair_moves_when_its_plane_has_lost_the_destination(tmp_path: Path) -> None:
    """With planes there is no way round inside the fabric: the NIC has to change the plane."""
    topology, healthy = planned(tmp_path, "hpn7-pod", "ecmp")
    failed = topology.ranks[0].interfaces[0]
    _, routes = planned(tmp_path, "hpn7-pod", "ecmp", failed=(failed,))
    moved = 0
    for key, (way,) in healthy.paths.items():
        (after,) = routes.paths[key]
        if topology.interfaces[way.interfaces[-1]].peer == failed:
            moved += 1
            assert after.interfaces[0] != way.interfaces[0]
            assert topology.interfaces[after.interfaces[-1]].peer == topology.ranks[0].interfaces[1]
    assert moved > 0


def test_what_failures_cut_off_has_no_way(tmp_path: Path) -> None:
    topology, routes = planned(tmp_path, "leaf-spine", "ecmp", failed=("rank0-leaf1",))
    for (index, _), ways in routes.paths.items():
        connection = routes.plan.connections[index]
        assert bool(ways) == (0 not in (connection.source_rank, connection.destination_rank))
    assert len(topology.ranks) == 8


def test_what_was_never_joined_is_an_error(tmp_path: Path) -> None:
    """Without a failure a black hole is a mistake."""
    path = tmp_path / "planned.yaml"
    path.write_text(SCENARIO % ("leaf-spine", "ecmp"))
    scenario = load_scenario(path)
    plan = plan_traffic(scenario, build_topology(scenario))
    builder = TopologyBuilder("apart", hop_latency=1e-6, nic_latency=1e-6)
    leaves = [builder.switch("leaf", tier=1, index=index) for index in range(2)]
    for number in range(8):
        builder.rank(builder.server(number), 0, [leaves[number // 4]], rate=400e9)
    with pytest.raises(BlackHoleError, match="leaf1 drops it"):
        plan_routes(scenario, builder.build(), plan)


def test_disjoint_ports_are_in_the_plan_and_stay_when_links_fail(tmp_path: Path) -> None:
    overrides = ["nic.qps_per_connection=3", "topology.spines=3", "topology.servers_per_leaf=1"]
    topology, routes = planned(tmp_path, "leaf-spine", "disjoint", *overrides)
    plan = routes.plan
    assert len(plan.connections) == 6
    for first in (0, 3):
        group = plan.group(first)
        for reverse in (False, True):
            spines = [routes.paths[index, reverse][0].interfaces[1] for index in group]
            assert len(set(spines)) == 3
    _, degraded = planned(tmp_path, "leaf-spine", "disjoint", *overrides, failed=("leaf1-spine1",))
    assert degraded.plan == plan
    assert "leaf1-spine1" in topology.interfaces


def test_te_knows_how_many_bytes_each_pair_sends(tmp_path: Path) -> None:
    """Every NIC's traffic to the other leaf goes over a spine of its own: 4 NICs, 4 spines."""
    overrides = ["topology.spines=4"]
    _, routes = planned(tmp_path, "leaf-spine", "te", *overrides)
    uplinks = {}
    for connection in routes.plan.connections:
        (way,) = routes.paths[connection.index, False]
        if len(way.interfaces) == 4:
            uplinks.setdefault(connection.source_rank, set()).add(way.interfaces[1])
    assert all(len(used) == 1 for used in uplinks.values())
    assert len(set.union(*uplinks.values())) == 8
    assert routes.recompute_interval == 30


SCHEME = '''
"""Highest port: of equal-cost ports the last one, whatever the packet."""

from pydantic import Field

from controllers.schemes import RoutingScheme, SchemeParameters, register_scheme
from controllers.schemes.base import route, to_switch


class HighestPortParameters(SchemeParameters):
    skip: int = Field(ge=0, description="how many of the highest to leave out; no default")


@register_scheme
class HighestPort(RoutingScheme):
    name = "highest-port"
    parameters_type = HighestPortParameters

    def remote_entries(self, view, switch):
        for prefix, ports in view.hops[switch].items():
            port = ports[-1 - self.parameters.skip % len(ports)]
            yield route(view.topology, switch, prefix, to_switch(view.topology, port))
'''


@pytest.fixture
def highest_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheme, for one test."""
    monkeypatch.setattr(base, "_registry", dict(base._registry))
    import_file(tmp_path / "highest_port_scheme.py", SCHEME, monkeypatch)


@pytest.mark.usefixtures("highest_port")
@pytest.mark.parametrize(("skip", "spine"), [(0, "spine3"), (1, "spine2")])
def test_a_scheme_from_outside_is_one_new_file(tmp_path: Path, skip: int, spine: str) -> None:
    overrides = [f"routing.skip={skip}", "topology.spines=3"]
    _, routes = planned(tmp_path, "leaf-spine", "highest-port", *overrides)
    ways = [way.interfaces for ways in routes.paths.values() for way in ways]
    assert {way[1] for way in ways if len(way) == 4} == {f"leaf1-{spine}", f"leaf2-{spine}"}


@pytest.mark.usefixtures("highest_port")
def test_its_parameters_may_be_required(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="skip"):
        planned(tmp_path, "leaf-spine", "highest-port")


def test_it_is_unknown_unless_its_file_is_imported(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="'highest-port' is not known"):
        planned(tmp_path, "leaf-spine", "highest-port")
