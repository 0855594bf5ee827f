"""What is wired to what, as plain data: nodes, interfaces, links, addresses.

Nothing here imports from the rest of the project, so that routing and traffic may read it too.
Rates are in bit/s and times in seconds, both emulated (real hardware units, before dilation).
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from functools import cached_property
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


class RankRole(StrEnum):
    """What stands behind a NIC: a GPU, a storage server, or a GPU server's front-end network."""

    GPU = "gpu"
    STORAGE = "storage"
    FRONT_END = "front-end"


@dataclass(frozen=True, slots=True)
class Node:
    """A switch or a server.

    ``tier`` counts from the servers: 0 server, 1 leaf, 2 spine, 3 core. ``index`` counts from 0
    within its tier; names count from 1 (``leaf1``, ``spine1``, ``server1``). ``datapath_id`` and
    ``router_mac`` are set for switches only. ``plane`` is the forwarding plane of a switch in a
    fabric of several, from 0. ``group`` names the AI zone, segment, pod or network that the node
    belongs to, or is empty.
    """

    name: str
    kind: NodeKind
    tier: int
    index: int
    datapath_id: int = 0
    router_mac: str = ""
    plane: int = 0
    group: str = ""


@dataclass(frozen=True, slots=True)
class Interface:
    """One end of a link; its transmit queue is a port of the switch model.

    ``rate`` is the transmit rate in bit/s. ``port`` is the OpenFlow port number on a switch and 0
    on a server. ``address`` is set on NIC interfaces only; the ports of one NIC share it and the
    MAC, as dual-ToR NICs do (HPN, SIGCOMM'24, section 4: one IP, MAC and QP context).
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
    """One NIC and what it serves. ``interfaces`` are the NIC's ports, the first one default.

    GPUs have the first ranks, 0 to WORLD_SIZE - 1; storage servers and front-end NICs follow.
    ``local_rank`` counts within the server and the role.
    """

    rank: int
    local_rank: int
    server: str
    interfaces: tuple[str, ...]
    role: RankRole = RankRole.GPU


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
    """Leaf switch name -> IPv4 prefix of the NICs below it; leaves that share NICs share it."""

    @property
    def switches(self) -> list[Node]:
        """All switches, in build order."""
        return [n for n in self.nodes.values() if n.kind is NodeKind.SWITCH]

    @property
    def servers(self) -> list[Node]:
        """All servers, in rank order."""
        return [n for n in self.nodes.values() if n.kind is NodeKind.SERVER]

    @property
    def gpu_ranks(self) -> tuple[Rank, ...]:
        """The ranks that are GPUs: 0 to WORLD_SIZE - 1."""
        return self.ranks_of(RankRole.GPU)

    def ranks_of(self, role: RankRole) -> tuple[Rank, ...]:
        """All ranks of a role, in rank order."""
        return tuple(rank for rank in self.ranks if rank.role is role)

    def interfaces_of(self, node: str) -> list[Interface]:
        """Interfaces of a node in port order."""
        return list(self._interfaces_by_node.get(node, ()))

    def nic(self, rank: int, port: int = 0) -> Interface:
        """The NIC interface of a rank."""
        return self.interfaces[self.ranks[rank].interfaces[port]]

    def nic_ports(self, rank: int) -> tuple[Interface, ...]:
        """All ports of a rank's NIC."""
        return tuple(self.interfaces[name] for name in self.ranks[rank].interfaces)

    def rank_of_address(self, address: str) -> int:
        """The rank whose NIC owns an IPv4 address. Raises KeyError."""
        return self._rank_by_address[address]

    def leaf_of(self, rank: int, port: int = 0) -> str:
        """Name of the leaf switch that a rank's NIC port is wired to."""
        return self.nic(rank, port).peer_node

    def connected(self, source: int, destination: int) -> bool:
        """Whether a path leads from one rank's first NIC port to another's."""
        return self._switches_between(self.leaf_of(source), self.leaf_of(destination)) is not None

    def prefixes_from(self, leaf: str) -> frozenset[str]:
        """The prefixes of all leaves that a path leads to from one."""
        return frozenset(
            prefix
            for other, prefix in self.prefixes.items()
            if self._switches_between(leaf, other) is not None
        )

    def switch_hops(self, source: int, destination: int) -> int:
        """Number of switches on a shortest up/down path between two ranks' first NIC ports.

        Raises TopologyError if they are on networks that are not joined.
        """
        hops = self._switches_between(self.leaf_of(source), self.leaf_of(destination))
        if hops is None:
            raise TopologyError(f"no path leads from rank {source} to rank {destination}")
        return hops

    def one_way_latency(self, switch_hops: int) -> float:
        """Propagation and switching time in seconds for a path over so many switches."""
        return self.nic_latency + switch_hops * self.hop_latency

    def _switches_between(self, first: str, second: str) -> int | None:
        """Switches on a shortest path that climbs and then descends; None if there is none."""
        pair = (first, second)
        if pair not in self._path_lengths:
            ascents = self._ascent(first), self._ascent(second)
            tops = ascents[0].keys() & ascents[1].keys()
            lengths = [ascents[0][top] + ascents[1][top] + 1 for top in tops]
            self._path_lengths[pair] = min(lengths, default=None)
        return self._path_lengths[pair]

    def _ascent(self, leaf: str) -> Mapping[str, int]:
        """Switch -> links climbed from a leaf to it, for all that can be reached by climbing."""
        if leaf not in self._ascents:
            climbed = {leaf: 0}
            frontier = [leaf]
            while frontier:
                above = []
                for name in frontier:
                    for interface in self._interfaces_by_node[name]:
                        peer = self.nodes[interface.peer_node]
                        if peer.tier > self.nodes[name].tier and peer.name not in climbed:
                            climbed[peer.name] = climbed[name] + 1
                            above.append(peer.name)
                frontier = above
            self._ascents[leaf] = climbed
        return self._ascents[leaf]

    @cached_property
    def _interfaces_by_node(self) -> dict[str, list[Interface]]:
        found: dict[str, list[Interface]] = {name: [] for name in self.nodes}
        for interface in self.interfaces.values():
            found[interface.node].append(interface)
        return found

    @cached_property
    def _rank_by_address(self) -> dict[str, int]:
        return {self.nic(rank.rank).address: rank.rank for rank in self.ranks}

    @cached_property
    def _ascents(self) -> dict[str, Mapping[str, int]]:
        return {}

    @cached_property
    def _path_lengths(self) -> dict[tuple[str, str], int | None]:
        return {}


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
    if kind.name in _registry:
        raise ValueError(f"topology {kind.name!r} is registered twice")
    _registry[kind.name] = kind
    return kind


def topology_kinds() -> dict[str, type[TopologyKind]]:
    """All registered topology families by name."""
    return dict(_registry)


def create_topology(name: str, /, **parameters: Any) -> Topology:
    """A fabric of the family of that name.

    Raises ValueError for an unknown name (it lists the known ones) and for bad parameters, as
    pydantic.ValidationError or TopologyError.
    """
    kind = _registry.get(name)
    if kind is None:
        raise ValueError(f"topology {name!r} is unknown; allowed: {', '.join(sorted(_registry))}")
    return kind().build(kind.parameters(**parameters))
