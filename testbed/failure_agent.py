"""Makes faults happen while traffic runs: links, switches, rates, the controller and its updates.

Called between two samples of the queues, and never waits for long: what takes time, as the
controller's updates do, is begun in one call and found done in a later one.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from controllers.process import ControllerProcess
from controllers.program import write_program
from controllers.routes import LinkState
from testbed.activity import ActivityBoard
from testbed.clock import EmulatedClock
from testbed.fabric import Fabric
from testbed.failures import FaultEvent, FaultKind, FaultTimeline, Step, StepKind
from testbed.reconvergence import Reconvergence, Update
from testbed.routes import PlannedPath
from testbed.topology import NodeKind

GRACE = 0.001
"""Wall seconds in which a frame that was on its way into or out of a queue gets there."""

REVALIDATION = 0.02
"""Wall seconds that Open vSwitch may go on using cached decisions after its tables changed."""

SETTLE_TIMEOUT = 30.0
"""Wall seconds for the controller to bring all switches to what the links are."""


NEVER_HAPPENED = "came after the end of the traffic"
"""What became of faults that were planned for later."""


class FailureError(RuntimeError):
    """The fabric did not come to terms with a fault; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """Something that happened at an emulated time: a fault, or a ``reaction`` of the fabric.

    ``flushed`` counts the frames that a cut link lost from its queues. ``late`` is by how many
    emulated seconds it came after its time.
    """

    time: float
    what: str
    subject: str = ""
    links: tuple[str, ...] = ()
    flushed: int = 0
    reaction: bool = False
    late: float = 0.0


@dataclass(frozen=True, slots=True)
class _Order:
    """Something for the controller to do, and the emulated time at which it should be done.

    No time is set for what waits until a controller that was killed has started again: how long
    that takes, no scenario says.
    """

    update: Update
    what: str
    due: float | None


@dataclass(frozen=True, slots=True)
class PathChange:
    """At an emulated time the requests of some connections were sent other ways.

    ``paths`` is by connection; one without a way is cut off from its destination.
    """

    time: float
    paths: dict[int, tuple[PlannedPath, ...]]


