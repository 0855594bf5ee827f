"""The agent of the faults with a fabric and a controller that only remember what was asked."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.activity import ActivityBoard
from testbed.asic.mmu import LINK_DOWN, PORT_DTYPE, Mmu
from testbed.clock import EmulatedClock
from testbed.failure_agent import NEVER_HAPPENED, FailureAgent
from testbed.failures import FaultTimeline
from testbed.reconvergence import Reconvergence
from testbed.scenario import Scenario, build_topology, plan_traffic
from testbed.telemetry import Telemetry
from testbed.topology import Topology

DILATION = 1.0
"""So that an emulated microsecond passes in one of wall time, unless the clock skips."""


def bare_mmu(topology: Topology) -> Mmu:
    """The buffer program's counters without the program."""
    mmu = object.__new__(Mmu)
    mmu._interfaces = list(topology.interfaces.values())
    mmu.ports = np.zeros(len(topology.interfaces), dtype=PORT_DTYPE)
    mmu.take_drops = list  # type: ignore[method-assign]
    return mmu


class FakeFabric:
    """Remembers which queues were thrown away and which rates were set."""

    label_engine = None

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.mmu = bare_mmu(topology)
        self.discarded: list[str] = []
        self.rates: dict[str, float] = {}

    def discard_queue(self, interface: str) -> None:
        self.discarded.append(interface)

    def change_rate(self, interface: str, rate: float) -> None:
        self.rates[interface] = rate

    def queue(self, interface: str, packets: int) -> None:
        """Let frames of 1000 bytes wait at an interface."""
        row = self.mmu.row(interface)
        row["enqueued"]["packets"][0] += packets
        row["enqueued"]["bytes"][0] += 1000 * packets
        row["enqueued_bytes"] += 1000 * packets


class FakeController:
    """Has programs in force when told so."""

    def __init__(self) -> None:
        self.programs: list[Path] = []
        self.reached = 0
        self.restarts = 0

    def update(self, program: Path) -> int:
        self.programs.append(program)
        return len(self.programs)

    def in_force(self, version: int) -> bool:
        return self.reached >= version

    def restart(self) -> None:
        self.restarts += 1
        self.reached = -1


class World:
    """An agent in the middle of a run."""

    def __init__(self, folder: Path, *, dual: bool = False, **faults: Any) -> None:
        hpn = {"kind": "hpn", "segments": 2, "servers_per_segment": 1, "gpus_per_server": 1}
        leaf_spine = {"kind": "leaf-spine", "leaves": 2, "spines": 2, "servers_per_leaf": 1}
        scenario = Scenario.from_document(
            {
                "name": "world",
                "topology": {**hpn, "spines": 2} if dual else leaf_spine,
                "workload": {"kind": "permutation", "message_size": "64 KiB"},
                "faults": {"detection": "1 ms", "convergence": "3 ms", **faults},
            }
        )
        self.topology = build_topology(scenario)
        self.fabric: Any = FakeFabric(self.topology)
        self.controller: Any = FakeController()
        self.clock = EmulatedClock(bytearray(64), DILATION)
        self.board = ActivityBoard(len(self.topology.servers), len(self.topology.interfaces))
        self.wake = [os.eventfd(0, os.EFD_NONBLOCK) for _ in self.topology.servers]
        self.rates: list[tuple[str, float]] = []
        self.telemetry = Telemetry(
            self.topology, self.fabric.mmu, self.clock, self.board, self.wake
        )
        self.agent = FailureAgent(
            FaultTimeline(scenario.faults, self.topology),
            Reconvergence(scenario, self.topology, plan_traffic(scenario, self.topology)),
            fabric=self.fabric,
            controller=self.controller,
            board=self.board,
            wake_descriptors=self.wake,
            clock=self.clock,
            on_rate_change=lambda *change: self.rates.append(change),
            programs=folder,
        )
        self.telemetry.follow(self.agent)
        self.clock.start()

    def at(self, milliseconds: float) -> None:
        """Go to an emulated time and take the steps that are due then."""
        self.clock.skip_to(milliseconds * 1e-3)
        self.agent.tick()

    def confirm(self) -> None:
        """Let the controller say that the last update is in force, and the switches settle."""
        self.controller.reached = len(self.controller.programs)
        self.agent.tick()
        time.sleep(0.025)

    def woken(self) -> list[int]:
        """Servers that have been woken since the last call."""
        found = []
        for number, descriptor in enumerate(self.wake):
            try:
                os.eventfd_read(descriptor)
                found.append(number)
            except BlockingIOError:
                pass
        return found

    def close(self) -> None:
        for descriptor in self.wake:
            os.close(descriptor)


@pytest.fixture
def world(tmp_path) -> Iterator[Any]:
    made: list[World] = []

    def make(**faults: Any) -> World:
        made.append(World(tmp_path, **faults))
        return made[-1]

    yield make
    for each in made:
        each.close()


UPLINK = {"link": "leaf1-spine1", "down": "1 s", "up": "2 s"}


