"""Path pinning: the destination's slice, its downlink index on its leaf, decides the path.

Meta's first scheme after ECMP (SIGCOMM 2024, section 5.1). A job that has whole racks sends to
every slice equally and nothing collides; in fragmented racks several destinations share a slice,
hence an uplink. After an uplink failure its slices move to the other uplinks and collide there.
"""

from __future__ import annotations

from collections.abc import Iterable

from controllers.entries import Entry
from controllers.routes import choices_between, nics_below
from controllers.schemes.base import (
    RoutingScheme,
    RoutingView,
    register_scheme,
    route,
    to_switch,
)
from testbed.topology import Topology


@register_scheme
class PathPinning(RoutingScheme):
    """One entry per remote NIC where ports are to choose from, one per prefix where none are.

    On the way up a leaf with K uplinks sends slice s to uplink s mod K. Switches above a leaf have
    leaves for downlinks, so they pin by the number of the destination's leaf in the same way. On
    the way down a choice is made by what that tier is chosen by on the way up. The slice of a NIC
    with several ports is that of its first.
    """

    name = "path-pinning"

    def remote_entries(self, view: RoutingView, switch: str) -> Iterable[Entry]:
        """Pin every slice to a port, its own while that is up."""
        topology = view.topology
        slices = {
            nic.name: number
            for nics in nics_below(topology).values()
            for number, nic in enumerate(nics)
        }
        leaves = {prefix: number for number, prefix in enumerate(_prefixes(topology))}
        tier = topology.nodes[switch].tier
        for prefix, live in view.hops[switch].items():
            if len(live) == 1:
                yield route(topology, switch, prefix, to_switch(topology, live[0]))
                continue
            members = view.members(switch, prefix)
            by_tier = tier if live[0] in view.up_ports[switch] else tier - 2
            divisor = choices_between(topology, 2, by_tier)
            for nic in view.destinations[prefix].nics:
                leaf = leaves[topology.prefixes[nic.peer_node]]
                digit = leaf // divisor if by_tier > 1 else slices[nic.name]
                port = members[digit % len(members)]
                if port not in live:
                    port = live[digit % len(live)]
                yield route(topology, switch, nic.address, to_switch(topology, port))


def _prefixes(topology: Topology) -> list[str]:
    """The leaves' prefixes, each once; leaves of a dual-ToR set share one."""
    return list(dict.fromkeys(topology.prefixes.values()))
