"""Path pinning: the destination's slice, its downlink index on its leaf, decides the path.

Meta's first scheme after ECMP (SIGCOMM 2024, section 5.1). A job that has whole racks sends to
every slice equally and nothing collides; in fragmented racks several destinations share a slice,
hence an uplink. After an uplink failure its slices move to the other uplinks and collide there.
"""

from __future__ import annotations

from collections.abc import Iterable

from controllers.entries import Entry
from controllers.routes import choices_before, nics_below
from controllers.schemes.base import (
    RoutingScheme,
    RoutingView,
    register_scheme,
    route,
    to_switch,
)


@register_scheme
class PathPinning(RoutingScheme):
    """One entry per remote NIC where ports are to choose from, one per prefix where none are.

    On the way up a leaf with K uplinks sends slice s to uplink s mod K; a tier above takes the next
    digit of s. The slice of a NIC with several ports is that of its first.
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
        tier = topology.nodes[switch].tier
        divisors = {up: choices_before(topology, tier, climbing=up) for up in (True, False)}
        for prefix, live in view.hops[switch].items():
            if len(live) == 1:
                yield route(topology, switch, prefix, to_switch(topology, live[0]))
                continue
            members = view.members(switch, prefix)
            divisor = divisors[live[0] in view.up_ports[switch]]
            for nic in view.destinations[prefix].nics:
                digit = slices[nic.name] // divisor
                port = members[digit % len(members)]
                if port not in live:
                    port = live[digit % len(live)]
                yield route(topology, switch, nic.address, to_switch(topology, port))