def test_a_cut_takes_both_ends_down_and_writes_off_what_waited(world) -> None:
    w = world(links=[UPLINK])
    w.fabric.queue("spine1-leaf1", 5)
    w.fabric.queue("leaf1-spine2", 3)
    w.at(999)
    assert not w.fabric.mmu.ports["down"].any()
    w.at(1000)
    down = {name for name in w.topology.interfaces if w.fabric.mmu.row(name)["down"]}
    assert down == {"leaf1-spine1", "spine1-leaf1"}
    assert w.fabric.discarded == ["spine1-leaf1"]
    assert w.fabric.mmu.row("spine1-leaf1")["dropped"]["packets"][LINK_DOWN, 0] == 5
    assert w.fabric.mmu.depths().sum() == 3000, "only the cut link's queues are lost"
    assert [(r.what, r.flushed) for r in w.agent.records] == [("link down", 5)]
    w.at(2000)
    assert not w.fabric.mmu.ports["down"].any()


def test_updates_follow_one_another_and_nothing_is_settled_before(world) -> None:
    w = world(links=[UPLINK])
    assert w.agent.settled
    w.at(1000)
    assert w.controller.programs == []
    assert w.agent.next_time == pytest.approx(1.001)
    w.at(1001)
    assert len(w.controller.programs) == 1
    assert not w.agent.settled
    w.at(1003)
    assert len(w.controller.programs) == 1, "the first one is not in force yet"
    w.controller.reached = 1
    w.agent.tick()
    assert len(w.controller.programs) == 1, "the switches still use what they have cached"
    time.sleep(0.025)
    w.agent.tick()
    assert len(w.controller.programs) == 2
    w.confirm()
    assert w.agent.settled
    assert [r.what for r in w.agent.records] == ["link down"] + 2 * ["entries in force"]
    assert [r.reaction for r in w.agent.records] == [False, True, True]
    assert len(set(w.controller.programs)) == 2
    assert w.agent.next_time == pytest.approx(2.0)


def test_a_nic_sees_its_port_down_after_detection_and_is_woken(world) -> None:
    w = world(dual=True, switches=[{"switch": "leaf1", "down": "1 s", "up": "2 s"}])
    ports = {name: row for row, name in enumerate(w.topology.interfaces)}
    (nic,) = [
        i.peer for i in w.topology.interfaces_of("leaf1") if w.topology.interfaces[i.peer].address
    ]
    server = [s.name for s in w.topology.servers].index(w.topology.interfaces[nic].node)
    w.at(1000)
    assert (w.board.port_down.sum(), w.woken()) == (0, [])
    w.at(1001)
    assert w.board.port_down[ports[nic]] == w.board.port_down.sum() == 1
    assert w.woken() == [server]
    w.confirm()
    w.at(2001)
    assert (w.board.port_down.sum(), w.woken()) == (0, [server])


def test_slow_links_change_their_rate_both_ways(world) -> None:
    w = world(slow=[{"link": "leaf1-spine1", "rate": "100 Gbps", "at": "1 s"}])
    w.at(1000)
    assert w.fabric.rates == {"leaf1-spine1": 100e9, "spine1-leaf1": 100e9}
    assert dict(w.rates) == w.fabric.rates
    assert [record.subject for record in w.agent.records] == ["leaf1-spine1 at 100 Gb/s"]
    assert w.agent.settled
    assert w.controller.programs == []


def test_what_is_down_from_the_start_lets_no_packet_pass(world) -> None:
    start, later = ({"link": "leaf1-spine1", "down": time} for time in ("0 s", "1 s"))
    w: World = world(links=[start, {**later, "link": "leaf2-spine1"}], detection="0 s")
    w.clock.skip_to(500)  # the clock has not been started: what it says means nothing
    w.agent.begin()
    assert w.fabric.mmu.row("leaf1-spine1")["down"]
    assert not w.fabric.mmu.row("leaf2-spine1")["down"]
    assert [(r.time, r.late) for r in w.agent.records] == [(0.0, 0.0)]
    assert w.agent.physical.failed == {"leaf1-spine1"}
    assert w.agent.settled, "switches and NICs are told when the traffic has begun"


def test_how_late_a_fault_and_the_reactions_to_it_are(world) -> None:
    cut = {"link": "leaf1-spine1", "down": "1 s"}
    w: World = world(links=[cut], detection="1 s", convergence="5 s")
    w.at(1250)
    w.at(2000)
    w.clock.skip_to(2.5)
    w.controller.reached = 1
    w.agent.tick()
    cut, in_force = w.agent.records
    assert cut.late == pytest.approx(0.25, abs=0.1)
    assert in_force.reaction and in_force.late == pytest.approx(0.5, abs=0.1)


