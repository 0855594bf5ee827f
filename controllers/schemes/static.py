"""Static: the destination NIC alone decides the path (D-mod-K routing of folded Clos fabrics).

The NICs are numbered d = 0, 1, ... leaf by leaf. On the way up a switch with K up ports sends to
port d mod K; the tier above takes the next digit, (d div K) mod K', and so on (E. Zahavi, "D-Mod-K
Routing Providing Non-Blocking Traffic for Shift Permutations on Real Life Fat Trees", 2010). So the
NICs are dealt out over the spines in equal shares.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from controllers.entries import Entry
from controllers.schemes.base import (
    RoutingScheme,
    RoutingView,
    register_scheme,
    route,
    to_switch,
)
from testbed.topology import Topology


@register_scheme
class Static(RoutingScheme):
    """One entry per remote NIC where ports are to choose from, one per prefix where none are."""

    name = "static"

    def remote_entries(self, view: RoutingView, switch: str) -> Iterable[Entry]:
        """Deal the NICs of every other leaf out over the equal-cost ports."""
        topology = view.topology
        counts = [len(nics) for nics in view.nics.values()]
        first_number = dict(zip(view.nics, accumulate(counts, initial=0), strict=False))
        divisor = _lower_digits(topology, topology.nodes[switch].tier)
        for leaf, ports in view.hops[switch].items():
            if len(ports) == 1:
                prefix = topology.prefixes[leaf]
                yield route(topology, switch, prefix, to_switch(topology, ports[0]))
                continue
            for number, nic in enumerate(view.nics[leaf], start=first_number[leaf]):
                port = ports[number // divisor % len(ports)]
                yield route(topology, switch, nic.address, to_switch(topology, port))


def _lower_digits(topology: Topology, tier: int) -> int:
    """Number of distinct choices made in the tiers below: the product of their up port counts."""
    up_ports: dict[int, dict[str, int]] = {}
    for port in topology.interfaces.values():
        own, peer = topology.nodes[port.node].tier, topology.nodes[port.peer_node].tier
        if 0 < own < tier and peer > own:
            counts = up_ports.setdefault(own, {})
            counts[port.node] = counts.get(port.node, 0) + 1
    product = 1
    for counts in up_ports.values():
        product *= max(counts.values())
    return product
