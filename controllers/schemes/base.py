"""What a routing scheme is, and the layer-3 entries that all schemes share.

A scheme is a pure function of the topology, the flows it is told about and the state of the links;
it computes entries and sends nothing. The same function plans a fabric on paper and programs one.
"""

from __future__ import annotations

import abc
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from controllers.entries import (
    Action,
    DecrementTtl,
    Drop,
    Entry,
    Output,
    SetEthDst,
    SetEthSrc,
)
from controllers.hashing import FiveTuple
from controllers.routes import LinkState, NextHops, next_hops, nics_below, switch_ports
from testbed.topology import Interface, NodeKind, Topology

Entries = dict[str, list[Entry]]
"""Switch name -> its entries."""

FORWARDING_TABLE = 0
MEMBER_TABLE = 1
"""Link number -> port, as the member table of a switch's ECMP group."""

ETH_TYPE_IPV4 = 0x0800

_PREFIX_PRIORITY = 1000
"""Priority of a /0. A prefix adds its length, which makes the lookup longest-prefix match."""


class SchemeParameters(BaseModel):
    """Base of every scheme's parameters; subclasses add the fields of a scenario's `routing`."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class RoutingView:
    """What a scheme looks at, computed once for all switches.

    ``hops`` are every switch's equal-cost ports towards each leaf that it can reach; ``nics`` are
    the NIC interfaces below each leaf.
    """

    topology: Topology
    flows: Sequence[FiveTuple]
    hops: NextHops
    nics: Mapping[str, tuple[Interface, ...]]


class RoutingScheme(abc.ABC):
    """A way to choose among equal-cost ports; subclasses say how by ``remote_entries``.

    ``seed`` is the scenario's; a scheme that hashes derives every switch's own seed from it.
    """

    name: ClassVar[str]
    parameters_type: ClassVar[type[SchemeParameters]] = SchemeParameters

    def __init__(self, parameters: Any, *, seed: int = 0) -> None:
        self.parameters = parameters
        self.seed = seed

    def entries(
        self,
        topology: Topology,
        flows: Sequence[FiveTuple] = (),
        link_state: LinkState | None = None,
    ) -> Entries:
        """All entries of every switch, in a stable order.

        Layer-3 forwarding: IPv4 to a NIC below the switch goes to that NIC, IPv4 to another leaf's
        prefix goes where the scheme sends it, everything else is dropped; nothing is ever flooded.
        ``flows`` are the flows to come, for schemes that place them; others ignore it.
        """
        state = link_state or LinkState()
        view = RoutingView(topology, flows, next_hops(topology, state), nics_below(topology))
        return {
            switch: [
                *self._local_entries(topology, switch, ports, state),
                *self.remote_entries(view, switch),
                Entry(FORWARDING_TABLE, 0, {}, (Drop(),)),
            ]
            for switch, ports in switch_ports(topology).items()
        }

    @abc.abstractmethod
    def remote_entries(self, view: RoutingView, switch: str) -> Iterable[Entry]:
        """Entries of a switch for NICs that are not wired to it."""

    def _local_entries(
        self, topology: Topology, switch: str, ports: Iterable[Interface], state: LinkState
    ) -> Iterable[Entry]:
        for port in ports:
            if topology.nodes[port.peer_node].kind is NodeKind.SERVER and state.up(port):
                nic = topology.interfaces[port.peer]
                yield route(topology, switch, nic.address, (SetEthDst(nic.mac), Output(port.port)))


def to_switch(topology: Topology, port: Interface) -> tuple[Action, ...]:
    """Send the packet to the switch at the other end of a port."""
    return (SetEthDst(topology.nodes[port.peer_node].router_mac), Output(port.port))


def route(topology: Topology, switch: str, prefix: str, actions: Iterable[Action]) -> Entry:
    """An entry for IPv4 packets to an address or prefix, in longest-prefix-match order.

    Does what a router does to every packet (TTL, its own MAC address as the source) and then
    ``actions``.
    """
    network = ipaddress.IPv4Network(prefix)
    return Entry(
        FORWARDING_TABLE,
        _PREFIX_PRIORITY + network.prefixlen,
        {"eth_type": ETH_TYPE_IPV4, "ipv4_dst": str(network)},
        (DecrementTtl(), SetEthSrc(topology.nodes[switch].router_mac), *actions),
    )


_registry: dict[str, type[RoutingScheme]] = {}


def register_scheme(scheme: type[RoutingScheme]) -> type[RoutingScheme]:
    """Class decorator: make a scheme available under its ``name``."""
    _registry[scheme.name] = scheme
    return scheme


def scheme_names() -> list[str]:
    """Names of all registered schemes, sorted."""
    return sorted(_registry)


def create_scheme(
    name: str, parameters: Mapping[str, Any] | None = None, *, seed: int = 0
) -> RoutingScheme:
    """The scheme of that name with validated parameters.

    Raises ValueError for an unknown name (it lists the known ones) and pydantic.ValidationError,
    which is a ValueError too, for bad parameters.
    """
    scheme = _registry.get(name)
    if scheme is None:
        raise ValueError(
            f"routing scheme {name!r} is unknown; allowed: {', '.join(scheme_names())}"
        )
    return scheme(scheme.parameters_type.model_validate(dict(parameters or {})), seed=seed)