def test_what_waits_for_a_killed_controller_has_no_time_to_keep(world) -> None:
    cut = {"link": "leaf1-spine1", "down": "1 s"}
    restart = {"restart": "1.5 s"}
    w: World = world(links=[cut], controller=[restart], detection="1 s", convergence="5 s")
    w.at(1000)
    w.at(1500)
    w.at(2000)
    w.clock.skip_to(9)
    w.controller.reached = 1
    w.agent.tick()
    (in_force,) = [r for r in w.agent.records if r.what == "entries in force"]
    assert in_force.time > 9 and in_force.late == 0


def test_a_restart_is_settled_when_the_controller_is_back(world) -> None:
    w = world(controller=[{"restart": "1 s"}])
    w.at(1000)
    assert w.controller.restarts == 1
    assert not w.agent.settled
    w.controller.reached = 0
    w.agent.tick()
    assert w.agent.settled
    assert [r.what for r in w.agent.records] == ["controller restart", "controller back"]


def test_after_the_traffic_only_what_has_happened_takes_its_course(world) -> None:
    w = world(links=[UPLINK, {"link": "leaf2-spine1", "down": "3 s"}])
    w.at(1000)
    w.controller.in_force = lambda version: True
    w.agent.settle()
    assert w.agent.physical.failed == {"leaf1-spine1"}
    assert len(w.controller.programs) == 2
    assert w.agent.settled
    assert w.agent.next_time == float("inf")
    assert not w.fabric.mmu.row("leaf2-spine1")["down"]


def test_what_the_traffic_did_not_wait_for_is_on_record(world) -> None:
    cuts = [{"link": "leaf1-spine1", "down": "1 ms", "up": "2 ms"}]
    w: World = world(
        links=cuts, controller=[{"restart": "9 ms"}], detection="0 s", convergence="0 s"
    )
    w.at(1)
    w.controller.reached = 99
    w.agent.settle()
    assert [r.what for r in w.agent.records if not r.reaction] == ["link down"]
    (left_out,) = [r for r in w.agent.records if r.what == NEVER_HAPPENED]
    assert (left_out.time, left_out.reaction) == (0.002, True)
    assert left_out.subject == "link up of leaf1-spine1 and 1 more"


def test_paths_change_when_all_know(world) -> None:
    w = world(links=[UPLINK])
    w.at(1002)
    assert w.agent.path_changes == []
    w.at(1003)
    (change,) = w.agent.path_changes
    assert change.paths
    for ways in change.paths.values():
        assert not any({"leaf1-spine1", "spine1-leaf1"} & set(way.interfaces) for way in ways)


def idle(w: World, *, timer: float = float("inf"), finished: bool = False) -> None:
    """Let all servers wait."""
    for number in range(len(w.topology.servers)):
        row = w.board.row(number)
        row.begin(1)
        if finished:
            row.finish_rank()
        row.wait(timer)


def test_idle_time_is_skipped_to_the_next_step(world) -> None:
    w = world(links=[{"link": "leaf1-spine1", "down": "100 s"}])
    idle(w, timer=500.0)
    w.telemetry.tick()
    assert w.clock.now() == pytest.approx(100, abs=0.5)
    w.agent.tick()
    w.clock.skip_to(100.01)
    w.agent.tick()
    before = w.clock.now()
    w.telemetry.tick()
    assert w.clock.now() - before < 1, "an update is on its way"
    for _ in range(2):
        w.confirm()
        w.agent.tick()
    w.telemetry.tick()
    assert w.clock.now() == pytest.approx(500, abs=0.5)


@pytest.mark.parametrize("finished", [False, True])
def test_a_run_ends_before_its_faults_only_if_all_have_finished(world, finished) -> None:
    w = world(links=[{"link": "leaf1-spine1", "down": "100 s"}])
    idle(w, finished=finished)
    assert w.telemetry.quiescent is finished
    w.telemetry.tick()
    assert (w.clock.now() < 1) is finished, "an end is not put off to the next fault"


COUNTS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=3, max_size=3)


@given(COUNTS)
def test_what_is_written_off_was_offered_and_waits_no_more(counts) -> None:
    topology = SimpleNamespace(
        interfaces={"a": SimpleNamespace(name="a"), "b": SimpleNamespace(name="b")}
    )
    mmu = bare_mmu(topology)  # type: ignore[arg-type]
    row = mmu.row("a")
    for number, (left, waiting) in enumerate(counts):
        for unit, size in (("packets", 1), ("bytes", 1000)):
            row["enqueued"][unit][number] = (left + waiting) * size
            row["dequeued"][unit][number] = left * size
    row["enqueued_bytes"] = row["enqueued"]["bytes"].sum()
    row["dequeued_bytes"] = row["dequeued"]["bytes"].sum()
    assert mmu.write_off("a") == sum(waiting for _, waiting in counts)
    assert mmu.depths().tolist() == [0, 0]
    for unit, size in (("packets", 1), ("bytes", 1000)):
        assert (row["enqueued"][unit] == row["dequeued"][unit]).all()
        lost = row["dropped"][unit][LINK_DOWN].tolist()
        assert lost == [waiting * size for _, waiting in counts]
