"""What is wired to what, as plain data: nodes, interfaces, links, addresses.

Nothing here imports from the rest of the project, so that routing and traffic may read it too.
Rates are in bit/s and times in seconds, both emulated (real hardware units, before dilation).
"""

from __future__ import annotations

import abc
import ipaddress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

IFINDEX_BASE = 10_000
"""First explicit interface index; the kernel's own counters stay far below."""

INTERFACE_NAME_LIMIT = 15
"""IFNAMSIZ - 1 (linux/if.h)."""

SWITCH_PORT_LIMIT = 256
"""More ports than any single-chip switch in the field has at these rates."""

ROCE_MTU = 4200
"""IP MTU that carries a 4096-byte RoCE payload with every header (NVIDIA and Meta use 4200)."""


class TopologyError(ValueError):
    """The topology cannot be built; the message names the field, the value and what is allowed."""


class NodeKind(Enum):
    """What a node is."""

    SERVER = "server"
    SWITCH = "switch"


@dataclass(frozen=True, slots=True)
class Node:
    """A switch or a server.

    ``tier`` counts from the servers: 0 server, 1 leaf, 2 spine. ``index`` counts from 0 within
    its tier; names count from 1 (``leaf1``, ``spine1``, ``server1``). ``datapath_id`` and
    ``router_mac`` are set for switches only.
    """

    name: str
    kind: NodeKind
    tier: int
    index: int
    datapath_id: int = 0
    router_mac: str = ""


@dataclass(frozen=True, slots=True)
class Interface:
    """One end of a link; its transmit queue is a port of the switch model.

    ``rate`` is the transmit rate in bit/s. ``port`` is the OpenFlow port number on a switch and 0
    on a server. ``address`` is set on NIC interfaces only.
    """

    name: str
    node: str
    ifindex: int
    mac: str
    peer: str
    peer_node: str
    rate: float
    port: int = 0
    address: str = ""


@dataclass(frozen=True, slots=True)
class Rank:
    """One GPU and its NIC. ``interfaces`` are the names of the NIC's ports, first one default."""

    rank: int
    local_rank: int
    server: str
    interfaces: tuple[str, ...]


@dataclass(frozen=True)
class Topology:
    """A whole fabric. Lookups are by name; all sequences are in a stable order.

    ``hop_latency`` is the latency a packet meets at each switch plus the wire after it, and
    ``nic_latency`` what the two NICs and the first wire add once per packet, both in seconds of
    emulated time.
    """

    name: str
    nodes: dict[str, Node]
    interfaces: dict[str, Interface]
    ranks: tuple[Rank, ...]
    hop_latency: float
    nic_latency: float
    prefixes: dict[str, str] = field(default_factory=dict)
    """Leaf switch name -> IPv4 prefix of the NICs below it."""

    @property
    def switches(self) -> list[Node]:
        """All switches, in build order."""
        return [n for n in self.nodes.values() if n.kind is NodeKind.SWITCH]

    @property
    def servers(self) -> list[Node]:
        """All servers, in rank order."""
        return [n for n in self.nodes.values() if n.kind is NodeKind.SERVER]

    def interfaces_of(self, node: str) -> list[Interface]:
        """Interfaces of a node in port order."""
        return [i for i in self.interfaces.values() if i.node == node]

    def nic(self, rank: int, port: int = 0) -> Interface:
        """The NIC interface of a rank."""
        return self.interfaces[self.ranks[rank].interfaces[port]]

    def rank_of_address(self, address: str) -> int:
        """The rank whose NIC owns an IPv4 address. Raises KeyError."""
        for rank in self.ranks:
            if any(self.interfaces[name].address == address for name in rank.interfaces):
                return rank.rank
        raise KeyError(address)

    def leaf_of(self, rank: int, port: int = 0) -> str:
        """Name of the leaf switch that a rank's NIC port is wired to."""
        return self.nic(rank, port).peer_node

    def switch_hops(self, source: int, destination: int) -> int:
        """Number of switches on a shortest path between two ranks' first NIC ports."""
        return 1 if self.leaf_of(source) == self.leaf_of(destination) else 3

    def one_way_latency(self, switch_hops: int) -> float:
        """Propagation and switching time in seconds for a path over so many switches."""
        return self.nic_latency + switch_hops * self.hop_latency


