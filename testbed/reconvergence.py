"""What the switches hold after each step of the faults' timeline, and in which order they get it.

A switch first acts on what it sees at its own ports; later all switches get the entries that fit
the links. Two rules keep packets from looping while some switches know more than others:

- A switch that has lost its way down to a NIC does not send its packets up again before all others
  know, for those above would return them. Until then they are lost at the dead port.
- An update of all switches goes in order (as ordered FIB updates do, RFC 6976): first those that
  cease to send packets up, last those that begin to.

Pure: nothing is sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from controllers.entries import Entry, Output, SetEthDst
from controllers.labels import LabelSettings
from controllers.routes import LinkState, destinations, next_hops
from controllers.schemes.base import Entries, route, to_switch
from testbed.failures import FaultEvent, FaultTimeline, Step, StepKind
from testbed.routes import PlannedRoutes, plan_routes
from testbed.schema import Scenario
from testbed.topology import NodeKind, Topology
from traffic.plan import Plan

_LAST_RESORT_PRIORITY = 1
"""Priority of a /0; below every route of a scheme."""


@dataclass(frozen=True, slots=True)
class Update:
    """Entries of all switches, and settings of the hash engines that change with them."""

    entries: Entries
    labels: dict[str, LabelSettings]


class Reconvergence:
    """The entries of a fabric whose links come and go; steps must be given in their order."""

    def __init__(self, scenario: Scenario, topology: Topology, plan: Plan) -> None:
        self._scenario = scenario
        self._topology = topology
        self._plan = plan
        self._senders: frozenset[str] | None = None
        self._routes: dict[LinkState, PlannedRoutes] = {}
        self._climbs: dict[LinkState, dict[str, frozenset[str]]] = {}
        self._last_resort = dict(_last_resort(topology))
        self._states = dict.fromkeys(self._last_resort, LinkState())
        """What the entries of each switch are made for."""
        self._held = self._entries_for(self._states)

    @property
    def entries(self) -> Entries:
        """What the switches hold, or are about to."""
        return {switch: list(entries) for switch, entries in self._held.items()}

    @property
    def recompute_interval(self) -> float | None:
        """Emulated seconds between two looks at the traffic; None for a scheme that takes none."""
        return self.routes(LinkState()).recompute_interval

    def rehearse(self, timeline: FaultTimeline) -> None:
        """Compute what the steps of a timeline will ask for, so that it is at hand then."""
        before = self._states, self._held
        seen: set[tuple[StepKind, tuple[str, ...], LinkState, LinkState]] = set()
        for step in timeline.steps:
            like = (step.kind, step.event.links, step.local, step.known)
            if like in seen:
                continue  # a link flaps
            seen.add(like)
            if step.kind is StepKind.LOCAL:
                deque(self.local(step), maxlen=0)
            elif step.kind is StepKind.GLOBAL:
                deque(self.everywhere(step), maxlen=0)
                self.routes(step.known)
        self._states, self._held = before

    def routes(self, state: LinkState) -> PlannedRoutes:
        """What the scheme makes of a state of the links."""
        if state not in self._routes:
            self._routes[state] = plan_routes(
                self._scenario, self._topology, self._plan, state, senders=self._senders
            )
        return self._routes[state]

    def place_flows_of(self, senders: Collection[str]) -> None:
        """From now on let the scheme place the flows of these NIC interfaces only."""
        self._senders = frozenset(senders)
        self._routes.clear()

    def local(self, step: Step) -> Iterator[Update]:
        """The switches at the ends of an event's links act on what they see."""
        wanted = dict(self._states)
        for switch in self._switches_at(step.event):
            state = self._seen_by(switch, step)
            if not self._gains(switch, state):
                wanted[switch] = state
        yield from self._change(wanted)

    def everywhere(self, step: Step) -> Iterator[Update]:
        """All switches get entries that fit what the controller knows."""
        wanted = {switch: self._seen_by(switch, step) for switch in self._states}
        first = {
            switch
            for switch in wanted
            if self._climbing(switch, self._states[switch]) - self._climbing(switch, wanted[switch])
        }
        last = {switch for switch in wanted if self._gains(switch, wanted[switch])}
        for group in (first - last, wanted.keys() - first - last, last):
            yield from self._change(
                {s: wanted[s] if s in group else self._states[s] for s in wanted}
            )

    def recomputed(self) -> Iterator[Update]:
        """Entries for the same links after the traffic has changed."""
        yield from self._change(dict(self._states))

    def _change(self, wanted: Mapping[str, LinkState]) -> Iterator[Update]:
        changed = [switch for switch, state in wanted.items() if self._states[switch] != state]
        self._states = dict(wanted)
        entries = self._entries_for(wanted)
        labels: dict[str, LabelSettings] = {}
        for switch in changed:
            settings = self.routes(wanted[switch]).labels.get(switch)
            if settings is not None and settings.members:
                labels[switch] = settings
        if entries != self._held or labels:
            self._held = entries
            yield Update(self.entries, labels)

    def _entries_for(self, states: Mapping[str, LinkState]) -> Entries:
        return {
            switch: [*self.routes(state).entries[switch], *self._last_resort[switch]]
            for switch, state in states.items()
        }

    def _switches_at(self, event: FaultEvent) -> Iterator[str]:
        interfaces, nodes = self._topology.interfaces, self._topology.nodes
        ends = {
            n for link in event.links for n in (interfaces[link].node, interfaces[link].peer_node)
        }
        return (node for node in sorted(ends) if nodes[node].kind is NodeKind.SWITCH)

    def _seen_by(self, switch: str, step: Step) -> LinkState:
        """What a switch acts on: its own links as it sees them, the others as all know them."""
        interfaces = self._topology.interfaces

        def own(link: str) -> bool:
            return switch in (interfaces[link].node, interfaces[link].peer_node)

        return LinkState(
            frozenset(link for link in step.known.failed if not own(link))
            | frozenset(link for link in step.local.failed if own(link))
        )

    def _gains(self, switch: str, state: LinkState) -> frozenset[str]:
        return self._climbing(switch, state) - self._climbing(switch, self._states[switch])

    def _climbing(self, switch: str, state: LinkState) -> frozenset[str]:
        """Addresses whose packets a switch sends up."""
        if state not in self._climbs:
            self._climbs[state] = _climbing(self._topology, state)
        return self._climbs[state][switch]


