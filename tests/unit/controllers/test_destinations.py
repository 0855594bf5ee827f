"""Destinations: leaf sets' prefixes, and NICs that an access link's failure sets apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controllers.routes import LinkState, destinations, next_hops
from controllers.schemes.base import RoutingView
from testbed.topology import Topology, TopologyBuilder

Build = Callable[..., Topology]


@pytest.fixture(scope="module")
def dual_tor() -> Topology:
    """Two sets of two leaves and two spines; NICs 0 and 1 below the first set, 2 and 3 below the
    second."""
    builder = TopologyBuilder("dual-tor", hop_latency=1e-6, nic_latency=1e-6)
    leaves = [builder.switch("leaf", tier=1, index=i) for i in range(4)]
    spines = [builder.switch("spine", tier=2, index=i) for i in range(2)]
    for number in range(4):
        first = 2 * (number // 2)
        builder.rank(builder.server(number), 0, leaves[first : first + 2], rate=200e9)
    for leaf in leaves:
        for spine in spines:
            builder.link(leaf, spine, up_rate=400e9, down_rate=400e9)
    return builder.build()


def names(hops: object) -> set[str]:
    return {port.name for port in hops}  # type: ignore[attr-defined]


def test_a_set_of_leaves_is_one_destination(dual_tor: Topology) -> None:
    found = destinations(dual_tor, LinkState())
    assert {d.prefix: d.leaves for d in found.values()} == {
        "10.1.0.0/16": ("leaf1", "leaf2"),
        "10.3.0.0/16": ("leaf3", "leaf4"),
    }
    hops = next_hops(dual_tor, LinkState())
    assert names(hops["leaf1"]["10.3.0.0/16"]) == {"leaf1-spine1", "leaf1-spine2"}
    assert names(hops["spine1"]["10.3.0.0/16"]) == {"spine1-leaf3", "spine1-leaf4"}
    assert "10.1.0.0/16" not in hops["leaf1"]


def test_a_nic_with_one_link_left_is_a_host_route(dual_tor: Topology) -> None:
    state = LinkState(frozenset({"rank2-leaf3"}))
    address = dual_tor.nic(2).address
    found = destinations(dual_tor, state)
    assert found[f"{address}/32"].leaves == ("leaf4",)
    assert [nic.address for nic in found["10.3.0.0/16"].nics] == [dual_tor.nic(3).address]
    hops = next_hops(dual_tor, state)
    assert names(hops["spine1"][f"{address}/32"]) == {"spine1-leaf4"}
    # the leaf that has lost it sends it round
    assert names(hops["leaf3"][f"{address}/32"]) == {"leaf3-spine1", "leaf3-spine2"}


def test_a_leaf_without_nics_announces_nothing(dual_tor: Topology) -> None:
    ports = dual_tor.interfaces_of("leaf3")
    state = LinkState(frozenset(port.name for port in ports))
    found = destinations(dual_tor, state)
    assert set(found) == {"10.1.0.0/16", "10.3.0.0/16"}
    assert found["10.3.0.0/16"].leaves == ("leaf4",)


def test_a_nic_without_links_is_no_destination(dual_tor: Topology) -> None:
    state = LinkState(frozenset({"rank2-leaf3", "leaf4-rank2"}))
    found = destinations(dual_tor, state)
    address = dual_tor.nic(2).address
    assert f"{address}/32" not in found
    assert [nic.address for nic in found["10.3.0.0/16"].nics] == [dual_tor.nic(3).address]


def test_planes_stay_apart(family: Build) -> None:
    topology = family("hpn7-pod")
    hops = next_hops(topology, LinkState())
    assert {topology.nodes[switch].plane for switch in hops if hops[switch]} == {0, 1}
    for switch, towards in hops.items():
        for ports in towards.values():
            planes = {topology.nodes[port.peer_node].plane for port in ports}
            assert planes == {topology.nodes[switch].plane}


def test_members_are_what_a_switch_chose_among(dual_tor: Topology) -> None:
    """On the way up all up ports count, on the way down those of the healthy fabric."""
    state = LinkState(frozenset({"leaf1-spine2", "spine1-leaf4"}))
    view = RoutingView.of(dual_tor, link_state=state)
    prefix = "10.3.0.0/16"
    assert names(view.hops["leaf1"][prefix]) == {"leaf1-spine1"}
    assert names(view.members("leaf1", prefix)) == {"leaf1-spine1", "leaf1-spine2"}
    assert names(view.hops["spine1"][prefix]) == {"spine1-leaf3"}
    assert names(view.members("spine1", prefix)) == {"spine1-leaf3", "spine1-leaf4"}


def test_a_nic_finds_its_destination(dual_tor: Topology) -> None:
    healthy = RoutingView.of(dual_tor)
    assert healthy.destination_of(dual_tor.nic(2, 1)).prefix == "10.3.0.0/16"
    failed = RoutingView.of(dual_tor, link_state=LinkState(frozenset({"rank2-leaf3"})))
    assert failed.destination_of(dual_tor.nic(2, 1)).prefix == f"{dual_tor.nic(2).address}/32"
    assert failed.destination_of(dual_tor.nic(3)).prefix == "10.3.0.0/16"
