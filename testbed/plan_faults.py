"""What a plan says of its faults: when they happen, who knows when, and how flows then start. Pure.

A flow's way is the one on which its first packets go, by the entries that all switches hold at that
time. A fault that happens later may move it. One that has happened, but that not all switches know
of, loses these packets; unless the switch before it knows, which then uses another port if it can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controllers.routes import LinkState
from testbed.failures import FaultEvent, FaultKind, FaultTimeline, StepKind
from testbed.report.quantities import format_quantity, plural
from testbed.routes import PlannedRoutes, plan_routes
from testbed.schema import Faults, Scenario
from testbed.topology import Topology
from traffic.plan import Flow, Plan

Way = tuple[str, ...]
"""The interfaces that transmit a packet, the NIC's first."""

COLUMNS = ("time", "fault", "where", "its ends know", "all switches know")

NOBODY = "–"

FAILS, SLOW = "link that fails", "slow link"


@dataclass(frozen=True, slots=True)
class Start:
    """How the packets of a flow set out.

    ``ways`` are the different ways of its queue pairs; there is none where failures have cut the
    destination off. ``cut`` are the interfaces on them whose link is down already, ``noticed``
    those of them that belong to a node that knows it.
    """

    ways: tuple[Way, ...]
    cut: tuple[str, ...]
    noticed: tuple[str, ...]


class PlannedStarts:
    """The routes of a plan under the faults that have happened when a flow starts."""

    def __init__(self, scenario: Scenario, topology: Topology, plan: Plan) -> None:
        self._scenario = scenario
        self._topology = topology
        self._plan = plan
        self._routes: dict[LinkState, PlannedRoutes] = {}
        self.timeline = FaultTimeline(scenario.faults, topology)

    @property
    def plan(self) -> Plan:
        """The plan with the source ports that the scheme chose."""
        return self._under(LinkState()).plan

    def of(self, flow: Flow, queue_pairs: Sequence[int] = ()) -> Start:
        """How a flow starts on some queue pairs of its connection's group, by default on all."""
        views = self.timeline.views_at(flow.start)
        paths = self._under(views[StepKind.GLOBAL]).paths
        indices = queue_pairs or self._plan.group(flow.connection)
        found = (path.interfaces for index in indices for path in paths[index, False])
        ways = tuple(dict.fromkeys(found))
        interfaces = self._topology.interfaces
        crossed = dict.fromkeys(name for way in ways for name in way)
        cut, noticed = (
            tuple(name for name in crossed if not views[kind].up(interfaces[name]))
            for kind in (StepKind.PHYSICAL, StepKind.LOCAL)
        )
        return Start(ways, cut, tuple(name for name in noticed if name in cut))

    def _under(self, state: LinkState) -> PlannedRoutes:
        if state not in self._routes:
            self._routes[state] = plan_routes(self._scenario, self._topology, self._plan, state)
        return self._routes[state]


def fault_rows(timeline: FaultTimeline, faults: Faults) -> list[tuple[str, ...]]:
    """A row of ``COLUMNS`` per fault."""
    return [_row(event, faults) for event in timeline.events]


def troubled_links(timeline: FaultTimeline) -> dict[str, str]:
    """One interface of each link that is not sound all the time -> FAILS or SLOW."""
    found = dict[str, str]()
    for event in timeline.events:
        for link in event.links:
            if event.kind is FaultKind.SLOW:
                found.setdefault(link, SLOW)
            else:
                found[link] = FAILS
    return found


def loss_notes(faults: Faults) -> list[str]:
    """One line each for what is lost without a link's failing."""
    notes = []
    if faults.loss:
        notes.append(f"every data packet is lost with a probability of {faults.loss:g}")
    if faults.drop:
        times = sum(fault.times for fault in faults.drop)
        notes.append(f"the first switch discards {plural(times, 'data packet')}")
    return notes


def _row(event: FaultEvent, faults: Faults) -> tuple[str, ...]:
    def after(delay: float) -> str:
        return format_quantity(event.time + delay, "s") if announced else NOBODY

    announced = bool(event.links) and event.kind is not FaultKind.SLOW
    where = event.subject or NOBODY
    if event.rate is not None:
        where += f", {format_quantity(event.rate, 'bit/s')}"
    time = format_quantity(event.time, "s") if event.time else "0"
    return time, str(event.kind), where, after(faults.detection), after(faults.convergence)
