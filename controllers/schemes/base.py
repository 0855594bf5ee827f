"""What a routing scheme is, and the layer-3 entries that all schemes share.

A scheme is a pure function of the topology, the flows it is told about and the state of the links;
it computes entries and sends nothing. The same function plans a fabric on paper and programs one.
"""

from __future__ import annotations

import abc
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from controllers.entries import (
    TAGGED,
    Action,
    DecrementTtl,
    Drop,
    Entry,
    MatchValue,
    Output,
    PopVlan,
    SetEthDst,
    SetEthSrc,
)
from controllers.flows import Flow
from controllers.labels import LabelSettings
from controllers.routes import (
    Destination,
    LinkState,
    NextHops,
    destinations,
    next_hops,
    switch_ports,
)
from testbed.topology import Interface, NodeKind, Topology

Entries = dict[str, list[Entry]]
"""Switch name -> its entries."""

FORWARDING_TABLE = 0
MEMBER_TABLE = 1
"""Link number -> port, as the member table of a switch's ECMP group."""

ETH_TYPE_IPV4 = 0x0800

_PREFIX_PRIORITY = 1000
"""Priority of a /0. A prefix adds its length, which makes the lookup longest-prefix match."""

_POLICY_PRIORITY = 2000
"""The same for routes that depend on the ingress port; they override the others."""


class SchemeParameters(BaseModel):
    """Base of every scheme's parameters; subclasses add the fields of a scenario's `routing`."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class RoutingView:
    """What a scheme looks at, computed once for all switches.

    ``destinations`` are by prefix. ``hops`` are every switch's equal-cost ports towards each
    destination that it can reach, and ``healthy_hops`` what they are while all links are up.
    ``up_ports`` are every switch's ports to the tiers above, whether up or down.
    """

    topology: Topology
    flows: Sequence[Flow]
    link_state: LinkState
    destinations: Mapping[str, Destination]
    hops: NextHops
    healthy_hops: NextHops
    up_ports: Mapping[str, tuple[Interface, ...]]

    @classmethod
    def of(
        cls, topology: Topology, flows: Sequence[Flow] = (), link_state: LinkState | None = None
    ) -> RoutingView:
        """Look at a topology under a link state, all links up by default."""
        state = link_state or LinkState()
        found = destinations(topology, state)
        hops = next_hops(topology, state, found.values())
        healthy = next_hops(topology, LinkState(), found.values()) if state.failed else hops
        nodes = topology.nodes
        up_ports = {
            switch: tuple(p for p in ports if nodes[p.peer_node].tier > nodes[switch].tier)
            for switch, ports in switch_ports(topology).items()
        }
        return cls(topology, flows, state, found, hops, healthy, up_ports)

    def members(self, switch: str, prefix: str) -> tuple[Interface, ...]:
        """The ports among which a switch would choose if all links were up.

        On the way up these are all its up ports, so that a choice does not depend on which
        destinations the failures have cut off from some of them.
        """
        live = self.hops[switch][prefix]
        if live[0] in self.up_ports[switch]:
            return self.up_ports[switch]
        return self.healthy_hops[switch].get(prefix, live)

    @property
    def single_nics(self) -> frozenset[str]:
        """Prefixes of the destinations that are one NIC with a failed access link."""
        return frozenset(self.destinations) - frozenset(self.topology.prefixes.values())

    def destination_of(self, nic: Interface) -> Destination:
        """The destination that a NIC belongs to, given by any of its interfaces."""
        single = self.destinations.get(str(_network(nic.address)))
        return single or self.destinations[self.topology.prefixes[nic.peer_node]]


class RoutingScheme(abc.ABC):
    """A way to choose among equal-cost ports; subclasses say how by ``remote_entries``.

    ``seed`` is the scenario's; a scheme that hashes derives every switch's own seed from it.
    """

    name: ClassVar[str]
    parameters_type: ClassVar[type[SchemeParameters]] = SchemeParameters
    labelled: ClassVar[bool] = False
    """Whether the leaves' hash engines put labels on packets, which the last leaf takes off."""

    def __init__(self, parameters: Any, *, seed: int = 0) -> None:
        self.parameters = parameters
        self.seed = seed

    @property
    def recompute_interval(self) -> float | None:
        """Seconds of emulated time between computations; None: only when links change."""
        return None

    def entries(
        self,
        topology: Topology,
        flows: Sequence[Flow] = (),
        link_state: LinkState | None = None,
    ) -> Entries:
        """All entries of every switch, in a stable order.

        Layer-3 forwarding: IPv4 to a NIC below the switch goes to that NIC, IPv4 to another
        destination goes where the scheme sends it, everything else is dropped; nothing is ever
        flooded. ``flows`` are the flows to come, for schemes that place them; others ignore it.
        """
        view = RoutingView.of(topology, flows, link_state)
        return {
            switch: [
                *self._local_entries(view, switch, ports),
                *self.remote_entries(view, switch),
                Entry(FORWARDING_TABLE, 0, {}, (Drop(),)),
            ]
            for switch, ports in switch_ports(topology).items()
        }

    @abc.abstractmethod
    def remote_entries(self, view: RoutingView, switch: str) -> Iterable[Entry]:
        """Entries of a switch for NICs that are not wired to it."""

    def label_settings(
        self, topology: Topology, link_state: LinkState | None = None
    ) -> dict[str, LabelSettings]:
        """Leaf -> what its hash engine does; empty for a scheme that needs none."""
        return {}

    def label(self, topology: Topology, switch: str, flow: Flow) -> int | None:
        """The label that a leaf's engine puts on a flow; None without one, or if it varies."""
        return None

    def possible_labels(
        self, topology: Topology, switch: str, flow: Flow, link_state: LinkState | None = None
    ) -> tuple[int | None, ...]:
        """Labels a leaf may put on a flow's packets: at least one for every path they may take."""
        return (self.label(topology, switch, flow),)

    def choose_source_ports(
        self, topology: Topology, flows: Sequence[Flow]
    ) -> dict[tuple[int, bool], int]:
        """(connection, reverse) -> UDP source port, for a scheme that steers flows by it."""
        return {}

    def _local_entries(
        self, view: RoutingView, switch: str, ports: Iterable[Interface]
    ) -> Iterable[Entry]:
        topology = view.topology
        for port in ports:
            is_nic = topology.nodes[port.peer_node].kind is NodeKind.SERVER
            if is_nic and view.link_state.up(port):
                nic = topology.interfaces[port.peer]
                deliver = (SetEthDst(nic.mac), Output(port.port))
                yield route(topology, switch, nic.address, deliver)
                if self.labelled:
                    yield untag(route(topology, switch, nic.address, deliver))


