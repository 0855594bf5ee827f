"""Which links may carry some traffic: those on equal-cost paths, whatever a scheme chooses."""

from __future__ import annotations

from collections.abc import Iterable

from controllers.routes import LinkState, destinations, next_hops
from testbed.topology import Topology


def equal_cost_interfaces(topology: Topology, pairs: Iterable[tuple[int, int]]) -> set[str]:
    """The transmitting interfaces of switches on any equal-cost path between ranks.

    ``pairs`` are (source, destination). All links count as up, and a NIC may send from any port.
    """
    hops = next_hops(topology, LinkState())
    prefix_of = {
        nic.address: destination.prefix
        for destination in destinations(topology, LinkState()).values()
        for nic in destination.nics
    }
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    for source, destination in set(pairs):
        prefix = prefix_of[topology.nic(destination).address]
        last = topology.nic_ports(destination)
        found.update(nic.peer for nic in last)
        waiting = [nic.peer_node for nic in topology.nic_ports(source)]
        while waiting:
            switch = waiting.pop()
            if (switch, prefix) not in seen:
                seen.add((switch, prefix))
                for port in hops[switch].get(prefix, ()):
                    found.add(port.name)
                    waiting.append(port.peer_node)
    return found
