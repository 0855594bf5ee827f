"""How a topology is put together: names, ports, addresses and interface indices are given out here.

The NICs below a leaf, or below a set of leaves that NICs with several ports join, share one prefix
10.N.0.0/16, where N - 1 is the index of the set's first leaf.
"""

from __future__ import annotations

import dataclasses
import ipaddress

from testbed.topology.base import (
    IFINDEX_BASE,
    INTERFACE_NAME_LIMIT,
    SWITCH_PORT_LIMIT,
    Interface,
    Node,
    NodeKind,
    Rank,
    RankRole,
    Topology,
    TopologyError,
)

LEAF_LIMIT = 255
"""Leaves whose prefixes fit into 10.0.0.0/8."""

INTERFACE_LIMIT = 65536
"""Interfaces whose MAC addresses differ."""

_HOSTS_PER_OCTET = 250
"""Last octets 1 to 250: no address of a NIC looks like a network's or a broadcast one."""


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
        self._switches = 0

    def switch(self, stem: str, *, tier: int, index: int, plane: int = 0, group: str = "") -> str:
        """Add a switch named ``stem`` + (index + 1). Raises TopologyError if there is one."""
        self._switches += 1
        number = self._switches
        return self._add(
            Node(
                f"{stem}{index + 1}",
                NodeKind.SWITCH,
                tier,
                index,
                datapath_id=number,
                router_mac=f"02:01:00:00:{number >> 8:02x}:{number & 255:02x}",
                plane=plane,
                group=group,
            )
        )

    def server(self, index: int, *, stem: str = "server", group: str = "") -> str:
        """Add a server named ``stem`` + (index + 1). Raises TopologyError if there is one."""
        return self._add(Node(f"{stem}{index + 1}", NodeKind.SERVER, 0, index, group=group))

    def link(self, lower: str, upper: str, *, up_rate: float, down_rate: float) -> None:
        """Wire two switches, once; ``up_rate`` is what ``lower`` transmits at, in bit/s."""
        self._wire(f"{lower}-{upper}", lower, up_rate, f"{upper}-{lower}", upper, down_rate)

    def rank(
        self,
        server: str,
        local_rank: int,
        leaves: list[str],
        *,
        rate: float,
        role: RankRole = RankRole.GPU,
    ) -> int:
        """Add a NIC with one port of ``rate`` bit/s to each of ``leaves``; returns its rank.

        Raises TopologyError if a GPU comes after another role, since GPUs have the first ranks, or
        for a switch that is no leaf.
        """
        number = len(self._ranks)
        for leaf in leaves:
            if self._nodes[leaf].tier != 1:
                raise TopologyError(f"topology: {server} is wired to {leaf}, which is no leaf")
        if role is RankRole.GPU and self._ranks and self._ranks[-1].role is not RankRole.GPU:
            raise TopologyError(f"topology: GPU {number} comes after ranks that are no GPUs")
        names = []
        for leaf in leaves:
            name = f"rank{number}-{leaf}"
            self._wire(name, server, rate, f"{leaf}-rank{number}", leaf, rate)
            names.append(name)
        self._ranks.append(Rank(number, local_rank, server, tuple(names), role))
        return number

    def build(self) -> Topology:
        """Check the limits that every fabric has and return it. Raises TopologyError."""
        for node, count in self._ports.items():
            if self._nodes[node].kind is NodeKind.SWITCH and count > SWITCH_PORT_LIMIT:
                raise TopologyError(
                    f"topology: {node} would need {count} ports; "
                    f"a switch has at most {SWITCH_PORT_LIMIT}"
                )
        octets = self._octets()
        self._assign_addresses(octets)
        return Topology(
            name=self._name,
            nodes=self._nodes,
            interfaces=self._interfaces,
            ranks=tuple(self._ranks),
            hop_latency=self._hop_latency,
            nic_latency=self._nic_latency,
            prefixes={leaf: f"10.{octet}.0.0/16" for leaf, octet in octets.items()},
        )

    def _add(self, node: Node) -> str:
        if node.name in self._nodes:
            raise TopologyError(f"topology: there are two nodes named {node.name!r}")
        self._nodes[node.name] = node
        return node.name

    def _octets(self) -> dict[str, int]:
        """Leaf -> second octet of its prefix. Raises TopologyError if there are too many."""
        leaves = [node for node in self._nodes.values() if node.tier == 1]
        octets = {leaf.name: leaf.index + 1 for leaf in leaves}
        if max(octets.values(), default=0) > LEAF_LIMIT:
            raise TopologyError(
                f"topology: {len(octets)} leaves; at most {LEAF_LIMIT} have a prefix of their own"
            )
        for rank in self._ranks:
            joined = {octets[self._interfaces[name].peer_node] for name in rank.interfaces}
            if len(joined) > 1:
                first = min(joined)
                octets = {leaf: first if o in joined else o for leaf, o in octets.items()}
        return octets

    def _assign_addresses(self, octets: dict[str, int]) -> None:
        """Give every NIC its address and MAC, the same on all of its ports."""
        hosts = dict.fromkeys(octets.values(), 0)
        for rank in self._ranks:
            octet = octets[self._interfaces[rank.interfaces[0]].peer_node]
            slot = hosts[octet]
            hosts[octet] += 1
            address = f"10.{octet}.{slot // _HOSTS_PER_OCTET}.{slot % _HOSTS_PER_OCTET + 1}"
            packed = ipaddress.IPv4Address(address).packed
            mac = "02:00:" + ":".join(f"{byte:02x}" for byte in packed)
            for name in rank.interfaces:
                self._interfaces[name] = dataclasses.replace(
                    self._interfaces[name], address=address, mac=mac
                )

    def _wire(self, a: str, a_node: str, a_rate: float, b: str, b_node: str, b_rate: float) -> None:
        for name, node, peer, peer_node, rate in (
            (a, a_node, b, b_node, a_rate),
            (b, b_node, a, a_node, b_rate),
        ):
            if len(name) > INTERFACE_NAME_LIMIT:
                raise TopologyError(
                    f"topology: so large a fabric cannot be emulated: interface name {name!r} is "
                    f"longer than {INTERFACE_NAME_LIMIT} characters"
                )
            if name in self._interfaces:
                raise TopologyError(f"topology: {node} and {peer_node} are wired twice")
            is_switch = self._nodes[node].kind is NodeKind.SWITCH
            self._ports[node] = self._ports.get(node, 0) + 1
            number = len(self._interfaces)
            if number >= INTERFACE_LIMIT:
                raise TopologyError(f"topology: more than {INTERFACE_LIMIT} interfaces")
            self._interfaces[name] = Interface(
                name=name,
                node=node,
                ifindex=IFINDEX_BASE + number,
                mac=f"02:02:00:00:{number >> 8:02x}:{number & 255:02x}",
                peer=peer,
                peer_node=peer_node,
                rate=rate,
                port=self._ports[node] if is_switch else 0,
            )
