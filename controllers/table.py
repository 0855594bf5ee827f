"""A model of the switches' OpenFlow pipeline: which way a packet goes, without a switch.

Executes the entries as Open vSwitch does, its multipath hash included, and walks a packet from
switch to switch. Reports, the scheme tests and the comparison with the running switches use it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from controllers.entries import (
    Action,
    DecrementTtl,
    Entry,
    GotoTable,
    LoadRegister,
    MatchValue,
    MoveVlanToRegister,
    Multipath,
    Output,
    PopVlan,
    SetEthDst,
    SetEthSrc,
    value_and_mask,
)
from controllers.flows import Flow
from controllers.hashing import IPPROTO_UDP, ROCE_PORT, FiveTuple, flow_hash, link_of
from testbed.topology import Interface, NodeKind, Topology

ETH_TYPE_IPV4 = 0x0800
DEFAULT_TTL = 64
"""What the Linux stack and our NICs send (net.ipv4.ip_default_ttl)."""

_VLAN_PRESENT = 0x1000
"""OFPVID_PRESENT of OpenFlow 1.3: the ``vlan_vid`` of a packet with a tag has it, else it is 0."""

_REGISTERS = {f"reg{number}": 0 for number in range(16)}
"""Open vSwitch clears all registers when a packet enters."""


class RoutingError(Exception):
    """A packet does not get where it should; ``interfaces`` is how far it came."""

    def __init__(self, message: str, interfaces: Iterable[str]) -> None:
        self.interfaces = tuple(interfaces)
        super().__init__(f"{message} (path so far: {', '.join(self.interfaces) or 'none'})")


class BlackHoleError(RoutingError):
    """A switch drops the packet, or delivers it to the wrong NIC."""


class ForwardingLoopError(RoutingError):
    """The packet comes back to a switch port where it was before."""


@dataclass(frozen=True, slots=True)
class Packet:
    """The header fields that entries can match, rewrite or hash.

    ``vlan`` is the VLAN id of the 802.1Q tag, None without one.
    """

    flow: FiveTuple
    eth_src: str
    eth_dst: str
    ttl: int = DEFAULT_TTL
    eth_type: int = ETH_TYPE_IPV4
    vlan: int | None = None

    def fields(self) -> dict[str, int]:
        """Values by OpenFlow field name."""
        return {
            "eth_type": self.eth_type,
            "eth_src": _number(self.eth_src),
            "eth_dst": _number(self.eth_dst),
            "vlan_vid": 0 if self.vlan is None else _VLAN_PRESENT | self.vlan,
            "ipv4_src": _number(self.flow.source_ip),
            "ipv4_dst": _number(self.flow.destination_ip),
            "ip_proto": self.flow.protocol,
            "udp_src": self.flow.source_port,
            "udp_dst": self.flow.destination_port,
        }


class Hop(NamedTuple):
    """One switch on a path and the packet as it leaves."""

    switch: str
    ingress: str
    egress: str
    packet: Packet


class _Group(NamedTuple):
    """All entries of a table that match the same fields under the same masks."""

    priority: int
    fields: tuple[tuple[str, int], ...]
    entries: dict[tuple[int, ...], Entry]


@lru_cache(maxsize=65536)
def _number(value: MatchValue) -> int:
    """A match value or address as an integer."""
    if isinstance(value, int):
        return value
    if ":" in value:
        return int(value.replace(":", ""), 16)
    return int(ipaddress.IPv4Address(value))


@lru_cache(maxsize=65536)
def _value_and_mask(value: MatchValue) -> tuple[int, int]:
    if isinstance(value, str) and "/" in value:
        if value.startswith("0x"):
            return value_and_mask(value)
        network = ipaddress.IPv4Network(value)
        return int(network.network_address), int(network.netmask)
    return _number(value), -1


class SwitchTables:
    """The flow tables of one switch: tuple space search, as in Open vSwitch's classifier.

    Raises ValueError for two entries with equal table, priority and match: in a switch the second
    would silently replace the first.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._tables: dict[int, list[_Group]] = {}
        groups: dict[tuple[int, int, tuple[tuple[str, int], ...]], _Group] = {}
        for entry in entries:
            parsed = {name: _value_and_mask(value) for name, value in entry.match.items()}
            fields = tuple((name, mask) for name, (_, mask) in sorted(parsed.items()))
            key = tuple(value for _, (value, _) in sorted(parsed.items()))
            where = (entry.table, entry.priority, fields)
            if where not in groups:
                groups[where] = _Group(entry.priority, fields, {})
                self._tables.setdefault(entry.table, []).append(groups[where])
            if key in groups[where].entries:
                raise ValueError(
                    f"table {entry.table} has two entries of priority {entry.priority} "
                    f"for {dict(entry.match)}"
                )
            groups[where].entries[key] = entry
        for table in self._tables.values():
            table.sort(key=lambda group: -group.priority)

    def lookup(self, table: int, fields: Mapping[str, int]) -> Entry | None:
        """The entry of highest priority that matches, or None on a table miss."""
        for group in self._tables.get(table, ()):
            try:
                key = tuple([fields[name] & mask for name, mask in group.fields])
            except KeyError:  # the packet has no such field, so nothing here can match
                continue
            entry = group.entries.get(key)
            if entry is not None:
                return entry
        return None

    def execute(self, packet: Packet, *, in_port: int) -> tuple[Packet, int | None]:
        """The packet after the pipeline and its output port, None if it is dropped.

        Raises ValueError if the entries output the packet more than once.
        """
        state = Pipeline.enter(packet, in_port=in_port)
        table: int | None = 0
        while table is not None:
            entry = self.lookup(table, state.fields)
            table = None
            for action in entry.actions if entry else ():
                if isinstance(action, GotoTable):
                    table = action.table
                elif not state.apply(action):
                    return state.packet, None
        return state.packet, None if state.output == in_port else state.output