class TopologyParameters(BaseModel):
    """Base of every topology's parameters; subclasses add the fields of a scenario's `topology`."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TopologyKind(abc.ABC):
    """A family of topologies, registered by ``name``; one file each."""

    name: ClassVar[str]
    parameters: ClassVar[type[TopologyParameters]]

    @abc.abstractmethod
    def build(self, parameters: Any) -> Topology:
        """Return the topology. Raises TopologyError."""


_registry: dict[str, type[TopologyKind]] = {}


def register_topology(kind: type[TopologyKind]) -> type[TopologyKind]:
    """Class decorator: make a topology family available under its ``name``."""
    _registry[kind.name] = kind
    return kind


def topology_kinds() -> dict[str, type[TopologyKind]]:
    """All registered topology families by name."""
    return dict(_registry)


class TopologyBuilder:
    """Collects nodes and links and hands out names, ports, addresses and interface indices."""

    def __init__(self, name: str, *, hop_latency: float, nic_latency: float) -> None:
        self._name = name
        self._hop_latency = hop_latency
        self._nic_latency = nic_latency
        self._nodes: dict[str, Node] = {}
        self._interfaces: dict[str, Interface] = {}
        self._ports: dict[str, int] = {}
        self._ranks: list[Rank] = []
        self._prefixes: dict[str, str] = {}
        self._hosts_below: dict[str, int] = {}

    def switch(self, stem: str, *, tier: int, index: int) -> str:
        """Add a switch named ``stem`` + (index + 1)."""
        name = f"{stem}{index + 1}"
        number = len([n for n in self._nodes.values() if n.kind is NodeKind.SWITCH]) + 1
        self._nodes[name] = Node(
            name,
            NodeKind.SWITCH,
            tier,
            index,
            datapath_id=number,
            router_mac=f"02:01:00:00:{number >> 8:02x}:{number & 255:02x}",
        )
        if tier == 1:
            self._prefixes[name] = f"10.{index + 1}.0.0/16"
        return name

    def server(self, index: int) -> str:
        """Add a server."""
        name = f"server{index + 1}"
        self._nodes[name] = Node(name, NodeKind.SERVER, 0, index)
        return name

    def link(self, lower: str, upper: str, *, up_rate: float, down_rate: float) -> None:
        """Wire two switches; ``up_rate`` is what ``lower`` transmits at."""
        self._wire(f"{lower}-{upper}", lower, up_rate, f"{upper}-{lower}", upper, down_rate)

    def rank(self, server: str, local_rank: int, leaves: list[str], *, rate: float) -> int:
        """Add a GPU with one NIC port to each of ``leaves``; returns its rank."""
        number = len(self._ranks)
        names = []
        for leaf in leaves:
            slot = self._hosts_below.get(leaf, 0)
            self._hosts_below[leaf] = slot + 1
            leaf_number = self._nodes[leaf].index + 1
            address = f"10.{leaf_number}.{slot // 250}.{slot % 250 + 1}"
            name = f"rank{number}-{leaf}"
            self._wire(name, server, rate, f"{leaf}-rank{number}", leaf, rate, address=address)
            names.append(name)
        self._ranks.append(Rank(number, local_rank, server, tuple(names)))
        return number

    def build(self) -> Topology:
        """Check the limits that every fabric has and return it. Raises TopologyError."""
        for node, count in self._ports.items():
            if self._nodes[node].kind is NodeKind.SWITCH and count > SWITCH_PORT_LIMIT:
                raise TopologyError(
                    f"topology: {node} would need {count} ports; "
                    f"a switch has at most {SWITCH_PORT_LIMIT}"
                )
        return Topology(
            name=self._name,
            nodes=self._nodes,
            interfaces=self._interfaces,
            ranks=tuple(self._ranks),
            hop_latency=self._hop_latency,
            nic_latency=self._nic_latency,
            prefixes=self._prefixes,
        )

    def _wire(
        self,
        a: str,
        a_node: str,
        a_rate: float,
        b: str,
        b_node: str,
        b_rate: float,
        *,
        address: str = "",
    ) -> None:
        for name, node, peer, peer_node, rate, own in (
            (a, a_node, b, b_node, a_rate, address),
            (b, b_node, a, a_node, b_rate, ""),
        ):
            if len(name) > INTERFACE_NAME_LIMIT:
                raise TopologyError(
                    f"topology: interface name {name!r} is longer than "
                    f"{INTERFACE_NAME_LIMIT} characters"
                )
            is_switch = self._nodes[node].kind is NodeKind.SWITCH
            self._ports[node] = self._ports.get(node, 0) + 1
            number = len(self._interfaces)
            if own:
                packed = ipaddress.IPv4Address(own).packed
                mac = "02:00:" + ":".join(f"{byte:02x}" for byte in packed)
            else:
                mac = f"02:02:00:00:{number >> 8:02x}:{number & 255:02x}"
            self._interfaces[name] = Interface(
                name=name,
                node=node,
                ifindex=IFINDEX_BASE + number,
                mac=mac,
                peer=peer,
                peer_node=peer_node,
                rate=rate,
                port=self._ports[node] if is_switch else 0,
                address=own,
            )