class FailureAgent:
    """Takes the steps of a timeline when their time has come.

    ``wake_descriptors`` are the servers' eventfds, in order. ``on_rate_change`` hears of every
    interface that gets another rate. ``programs`` is where the controller's programs are written.
    """

    def __init__(
        self,
        timeline: FaultTimeline,
        network: Reconvergence,
        *,
        fabric: Fabric,
        controller: ControllerProcess,
        board: ActivityBoard,
        wake_descriptors: list[int],
        clock: EmulatedClock,
        on_rate_change: Callable[[str, float], None],
        programs: Path,
    ) -> None:
        self._network = network
        self._fabric = fabric
        self._topology = fabric.topology
        self._controller = controller
        self._board = board
        self._wake = {
            server.name: wake
            for server, wake in zip(self._topology.servers, wake_descriptors, strict=True)
        }
        self._clock = clock
        self._on_rate_change = on_rate_change
        self._programs = programs
        self._steps = deque(timeline.steps)
        self._happened: set[FaultEvent] = set()
        self._orders: deque[_Order] = deque()
        self._awaited: _Order | None = None
        self._restarted = False
        self._settled_at = 0.0
        self._version = 0
        self._matrix = _TrafficMatrix(fabric, network.recompute_interval)
        self.physical = LinkState()
        """What the links are now."""
        self._known = LinkState()
        self.records: list[FaultRecord] = []
        self.path_changes: list[PathChange] = []
        self._paths = self._request_paths(LinkState())

    @property
    def next_time(self) -> float:
        """Emulated time of the next step; infinity if none is left."""
        planned = self._steps[0].time if self._steps else math.inf
        return min(planned, self._matrix.due)

    @property
    def settled(self) -> bool:
        """Whether the switches hold what they shall hold for now."""
        return not (self._orders or self._awaited or self._restarted) and (
            time.monotonic() >= self._settled_at
        )

    def begin(self) -> None:
        """Before the clock starts: let happen what is so from time 0, ahead of the first packet."""
        while self._steps and self._steps[0].time == 0 and self._steps[0].kind is StepKind.PHYSICAL:
            self._take(self._steps.popleft(), 0.0)

    def tick(self) -> None:
        """Take the steps that are due. Raises ControllerError, ProgramError, OSError."""
        self._advance()
        now = self._clock.now()
        while self._steps and self._steps[0].time <= now:
            self._take(self._steps.popleft(), self._clock.now())
        if (senders := self._matrix.recompute(now)) is not None:
            self._network.place_flows_of(senders)
            self._queue(self._network.recomputed(), "traffic matrix", now)
            self._note_paths()
        self._advance()

    def settle(self) -> None:
        """Let all learn of what has happened so far, and wait until they do.

        For after the traffic; what has not happened by then never will. Raises FailureError.
        """
        for step in self._steps:
            if step.kind is not StepKind.PHYSICAL and step.event in self._happened:
                self._take(step, self._clock.now())
        self._leave_out([step.event for step in self._steps if step.kind is StepKind.PHYSICAL])
        self._steps.clear()
        deadline = time.monotonic() + SETTLE_TIMEOUT
        while not self.settled:
            if time.monotonic() > deadline:
                raise FailureError(f"entries are not in force after {SETTLE_TIMEOUT:.0f} s")
            self._advance()
            time.sleep(GRACE)

    def _leave_out(self, events: list[FaultEvent]) -> None:
        if events:
            first = " of ".join(filter(None, (events[0].kind, events[0].subject)))
            subject = first if len(events) == 1 else f"{first} and {len(events) - 1} more"
            record = FaultRecord(events[0].time, NEVER_HAPPENED, subject, reaction=True)
            self.records.append(record)

    def _take(self, step: Step, now: float) -> None:
        event = step.event
        if step.kind is StepKind.PHYSICAL:
            self._happened.add(event)
            self.physical = step.physical
            self._happen(event, now)
        elif step.kind is StepKind.LOCAL:
            self._tell_nics(step)
            what = f"{event.kind} of {event.subject} detected"
            self._queue(self._network.local(step), what, step.time)
        else:
            what = f"{event.kind} of {event.subject} converged"
            self._queue(self._network.everywhere(step), what, step.time)
            self._known = step.known
            self._note_paths()

    def _happen(self, event: FaultEvent, now: float) -> None:
        flushed, subject = 0, event.subject
        match event.kind:
            case FaultKind.LINK_DOWN | FaultKind.SWITCH_DOWN:
                flushed = self._cut(event.links)
            case FaultKind.LINK_UP | FaultKind.SWITCH_UP:
                for interface in self._ends(event.links):
                    self._fabric.mmu.set_link(interface, up=True)
            case FaultKind.SLOW:
                assert event.rate is not None
                subject += f" at {event.rate / 1e9:g} Gb/s"
                for interface in self._ends(event.links):
                    self._fabric.change_rate(interface, event.rate)
                    self._on_rate_change(interface, event.rate)
            case FaultKind.CONTROLLER_RESTART:
                self._controller.restart()
                self._restarted = True
                self._orders = deque(replace(order, due=None) for order in self._orders)
                self._awaited = self._awaited and replace(self._awaited, due=None)
        self.records.append(
            FaultRecord(now, event.kind, subject, event.links, flushed, late=now - event.time)
        )

    def _cut(self, links: Iterable[str]) -> int:
        """Take links down; returns how many frames their queues lost."""
        mmu = self._fabric.mmu
        ends = list(self._ends(links))
        for interface in ends:
            mmu.set_link(interface, up=False)
        time.sleep(GRACE)
        depths = dict(zip(self._topology.interfaces, mmu.depths().tolist(), strict=True))
        waiting = [interface for interface in ends if depths[interface]]
        for interface in waiting:
            self._fabric.discard_queue(interface)
        if waiting:
            time.sleep(GRACE)
        return sum(mmu.write_off(interface) for interface in waiting)

    def _ends(self, links: Iterable[str]) -> Iterator[str]:
        for link in links:
            yield link
            yield self._topology.interfaces[link].peer

    def _tell_nics(self, step: Step) -> None:
        interfaces, nodes = self._topology.interfaces, self._topology.nodes
        rows = {name: row for row, name in enumerate(interfaces)}
        for name in self._ends(step.event.links):
            interface = interfaces[name]
            if nodes[interface.node].kind is NodeKind.SERVER:
                self._board.port_down[rows[name]] = not step.local.up(interface)
                os.eventfd_write(self._wake[interface.node], 1)

    def _queue(self, updates: Iterable[Update], what: str, due: float) -> None:
        expected = None if self._restarted else due
        self._orders.extend(_Order(update, what, expected) for update in updates)

    def _advance(self) -> None:
        """See what the controller has done, and give it the next thing to do."""
        if self._restarted and self._controller.in_force(self._version):
            self._restarted = False
            self._react("controller back")
        if self._awaited is not None and self._controller.in_force(self._version):
            self._react("entries in force", self._awaited.what, due=self._awaited.due)
            self._awaited = None
            # nobody reads it again; flaps would leave thousands
            self._program(self._version - 1).unlink(missing_ok=True)
            self._settled_at = time.monotonic() + REVALIDATION
        if self._orders and self._awaited is None and time.monotonic() >= self._settled_at:
            self._send(self._orders.popleft())

    def _send(self, order: _Order) -> None:
        update = order.update
        program = self._program(self._version + 1)
        write_program(program, self._topology, update.entries)
        self._version = self._controller.update(program)
        self._awaited = order
        if update.labels and self._fabric.label_engine is not None:
            self._fabric.label_engine.configure(update.labels, self._clock.dilation)

    def _program(self, version: int) -> Path:
        return self._programs / f"program-{version}.json"

    def _note_paths(self) -> None:
        paths = self._request_paths(self._known)
        changed = {c: ways for c, ways in paths.items() if ways != self._paths[c]}
        self._paths = paths
        if changed:
            self.path_changes.append(PathChange(self._clock.now(), changed))

    def _request_paths(self, state: LinkState) -> dict[int, tuple[PlannedPath, ...]]:
        paths = self._network.routes(state).paths
        return {connection: ways for (connection, reverse), ways in paths.items() if not reverse}

    def _react(self, what: str, subject: str = "", *, due: float | None = None) -> None:
        now = self._clock.now()
        late = 0.0 if due is None else max(0.0, now - due)
        self.records.append(FaultRecord(now, what, subject, reaction=True, late=late))


