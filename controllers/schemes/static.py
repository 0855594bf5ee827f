"""Static: the destination NIC alone decides the path (D-mod-K routing of folded Clos fabrics).

The NICs are numbered d = 0, 1, ... leaf by leaf. On the way up a switch with K up ports sends to
port d mod K; the tier above takes the next digit, (d div K) mod K', and so on (E. Zahavi, "D-Mod-K
Routing Providing Non-Blocking Traffic for Shift Permutations on Real Life Fat Trees", 2010). So the
NICs are dealt out over the spines in equal shares. Where there is a choice on the way down too, a
destination's traffic comes down through the switch that it would go up through.
"""

from __future__ import annotations

from collections.abc import Iterable

from controllers.entries import Entry
from controllers.routes import LinkState, choices_before, destinations
from controllers.schemes.base import (
    RoutingScheme,
    RoutingView,
    register_scheme,
    route,
    to_switch,
)


@register_scheme
class Static(RoutingScheme):
    """One entry per remote NIC where ports are to choose from, one per prefix where none are."""

    name = "static"

    def remote_entries(self, view: RoutingView, switch: str) -> Iterable[Entry]:
        """Deal the NICs of every other leaf out over the equal-cost ports."""
        topology = view.topology
        # Numbers stay what they are when links fail.
        healthy = destinations(topology, LinkState()).values()
        nics = [nic for destination in healthy for nic in destination.nics]
        numbers = {nic.name: number for number, nic in enumerate(nics)}
        tier = topology.nodes[switch].tier
        divisors = {up: choices_before(topology, tier, climbing=up) for up in (True, False)}
        for prefix, ports in view.hops[switch].items():
            if len(ports) == 1:
                yield route(topology, switch, prefix, to_switch(topology, ports[0]))
                continue
            divisor = divisors[ports[0] in view.up_ports[switch]]
            for nic in view.destinations[prefix].nics:
                port = ports[numbers[nic.name] // divisor % len(ports)]
                yield route(topology, switch, nic.address, to_switch(topology, port))
