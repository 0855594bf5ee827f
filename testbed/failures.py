"""What a scenario breaks and mends, and who knows of it when: the timeline of its faults. Pure.

A fault acts at once on the packets. Both ends of a link see it after ``detection`` (loss of signal
and its debounce), as a switch's own member tables and the NICs do; all switches hold the entries
that fit the new links after ``convergence`` (a routing protocol's or controller's time).
Times are emulated seconds.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum

from controllers.routes import LinkState
from testbed.registries import suggestion
from testbed.schema import Faults, SlowFault
from testbed.topology import Topology

_HINT_WIDTH = 120
"""Characters."""

_DIGITS = 12
"""Times are compared as picoseconds: "0.1 ms" and "100 us" are one instant."""


class FaultError(ValueError):
    """A fault names what the topology does not have; the message says field, value, allowed."""


class FaultKind(StrEnum):
    """What happens."""

    LINK_DOWN = "link down"
    LINK_UP = "link up"
    SWITCH_DOWN = "switch down"
    SWITCH_UP = "switch up"
    SLOW = "link slow"
    CONTROLLER_RESTART = "controller restart"


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """Something breaks or mends.

    ``subject`` is the link, by the interface that the scenario names, or the switch. ``links`` are
    those that change their state by it, each by the first of its interfaces: a link that another
    fault holds down does not. ``rate`` in bit/s is that of a slow link.
    """

    time: float
    kind: FaultKind
    subject: str = ""
    links: tuple[str, ...] = ()
    rate: float | None = None


class StepKind(IntEnum):
    """Whose view of the links changes, in the order in which simultaneous steps are taken."""

    PHYSICAL = 0
    """What the links do."""
    LOCAL = 1
    """The switches and NICs at their ends know."""
    GLOBAL = 2
    """All switches hold entries that fit."""


@dataclass(frozen=True, slots=True)
class Step:
    """One view of the links changes. The three states are the views after it."""

    time: float
    kind: StepKind
    event: FaultEvent
    physical: LinkState
    local: LinkState
    known: LinkState
    """The state that the entries of all switches are made for."""


@dataclass(frozen=True, slots=True)
class _Change:
    """One fault takes hold of links (``hold`` 1) or lets them go (-1)."""

    time: float
    hold: int
    kind: FaultKind
    subject: str
    links: tuple[str, ...]
    rate: float | None = None


class FaultTimeline:
    """All faults of a scenario in the order of their times. Raises FaultError.

    Faults of one link may overlap: it is up when none holds it down.
    """

    def __init__(self, faults: Faults, topology: Topology) -> None:
        self.events: tuple[FaultEvent, ...] = ()
        self.states: tuple[LinkState, ...] = ()
        """The state of the links after each event."""
        held: Counter[str] = Counter()
        # at one instant downs come first: a link that one fault hands to another does not blink
        changes = sorted(
            _changes(faults, topology), key=lambda c: (round(c.time, _DIGITS), -c.hold)
        )
        for change in changes:
            before = {link for link in change.links if held[link] > 0}
            for link in change.links:
                held[link] += change.hold
            changed = tuple(link for link in change.links if (held[link] > 0) != (link in before))
            links = change.links if change.kind is FaultKind.SLOW else changed
            event = FaultEvent(
                round(change.time, _DIGITS), change.kind, change.subject, links, change.rate
            )
            self.events += (event,)
            self.states += (LinkState(frozenset(link for link in held if held[link] > 0)),)
        self.steps: tuple[Step, ...] = tuple(self._steps(faults.detection, faults.convergence))

    def views_at(self, time: float) -> dict[StepKind, LinkState]:
        """What the links do at a time, what their ends know of it, and what all switches do."""
        views = dict.fromkeys(StepKind, LinkState())
        for step in self.steps:
            if step.time <= time:
                views = {
                    StepKind.PHYSICAL: step.physical,
                    StepKind.LOCAL: step.local,
                    StepKind.GLOBAL: step.known,
                }
        return views

    def _steps(self, detection: float, convergence: float) -> Iterator[Step]:
        delays = {StepKind.PHYSICAL: 0.0, StepKind.LOCAL: detection, StepKind.GLOBAL: convergence}
        raw = [
            (event.time + delay, kind, number)
            for number, event in enumerate(self.events)
            for kind, delay in delays.items()
            if _takes_step(event, kind)
        ]
        views = dict.fromkeys(StepKind, LinkState())
        for time, kind, number in sorted(raw):
            views[kind] = self.states[number]
            yield Step(
                time,
                kind,
                self.events[number],
                views[StepKind.PHYSICAL],
                views[StepKind.LOCAL],
                views[StepKind.GLOBAL],
            )


def _takes_step(event: FaultEvent, kind: StepKind) -> bool:
    if event.kind is FaultKind.SLOW:
        # the fabric is built with what is slow from the start; no protocol announces a rate
        return kind is StepKind.PHYSICAL and event.time > 0
    return kind is StepKind.PHYSICAL or bool(event.links)


def slowed_from_start(topology: Topology, faults: Faults) -> Topology:
    """The topology with the links that are slow from time 0 at their rates. Raises FaultError."""
    interfaces = dict(topology.interfaces)
    for position, fault in enumerate(faults.slow):
        if fault.at == 0:
            link = _slow_link(topology, position, fault)
            for name in (link, topology.interfaces[link].peer):
                interfaces[name] = replace(interfaces[name], rate=fault.rate)
    if interfaces == topology.interfaces:
        return topology
    return replace(topology, interfaces=interfaces)


def _changes(faults: Faults, topology: Topology) -> Iterator[_Change]:
    for position, cut in enumerate(faults.links):
        links = (_link(topology, f"links.{position}.link", cut.link),)
        yield from _outage(cut.link, links, cut.down, cut.up)
    for position, flap in enumerate(faults.flaps):
        links = (_link(topology, f"flaps.{position}.link", flap.link),)
        for number in range(flap.count):
            down = flap.at + number * flap.period
            yield from _outage(flap.link, links, down, down + flap.period / 2)
    for position, dead in enumerate(faults.switches):
        below = _links_of_switch(topology, f"switches.{position}.switch", dead.switch)
        kinds = (FaultKind.SWITCH_DOWN, FaultKind.SWITCH_UP)
        yield from _outage(dead.switch, below, dead.down, dead.up, kinds)
    for position, slow in enumerate(faults.slow):
        link = _slow_link(topology, position, slow)
        yield _Change(slow.at, 0, FaultKind.SLOW, slow.link, (link,), slow.rate)
    for restart in faults.controller:
        yield _Change(restart.restart, 0, FaultKind.CONTROLLER_RESTART, "", ())


def _outage(
    subject: str,
    links: tuple[str, ...],
    down: float,
    up: float | None,
    kinds: tuple[FaultKind, FaultKind] = (FaultKind.LINK_DOWN, FaultKind.LINK_UP),
) -> Iterator[_Change]:
    yield _Change(down, 1, kinds[0], subject, links)
    if up is not None:
        yield _Change(up, -1, kinds[1], subject, links)


def _link(topology: Topology, field: str, name: str) -> str:
    """The first interface of the link that a name means."""
    if name not in topology.interfaces:
        raise FaultError(f"{field}: {name!r} is no link; {_hint(name, topology.interfaces)}")
    return _first_end(topology, name)


def _slow_link(topology: Topology, position: int, fault: SlowFault) -> str:
    link = _link(topology, f"slow.{position}.link", fault.link)
    built = topology.interfaces[link].rate
    if fault.rate > built:
        raise FaultError(
            f"slow.{position}.rate: {fault.rate / 1e9:g} Gb/s is above what the link was built "
            f"to; allowed: at most {built / 1e9:g} Gb/s"
        )
    return link


def _first_end(topology: Topology, name: str) -> str:
    interface = topology.interfaces[name]
    peer = topology.interfaces[interface.peer]
    return min(interface, peer, key=lambda end: end.ifindex).name


def _links_of_switch(topology: Topology, field: str, name: str) -> tuple[str, ...]:
    switches = [switch.name for switch in topology.switches]
    if name not in switches:
        raise FaultError(f"{field}: {name!r} is no switch; {_hint(name, switches)}")
    return tuple(_first_end(topology, i.name) for i in topology.interfaces_of(name))


def _hint(name: str, allowed: Iterable[str]) -> str:
    # a fabric has hundreds of them: the nearest is worth more than the end of the list
    return textwrap.shorten(suggestion(name, allowed), _HINT_WIDTH, placeholder=" …")