class _TrafficMatrix:
    """Which NICs have sent since the controller last looked; it looks every ``interval`` seconds.

    While nobody sends there is nothing to look at, and nothing due.
    """

    def __init__(self, fabric: Fabric, interval: float | None) -> None:
        self._mmu = fabric.mmu
        interfaces = fabric.topology.interfaces
        self._nics = {row: i.name for row, i in enumerate(interfaces.values()) if i.address}
        self._interval = interval
        self._next = math.inf if interval is None else interval
        self._counted = self._sent()
        self._senders: frozenset[str] | None = None

    @property
    def due(self) -> float:
        """Emulated time of the next look; infinity if nothing has been sent since the last."""
        if self._interval is None or not (self._sent() > self._counted).any():
            return math.inf
        return self._next

    def recompute(self, now: float) -> frozenset[str] | None:
        """The NIC interfaces that have sent, if a look is due and finds others than the last."""
        if self._interval is None or now < self._next:
            return None
        self._next = self._interval * (math.floor(now / self._interval) + 1)
        sent = self._sent()
        rows = np.flatnonzero(sent > self._counted).tolist()
        self._counted = sent
        senders = frozenset(self._nics[row] for row in rows if row in self._nics)
        if not senders or senders == self._senders:
            return None
        self._senders = senders
        return senders

    def _sent(self) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        data: np.ndarray[tuple[int], np.dtype[np.uint64]] = self._mmu.ports["dequeued"]["packets"][
            :, 0
        ].copy()
        return data
