"""Every way that a fabric's tables may send a packet, whatever its hashes and labels come to.

Where ``controllers.table`` follows one packet, this explores all choices at once: every link of a
multipath hash and every slot of a label. So it proves that no source port, queue pair or label
meets a black hole or a forwarding loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from controllers.entries import (
    Action,
    Entry,
    GotoTable,
    MoveVlanToRegister,
    Multipath,
)
from controllers.hashing import FiveTuple
from controllers.table import BlackHoleError, ForwardingLoopError, Packet, Pipeline, SwitchTables
from testbed.topology import Interface, NodeKind, Topology

_ANY_MAC = "00:00:00:00:00:00"
_ANY_SOURCE = "192.0.2.1"
_ANY_TTL = 255
"""Long enough for any path without a loop."""


class Outcome(NamedTuple):
    """What may become of a packet in a switch: its new header, and a port or None for a drop."""

    packet: Packet
    port: int | None


class SwitchExplorer:
    """All outcomes in one switch, remembered."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries = list(entries)
        self._tables = SwitchTables(self.entries)
        self._in_port_matters = any("in_port" in entry.match for entry in self.entries)
        self._runs: dict[tuple[Packet, int], frozenset[Outcome]] = {}
        self._known: dict[tuple[Packet, int], frozenset[Outcome]] = {}

    def outcomes(self, packet: Packet, in_port: int) -> frozenset[Outcome]:
        """What may become of a packet from a port."""
        asked = packet, in_port
        if asked not in self._known:
            # Only the suppressed output to the ingress port tells most ports apart.
            general = packet, in_port if self._in_port_matters else 0
            if general not in self._runs:
                start = Pipeline.enter(packet, in_port=general[1])
                # Fields that no entry matches must not tell packets apart.
                self._runs[general] = frozenset(
                    Outcome(dataclasses.replace(after, eth_src=_ANY_MAC, ttl=_ANY_TTL), port)
                    for after, port in self._run(start, 0)
                )
            self._known[asked] = frozenset(
                Outcome(after, None if port == in_port else port)
                for after, port in self._runs[general]
            )
        return self._known[asked]

    def _run(self, state: Pipeline, table: int) -> Iterator[Outcome]:
        """Continue in a table."""
        entry = self._tables.lookup(table, state.fields)
        yield from self._apply(state, entry.actions if entry else ())

    def _apply(self, state: Pipeline, actions: tuple[Action, ...]) -> Iterator[Outcome]:
        """Apply what is left of an entry; a choice branches."""
        for position, action in enumerate(actions):
            if isinstance(action, GotoTable):
                yield from self._run(state, action.table)
                return
            if isinstance(action, Multipath | MoveVlanToRegister):
                yield from self._branch(state, action, actions[position + 1 :])
                return
            if not state.apply(action):
                yield Outcome(state.packet, None)
                return
        yield Outcome(state.packet, state.output)

    def _branch(
        self, state: Pipeline, choice: Multipath | MoveVlanToRegister, rest: tuple[Action, ...]
    ) -> Iterator[Outcome]:
        """Go on with every value that a hash or a label may leave in its register."""
        seen: set[tuple[Action, ...]] = set()
        for value in _values(choice, state.packet):
            state.fields[f"reg{choice.register}"] = value
            match rest:
                case (GotoTable(table),):
                    entry = self._tables.lookup(table, state.fields)
                    actions = entry.actions if entry else ()
                    # Most values lead to the same few ports.
                    if actions in seen:
                        continue
                    if not any(isinstance(action, GotoTable) for action in actions):
                        seen.add(actions)
                case _:
                    actions = rest
            yield from self._apply(state.copy(), actions)


def _values(choice: Multipath | MoveVlanToRegister, packet: Packet) -> range:
    if isinstance(choice, Multipath):
        return range(choice.links)
    return range(1 if packet.vlan is None else 1 << choice.bits)


class FabricExplorer:
    """All ways through a fabric. Raises ValueError as ``SwitchTables`` does.

    ``before`` is an explorer of the same topology with other entries; what it knows about switches
    whose entries are the same is used again.
    """

    def __init__(
        self,
        topology: Topology,
        entries: Mapping[str, list[Entry]],
        before: FabricExplorer | None = None,
    ) -> None:
        self._topology = topology
        self._switches: dict[str, SwitchExplorer] = {}
        for name, table in entries.items():
            known = before._switches[name] if before else None
            same = known is not None and known.entries == table
            self._switches[name] = known if known and same else SwitchExplorer(table)
        self._ports = {(i.node, i.port): i for i in topology.interfaces.values() if i.port}
        self._source_matters = any(
            "ipv4_src" in entry.match for table in entries.values() for entry in table
        )
        self._safe: set[tuple[str, Packet]] = set()

    def check(self, sender: Interface, destination: Interface, *, tagged: bool) -> None:
        """Follow a NIC interface's packets to another NIC along all ways.

        ``tagged`` packets have a label. Raises BlackHoleError if one of the ways does not end at
        the destination, and ForwardingLoopError if one does not end.
        """
        router = self._topology.nodes[sender.peer_node].router_mac
        # All sources share what is found out, unless an entry tells them apart.
        source = sender.address if self._source_matters else _ANY_SOURCE
        flow = FiveTuple(source, destination.address, 0)
        vlan = 0 if tagged else None
        packet = Packet(flow, eth_src=_ANY_MAC, eth_dst=router, ttl=_ANY_TTL, vlan=vlan)
        self._follow(packet, sender, ())

    def _follow(self, packet: Packet, sender: Interface, path: tuple[str, ...]) -> None:
        path = (*path, sender.name)
        ingress = self._topology.interfaces[sender.peer]
        if (ingress.name, packet) in self._safe:
            return
        if self._topology.nodes[ingress.node].kind is NodeKind.SERVER:
            _delivered(ingress, packet, path)
            return
        if sender.name in path[:-1]:
            raise ForwardingLoopError(f"{ingress.node} sees a packet twice", path)
        for after, port in self._switches[ingress.node].outcomes(packet, ingress.port):
            egress = None if port is None else self._ports.get((ingress.node, port))
            if egress is None:
                reason = "drops it" if port is None else f"has no port {port}"
                raise BlackHoleError(f"{ingress.node} {reason}: {packet.flow}", path)
            self._follow(after, egress, path)
        self._safe.add((ingress.name, packet))


def _delivered(nic: Interface, packet: Packet, path: tuple[str, ...]) -> None:
    if nic.address != packet.flow.destination_ip or nic.mac != packet.eth_dst:
        raise BlackHoleError(f"wrong NIC {nic.name} gets {packet.flow}", path)
    if packet.vlan is not None:
        raise BlackHoleError(f"{nic.name} gets {packet.flow} with its tag", path)
