"""No forwarding loop and no black hole: every topology, scheme, single link and switch failure.

All hashes and labels are explored, not sampled. Which NIC can still be reached is found out
independently, by climbing and descending through the links that are left.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import pytest

from controllers.exploration import FabricExplorer
from controllers.flows import Flow
from controllers.hashing import FiveTuple
from controllers.routes import LinkState
from controllers.schemes import Entries, RoutingScheme, create_scheme, scheme_class, scheme_names
from controllers.table import BlackHoleError, RoutingError
from testbed.topology import Interface, NodeKind, Topology, create_topology, topology_kinds


def single_failures(topology: Topology) -> Iterator[frozenset[str]]:
    """Nothing, then every link, then all links of every switch."""
    yield frozenset()
    for interface in topology.interfaces.values():
        if interface.name < interface.peer:
            yield frozenset({interface.name})
    for switch in topology.switches:
        yield frozenset(port.name for port in topology.interfaces_of(switch.name))


def reachable_leaves(topology: Topology, state: LinkState, leaf: str) -> set[str]:
    """Leaves to which a packet can go from a leaf by climbing first and then descending."""

    def closure(start: set[str], step: int) -> set[str]:
        seen, frontier = set(start), set(start)
        while frontier:
            frontier = {
                port.peer_node
                for name in frontier
                for port in topology.interfaces_of(name)
                if state.up(port)
                and (topology.nodes[port.peer_node].tier - topology.nodes[name].tier) * step > 0
                and topology.nodes[port.peer_node].kind is NodeKind.SWITCH
            } - seen
            seen |= frontier
        return seen

    return closure(closure({leaf}, 1), -1) & set(topology.prefixes)


def all_flows(topology: Topology) -> list[Flow]:
    """One flow from every NIC interface to every other NIC, for the schemes that place them."""
    return [
        Flow(FiveTuple(sender.address, topology.nic(to.rank).address, 50000), 0, sender.name, 1)
        for source in topology.ranks
        for sender in topology.nic_ports(source.rank)
        for to in topology.ranks
        if to is not source
    ]


def check(topology: Topology, state: LinkState, explorer: FabricExplorer, *, tagged: bool) -> None:
    """Every NIC interface with a link reaches every NIC that it can reach, and no other."""
    live: dict[int, list[Interface]] = {
        rank.rank: [port for port in topology.nic_ports(rank.rank) if state.up(port)]
        for rank in topology.ranks
    }
    beyond = {leaf: reachable_leaves(topology, state, leaf) for leaf in topology.prefixes}
    for source, destination in permutations(live, 2):
        leaves = {port.peer_node for port in live[destination]}
        nic = topology.nic(destination)
        for sender in live[source]:
            if beyond[sender.peer_node] & leaves:
                explorer.check(sender, nic, tagged=tagged)
            else:
                with pytest.raises(BlackHoleError):
                    explorer.check(sender, nic, tagged=tagged)


def different_schemes(topology: Topology, flows: list[Flow]) -> list[RoutingScheme]:
    """One of those that differ in their engines or source ports only.

    They compute their entries by the same function, and get the same.
    """
    found: dict[object, tuple[RoutingScheme, Entries]] = {}
    for name in scheme_names():
        scheme = create_scheme(name, seed=1)
        entries = scheme.entries(topology, flows)
        function = type(scheme).remote_entries
        if function not in found or found[function][1] != entries:
            found[function if function not in found else name] = scheme, entries
    return [scheme for scheme, _ in found.values()]


FAMILIES: list[tuple[str, dict[str, object]]] = [
    *((kind, {}) for kind in sorted(topology_kinds()) if kind not in ("file", "hpn")),
    # hpn7-pod is HPN with planes; here its ToRs of a set share their spines
    ("hpn", {"dual_plane": False, "gpus_per_server": 2}),
    ("hpn", {"dual_tor": False, "pods": 2, "cores": 2, "gpus_per_server": 2}),
    ("leaf-spine", {"leaves": 3, "spines": 3, "servers_per_leaf": 2}),
    ("rail-optimised", {"storage": "shared"}),
]
"""Every family by its defaults, and more. A file only holds a fabric of one of them."""


def size(value: object) -> str:
    if isinstance(value, dict):
        return ",".join(f"{name}={setting}" for name, setting in value.items()) or "default"
    return str(value)


@pytest.mark.parametrize(("kind", "parameters"), FAMILIES, ids=size)
def test_single_failures_leave_no_loop_and_no_black_hole(
    kind: str, parameters: dict[str, object]
) -> None:
    topology = create_topology(kind, **parameters)
    flows = all_flows(topology)
    schemes = different_schemes(topology, flows)
    healthy: dict[str, FabricExplorer] = {}
    for failed in single_failures(topology):
        state = LinkState(failed)
        for scheme in schemes:
            entries = scheme.entries(topology, flows, state)
            explorer = FabricExplorer(topology, entries, before=healthy.get(scheme.name))
            healthy.setdefault(scheme.name, explorer)
            try:
                for tagged in {False, scheme.labelled}:
                    check(topology, state, explorer, tagged=tagged)
            except RoutingError as error:
                pytest.fail(f"{scheme.name}, down: {', '.join(sorted(failed)) or 'none'}: {error}")


def test_every_scheme_says_whether_it_labels() -> None:
    labelled = {name for name in scheme_names() if scheme_class(name).labelled}
    assert labelled == {"adaptive", "e-ecmp", "flowlet", "spray"}