@dataclass(slots=True)
class Pipeline:
    """A packet on its way through a switch's tables."""

    packet: Packet
    fields: dict[str, int]
    output: int | None = None

    @classmethod
    def enter(cls, packet: Packet, *, in_port: int) -> Pipeline:
        """A packet at the beginning of the first table."""
        return cls(packet, {**packet.fields(), **_REGISTERS, "in_port": in_port})

    def copy(self) -> Pipeline:
        """The same state, to go on differently."""
        return Pipeline(self.packet, dict(self.fields), self.output)

    def apply(self, action: Action) -> bool:
        """Apply one action; False if it drops the packet."""
        match action:
            case DecrementTtl():
                if self.packet.ttl <= 1:
                    return False
                self.packet = replace(self.packet, ttl=self.packet.ttl - 1)
            case SetEthSrc(mac):
                self.packet = replace(self.packet, eth_src=mac)
                self.fields["eth_src"] = _number(mac)
            case SetEthDst(mac):
                self.packet = replace(self.packet, eth_dst=mac)
                self.fields["eth_dst"] = _number(mac)
            case PopVlan():
                self.packet = replace(self.packet, vlan=None)
                self.fields["vlan_vid"] = 0
            case MoveVlanToRegister(register, first_bit, bits):
                moved = self.fields["vlan_vid"] >> first_bit & (1 << bits) - 1
                kept = self.fields[f"reg{register}"] >> bits << bits
                self.fields[f"reg{register}"] = kept | moved
            case LoadRegister(register, value):
                self.fields[f"reg{register}"] = value
            case Multipath():
                self.fields[f"reg{action.register}"] = _select(action, self.packet)
            case Output(port):
                if self.output is not None:
                    raise ValueError(f"more than one output: {self.output} and {port}")
                self.output = port
            case _:
                return False
        return True


def _select(action: Multipath, packet: Packet) -> int:
    if packet.eth_type != ETH_TYPE_IPV4:
        return 0
    value = flow_hash(packet.flow, fields=action.fields, basis=action.basis)
    return link_of(value, algorithm=action.algorithm, links=action.links)


class FabricTables:
    """The tables of all switches of a fabric; build once, then ask for many paths."""

    def __init__(self, topology: Topology, entries: Mapping[str, Iterable[Entry]]) -> None:
        self._topology = topology
        self._switches = {name: SwitchTables(table) for name, table in entries.items()}
        self._nics = {topology.nic(r.rank).address: topology.nic(r.rank) for r in topology.ranks}
        self._ports = {(i.node, i.port): i for i in topology.interfaces.values() if i.port}

    def walk(self, packet: Packet, *, sender: Interface) -> list[Hop]:
        """Follow a packet that a NIC interface transmits until it reaches a NIC.

        Raises BlackHoleError and ForwardingLoopError.
        """
        hops: list[Hop] = []
        path = [sender.name]
        seen: set[str] = set()
        ingress = self._topology.interfaces[sender.peer]
        while self._topology.nodes[ingress.node].kind is NodeKind.SWITCH:
            if ingress.name in seen:
                raise ForwardingLoopError(f"{ingress.node} sees a packet twice", path)
            seen.add(ingress.name)
            packet, port = self._switches[ingress.node].execute(packet, in_port=ingress.port)
            egress = None if port is None else self._ports.get((ingress.node, port))
            if egress is None:
                reason = "drops it" if port is None else f"has no port {port}"
                raise BlackHoleError(f"{ingress.node} {reason}: {packet.flow}", path)
            hops.append(Hop(ingress.node, ingress.name, egress.name, packet))
            path.append(egress.name)
            ingress = self._topology.interfaces[egress.peer]
        if ingress.address != packet.flow.destination_ip or ingress.mac != packet.eth_dst:
            raise BlackHoleError(f"wrong NIC {ingress.name} gets {packet.flow}", path)
        if packet.vlan is not None:
            raise BlackHoleError(f"{ingress.name} gets {packet.flow} with its tag", path)
        return hops

    def path_of(self, flow: FiveTuple | Flow, label: int | None = None) -> list[str]:
        """Names of the transmitting interfaces on a flow's path, the sending NIC's first.

        ``label`` is the VLAN id that the packet has where it enters the fabric, None if it has no
        tag. Without a source interface the first one that has the source address transmits.
        Raises KeyError for a source address that no NIC has, and as ``walk`` does.
        """
        if isinstance(flow, FiveTuple):
            flow = Flow(flow)
        name, five_tuple = flow.source_interface, flow.five_tuple
        sender = self._topology.interfaces[name] if name else self._nics[five_tuple.source_ip]
        router = self._topology.nodes[sender.peer_node].router_mac
        packet = Packet(five_tuple, eth_src=sender.mac, eth_dst=router, vlan=label)
        return [sender.name, *(hop.egress for hop in self.walk(packet, sender=sender))]


def path_of(
    topology: Topology,
    entries: Mapping[str, Iterable[Entry]],
    *,
    source_ip: str,
    destination_ip: str,
    source_port: int,
    destination_port: int = ROCE_PORT,
    protocol: int = IPPROTO_UDP,
) -> list[str]:
    """The path of one flow; for many flows keep a ``FabricTables`` instead."""
    flow = FiveTuple(source_ip, destination_ip, source_port, destination_port, protocol)
    return FabricTables(topology, entries).path_of(flow)