def to_switch(topology: Topology, port: Interface) -> tuple[Action, ...]:
    """Send the packet to the switch at the other end of a port."""
    return (SetEthDst(topology.nodes[port.peer_node].router_mac), Output(port.port))


def route(
    topology: Topology,
    switch: str,
    prefix: str,
    actions: Iterable[Action],
    *,
    in_port: int | None = None,
) -> Entry:
    """An entry for IPv4 packets to an address or prefix, in longest-prefix-match order.

    Does what a router does to every packet (TTL, its own MAC address as the source) and then
    ``actions``. With ``in_port`` it is for packets from that port only and comes before all routes
    without one.
    """
    network = _network(prefix)
    match: dict[str, MatchValue] = {"eth_type": ETH_TYPE_IPV4, "ipv4_dst": str(network)}
    if in_port is not None:
        match["in_port"] = in_port
    return Entry(
        FORWARDING_TABLE,
        (_PREFIX_PRIORITY if in_port is None else _POLICY_PRIORITY) + network.prefixlen,
        match,
        (DecrementTtl(), SetEthSrc(topology.nodes[switch].router_mac), *actions),
    )


def override(host_route: Entry) -> Entry:
    """A /32 route again, before those for its prefix that depend on the ingress port."""
    return replace(host_route, priority=_POLICY_PRIORITY + 31)


@lru_cache(maxsize=65536)
def _network(prefix: str) -> ipaddress.IPv4Network:
    return ipaddress.IPv4Network(prefix)


def untag(entry: Entry) -> Entry:
    """The same entry for packets that have a tag, which it removes; goes before the original."""
    return Entry(
        entry.table,
        entry.priority + 1,
        {**entry.match, "vlan_vid": TAGGED},
        (PopVlan(), *entry.actions),
    )


_registry: dict[str, type[RoutingScheme]] = {}


def register_scheme(scheme: type[RoutingScheme]) -> type[RoutingScheme]:
    """Class decorator: make a scheme available under its ``name``."""
    if scheme.name in _registry:
        raise ValueError(f"routing scheme {scheme.name!r} is registered twice")
    _registry[scheme.name] = scheme
    return scheme


def scheme_names() -> list[str]:
    """Names of all registered schemes, sorted."""
    return sorted(_registry)


def scheme_class(name: str) -> type[RoutingScheme]:
    """The scheme of that name. Raises ValueError; the message lists the known ones."""
    scheme = _registry.get(name)
    if scheme is None:
        raise ValueError(
            f"routing scheme {name!r} is unknown; allowed: {', '.join(scheme_names())}"
        )
    return scheme


def create_scheme(
    name: str, parameters: Mapping[str, Any] | None = None, *, seed: int = 0
) -> RoutingScheme:
    """The scheme of that name with validated parameters.

    Raises ValueError for an unknown name (it lists the known ones) and pydantic.ValidationError,
    which is a ValueError too, for bad parameters.
    """
    scheme = scheme_class(name)
    return scheme(scheme.parameters_type.model_validate(dict(parameters or {})), seed=seed)
