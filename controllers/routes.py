"""Up/down next hops in a tiered fabric: which ports lead towards which destination.

A packet climbs until the destination is below it and then descends, never up again; so no
forwarding loop can exist, whatever choice is made among the ports given here. Works for any number
of tiers, NICs with several ports, planes and failed links.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from testbed.topology import Interface, NodeKind, Topology

NextHops = dict[str, dict[str, tuple[Interface, ...]]]
"""Switch -> destination prefix -> the switch's equal-cost ports towards it, in port order."""


@dataclass(frozen=True, slots=True)
class LinkState:
    """Which links are down, as names of interfaces; either end takes the link down."""

    failed: frozenset[str] = field(default_factory=frozenset)

    def up(self, interface: Interface) -> bool:
        """Whether the link at an interface carries packets."""
        return interface.name not in self.failed and interface.peer not in self.failed


@dataclass(frozen=True, slots=True)
class Destination:
    """What switches have a route to: NICs that hang below the same leaves.

    ``leaves`` deliver to all of ``nics``, which are given by the first interface of each.
    """

    prefix: str
    leaves: tuple[str, ...]
    nics: tuple[Interface, ...]


def switch_ports(topology: Topology) -> dict[str, list[Interface]]:
    """Switch -> its interfaces in port order, in one pass over the topology."""
    ports: dict[str, list[Interface]] = {switch.name: [] for switch in topology.switches}
    for interface in topology.interfaces.values():
        if interface.node in ports:
            ports[interface.node].append(interface)
    for interfaces in ports.values():
        interfaces.sort(key=lambda interface: interface.port)
    return ports


def destinations(topology: Topology, link_state: LinkState) -> dict[str, Destination]:
    """All destinations by prefix: those of the leaves, then single NICs.

    Leaves that share a prefix (dual-ToR) announce it while they have a NIC. A NIC that not all of
    these leaves can deliver to, because an access link is down, is an own /32 (HPN makes ARP
    entries BGP host routes for that). What has no live link is in no destination's ``leaves``.
    """
    attachments: dict[str, dict[Interface, tuple[str, ...]]] = {
        prefix: {} for prefix in topology.prefixes.values()
    }
    for rank in topology.ranks:
        ports = [topology.interfaces[name] for name in rank.interfaces]
        prefix = topology.prefixes[ports[0].peer_node]
        attachments[prefix][ports[0]] = tuple(p.peer_node for p in ports if link_state.up(p))
    found: dict[str, Destination] = {}
    single: dict[str, Destination] = {}
    for prefix, nics in attachments.items():
        announcing = {leaf for leaves in nics.values() for leaf in leaves}
        shared = tuple(n for n, p in topology.prefixes.items() if p == prefix and n in announcing)
        alike = tuple(nic for nic, leaves in nics.items() if set(leaves) == announcing)
        found[prefix] = Destination(prefix, shared, alike)
        for nic, leaves in nics.items():
            if leaves and set(leaves) != announcing:
                host = str(ipaddress.IPv4Network(nic.address))
                single[host] = Destination(host, leaves, (nic,))
    return found | single


def next_hops(
    topology: Topology,
    link_state: LinkState,
    towards: Iterable[Destination] | None = None,
) -> NextHops:
    """Equal-cost next hops of every switch towards every destination that it does not deliver to.

    ``towards`` are the destinations, by default those of the same link state. One that cannot be
    reached from a switch is missing from that switch's map.
    """
    if towards is None:
        towards = destinations(topology, link_state).values()
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
    found: dict[tuple[str, ...], dict[str, tuple[Interface, ...]]] = {}
    for destination in towards:
        leaves = destination.leaves
        if leaves not in found:
            found[leaves] = _towards(topology, leaves, live)
        for switch, chosen in found[leaves].items():
            hops[switch][destination.prefix] = chosen
    return hops


def _towards(
    topology: Topology, leaves: tuple[str, ...], live: Mapping[str, list[Interface]]
) -> dict[str, tuple[Interface, ...]]:
    """Equal-cost next hops towards the nearest of some leaves, per switch that can reach one."""
    tiers = sorted(live, key=lambda name: topology.nodes[name].tier)
    tier_of = {name: topology.nodes[name].tier for name in tiers}
    distance = dict.fromkeys(leaves, 0)
    chosen: dict[str, tuple[Interface, ...]] = {}

    def settle(name: str, candidates: list[Interface]) -> None:
        reachable = [i for i in candidates if i.peer_node in distance]
        if reachable:
            nearest = min(distance[i.peer_node] for i in reachable)
            distance[name] = nearest + 1
            chosen[name] = tuple(i for i in reachable if distance[i.peer_node] == nearest)

    # Bottom up: switches that have a leaf below them.
    for name in tiers:
        if name not in leaves:
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


def choices_between(topology: Topology, first: int, end: int) -> int:
    """Number of distinct up port choices in the tiers ``first`` .. ``end`` - 1.

    That is the product of the widest fans of up ports in these tiers; 1 for no tier at all.
    """
    up_ports: dict[int, dict[str, int]] = {}
    for port in topology.interfaces.values():
        own, peer = topology.nodes[port.node].tier, topology.nodes[port.peer_node].tier
        if first <= own < end and peer > own:
            counts = up_ports.setdefault(own, {})
            counts[port.node] = counts.get(port.node, 0) + 1
    product = 1
    for counts in up_ports.values():
        product *= max(counts.values())
    return product


def choices_before(topology: Topology, tier: int, *, climbing: bool) -> int:
    """What a tier's switches divide a destination's number by to get the digit they choose by.

    On the way up each tier has a digit of its own. On the way down a switch chooses among those of
    the tier below by the digit by which that tier is chosen on the way up, so that the destinations
    below one leaf arrive from different switches.
    """
    return choices_between(topology, 1, tier if climbing else tier - 2)
