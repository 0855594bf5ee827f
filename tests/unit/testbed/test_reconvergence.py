"""While links fail and come back, whatever the switches know: no loop, nothing lost uncounted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from controllers.differences import Differences
from controllers.flows import Flow
from controllers.hashing import FiveTuple
from controllers.routes import LinkState
from controllers.schemes.base import Entries
from controllers.table import FabricTables, RoutingError
from testbed.failures import FaultTimeline, StepKind
from testbed.reconvergence import Reconvergence, Update
from testbed.scenario import Scenario, build_topology, plan_traffic
from testbed.topology import Topology

LEAF_SPINE = {"kind": "leaf-spine", "leaves": 3, "spines": 2, "servers_per_leaf": 2}
THREE_TIER = {
    "kind": "three-tier", "zones": 2, "leaves": 2, "spines": 2, "cores": 2,
    "servers_per_leaf": 1, "gpus_per_server": 1,
}  # fmt: skip
HPN = {
    "kind": "hpn", "segments": 2, "servers_per_segment": 2, "gpus_per_server": 1, "spines": 4,
    "dual_plane": False,
}  # fmt: skip
FABRICS = [LEAF_SPINE, THREE_TIER, HPN]


class World:
    """A fabric, its faults and what its switches hold."""

    def __init__(self, topology: dict[str, Any], scheme: str, **faults: Any) -> None:
        document = {
            "name": "world",
            "topology": topology,
            "routing": {"scheme": scheme},
            "workload": {"kind": "permutation", "message_size": "64 KiB"},
            "faults": faults,
        }
        self.scenario = Scenario.from_document(document)
        self.topology = build_topology(self.scenario)
        plan = plan_traffic(self.scenario, self.topology)
        self.network = Reconvergence(self.scenario, self.topology, plan)
        self.timeline = FaultTimeline(self.scenario.faults, self.topology)

    def updates(self) -> Iterator[tuple[LinkState, Entries]]:
        """The state of the links and what the switches hold, after every single change."""
        for step in self.timeline.steps:
            if step.kind is StepKind.PHYSICAL:
                yield step.physical, self.network.entries
            elif step.kind is StepKind.LOCAL:
                yield from ((step.physical, u.entries) for u in self.network.local(step))
            else:
                yield from ((step.physical, u.entries) for u in self.network.everywhere(step))


def flows(topology: Topology) -> Iterator[Flow]:
    for source in topology.ranks:
        for destination in topology.ranks:
            for sender in topology.nic_ports(source.rank) if source is not destination else ():
                for number in range(3):
                    address = topology.nic(destination.rank).address
                    five_tuple = FiveTuple(sender.address, address, 50000 + number)
                    yield Flow(five_tuple, 0, sender.name)


def ends(topology: Topology, entries: Entries, state: LinkState) -> dict[str, int]:
    """How many flows arrive and how many end at a dead port; anything else fails the test."""
    tables = FabricTables(topology, entries)
    counts = {"arrived": 0, "dead port": 0}
    for flow in flows(topology):
        try:
            path: Any = tables.path_of(flow)
            error = None
        except RoutingError as caught:
            path, error = caught.interfaces, caught
        dead = [name for name in path if not state.up(topology.interfaces[name])]
        assert dead or error is None, error
        counts["dead port" if dead else "arrived"] += 1
    return counts


def links(topology: Topology) -> list[str]:
    return [i.name for i in topology.interfaces.values() if i.name < i.peer]


def outages(topology: dict[str, Any]) -> list[dict[str, Any]]:
    """Every single link and switch failure, each repaired."""
    fabric = World(topology, "ecmp").topology
    times = {"down": "10 us", "up": "500 us"}
    return [{"links": [{"link": link, **times}]} for link in links(fabric)] + [
        {"switches": [{"switch": switch.name, **times}]} for switch in fabric.switches
    ]


@pytest.mark.parametrize("topology", FABRICS, ids=lambda t: t["kind"])
@pytest.mark.parametrize("scheme", ["ecmp", "te"])
def test_every_single_failure_and_repair(topology: dict[str, Any], scheme: str) -> None:
    for faults in outages(topology):
        world = World(topology, scheme, **faults)
        healthy = world.network.entries
        seen = 0
        for state, entries in world.updates():
            ends(world.topology, entries, state)
            seen += 1
        assert seen >= 4, "a failure changes entries twice at least"
        assert world.network.entries == healthy


@pytest.mark.parametrize("topology", FABRICS, ids=lambda t: t["kind"])
def test_nothing_is_lost_between_switches_once_all_know(topology: dict[str, Any]) -> None:
    for link in links(World(topology, "ecmp").topology):
        if link.startswith(("rank", "leaf1-rank", "tor1-rank")) or "-rank" in link:
            continue
        world = World(topology, "ecmp", links=[{"link": link, "down": "10 us"}])
        *_, (state, entries) = world.updates()
        assert ends(world.topology, entries, state)["dead port"] == 0, link


def test_a_leaf_uses_its_other_uplinks_before_anybody_else_knows() -> None:
    world = World(LEAF_SPINE, "ecmp", links=[{"link": "leaf1-spine1", "down": "10 us"}])
    before = world.network.entries
    physical, local, everywhere = world.timeline.steps
    at_failure = ends(world.topology, before, physical.physical)
    (update,) = world.network.local(local)
    changed = [s for s in before if Differences.between(before[s], update.entries[s])]
    assert changed == ["leaf1", "spine1"]  # the spine has no other way
    after_local = ends(world.topology, update.entries, local.physical)
    (last,) = world.network.everywhere(everywhere)
    after_all = ends(world.topology, last.entries, everywhere.physical)
    assert at_failure["dead port"] > after_local["dead port"] > after_all["dead port"] == 0


def test_updates_of_a_cut_access_link_go_to_those_above_first() -> None:
    """The ToR that lost the NIC begins to climb only when the spines send its packets elsewhere."""
    world = World(HPN, "ecmp", links=[{"link": world_nic(), "down": "10 us", "up": "900 us"}])
    leaf = world.topology.interfaces[world_nic()].peer_node
    order: list[list[str]] = []
    held = world.network.entries
    for step in world.timeline.steps:
        if step.kind is not StepKind.GLOBAL:
            updates: list[Update] = (
                list(world.network.local(step)) if step.kind is StepKind.LOCAL else []
            )
        else:
            updates = list(world.network.everywhere(step))
        for update in updates:
            order.append([s for s in held if Differences.between(held[s], update.entries[s])])
            held = update.entries
    down = [switches for switches in order if leaf in switches]
    assert order[0] != [leaf]
    assert order[1] == [leaf]  # last, when the link is gone
    assert order[2] == [leaf]  # first, when it is back
    assert len(down) == 2


def world_nic() -> str:
    return World(HPN, "ecmp").topology.ranks[0].interfaces[0]


def test_te_places_only_the_flows_of_those_that_send() -> None:
    world = World(LEAF_SPINE, "te")
    before = world.network.entries
    assert list(world.network.recomputed()) == []
    world.network.place_flows_of(["rank0-leaf1"])
    (update,) = world.network.recomputed()
    policies = [e for e in update.entries["leaf1"] if "in_port" in e.match]
    assert {e.match["in_port"] for e in policies} == {world.topology.interfaces["leaf1-rank0"].port}
    assert len([e for e in before["leaf1"] if "in_port" in e.match]) > 1