def _climbing(topology: Topology, state: LinkState) -> dict[str, frozenset[str]]:
    found = destinations(topology, state)
    nodes = topology.nodes
    return {
        switch: frozenset(
            nic.address
            for prefix, ports in towards.items()
            if any(nodes[port.peer_node].tier > nodes[switch].tier for port in ports)
            for nic in found[prefix].nics
        )
        for switch, towards in next_hops(topology, state, found.values()).items()
    }


def _last_resort(topology: Topology) -> Iterator[tuple[str, list[Entry]]]:
    """Where packets go whose destination is cut off: the way that leads there in a sound fabric.

    It ends at a link that is down, whose port counts what it loses; a switch without a route would
    drop them uncounted. A switch comes here only if no port of it leads to the destination, so the
    way cannot turn back.
    """
    hops = next_hops(topology, LinkState())
    for switch in topology.switches:
        routes = [
            (prefix, to_switch(topology, ports[0])) for prefix, ports in hops[switch.name].items()
        ]
        for port in topology.interfaces_of(switch.name):
            nic = topology.interfaces[port.peer]
            if nic.address:
                routes.append((nic.address, (SetEthDst(nic.mac), Output(port.port))))
        entries = (route(topology, switch.name, prefix, actions) for prefix, actions in routes)
        yield switch.name, [_demoted(entry) for entry in entries]


def _demoted(entry: Entry) -> Entry:
    length = int(str(entry.match["ipv4_dst"]).split("/")[1])
    return replace(entry, priority=_LAST_RESORT_PRIORITY + length)
