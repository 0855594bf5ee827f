"""Up/down next hops in a tiered fabric: which ports lead towards which leaf.

A packet climbs until the destination leaf is below it and then descends, never up again; so no
forwarding loop can exist, whatever choice is made among the ports given here. Works for any number
of tiers, parallel links and failed links.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from testbed.topology import Interface, NodeKind, Topology

NextHops = dict[str, dict[str, tuple[Interface, ...]]]
"""Switch -> destination leaf -> the switch's equal-cost ports towards it, in port order."""


@dataclass(frozen=True, slots=True)
class LinkState:
    """Which links are down, as names of interfaces; either end takes the link down."""

    failed: frozenset[str] = field(default_factory=frozenset)

    def up(self, interface: Interface) -> bool:
        """Whether the link at an interface carries packets."""
        return interface.name not in self.failed and interface.peer not in self.failed


def switch_ports(topology: Topology) -> dict[str, list[Interface]]:
    """Switch -> its interfaces in port order, in one pass over the topology."""
    ports: dict[str, list[Interface]] = {switch.name: [] for switch in topology.switches}
    for interface in topology.interfaces.values():
        if interface.node in ports:
            ports[interface.node].append(interface)
    for interfaces in ports.values():
        interfaces.sort(key=lambda interface: interface.port)
    return ports


def next_hops(topology: Topology, link_state: LinkState) -> NextHops:
    """Equal-cost next hops of every switch towards every other leaf.

    A leaf that cannot be reached from a switch is missing from that switch's map.
    """
    ports = switch_ports(topology)
    # Only live links between switches matter from here on.
    live = {
        name: [
            interface
            for interface in interfaces
            if topology.nodes[interface.peer_node].kind is NodeKind.SWITCH
            and link_state.up(interface)
        ]
        for name, interfaces in ports.items()
    }
    hops: NextHops = {name: {} for name in ports}
    for leaf in topology.prefixes:
        for switch, chosen in _towards(topology, leaf, live).items():
            hops[switch][leaf] = chosen
    return hops


def _towards(
    topology: Topology, leaf: str, live: Mapping[str, list[Interface]]
) -> dict[str, tuple[Interface, ...]]:
    """Equal-cost next hops towards one leaf, per switch that can reach it."""
    tiers = sorted(live, key=lambda name: topology.nodes[name].tier)
    tier_of = {name: topology.nodes[name].tier for name in tiers}
    distance = {leaf: 0}
    chosen: dict[str, tuple[Interface, ...]] = {}

    def settle(name: str, candidates: list[Interface]) -> None:
        reachable = [i for i in candidates if i.peer_node in distance]
        if reachable:
            nearest = min(distance[i.peer_node] for i in reachable)
            distance[name] = nearest + 1
            chosen[name] = tuple(i for i in reachable if distance[i.peer_node] == nearest)

    # Bottom up: switches that have the leaf below them.
    for name in tiers:
        if name != leaf:
            settle(name, [i for i in live[name] if tier_of[i.peer_node] < tier_of[name]])
    # Top down: all others climb towards one of those.
    for name in reversed(tiers):
        if name not in distance:
            settle(name, [i for i in live[name] if tier_of[i.peer_node] > tier_of[name]])
    return chosen


def nics_below(topology: Topology) -> dict[str, tuple[Interface, ...]]:
    """Leaf -> the NIC interfaces wired to it, in the order of the leaf's ports."""
    return {
        leaf: tuple(
            topology.interfaces[port.peer]
            for port in ports
            if topology.nodes[port.peer_node].kind is NodeKind.SERVER
        )
        for leaf, ports in switch_ports(topology).items()
        if leaf in topology.prefixes
    }
