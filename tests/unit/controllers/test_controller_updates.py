"""Programs that follow one another: what is sent is the difference; restarts keep the latest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from fake_switch import FakeSwitch
from hypothesis import given
from hypothesis import strategies as st

from controllers.differences import Differences
from controllers.entries import Drop, Entry, Output
from controllers.process import ControllerError, ControllerProcess
from controllers.program import write_program
from controllers.schemes import create_scheme
from testbed.topology import Topology

Build = Callable[..., Topology]
Entries = dict[str, list[Entry]]

ENTRIES = st.builds(
    Entry,
    table=st.integers(0, 1),
    priority=st.integers(0, 2),
    match=st.fixed_dictionaries({}, optional={"in_port": st.integers(1, 2)}),
    actions=st.sampled_from([(Drop(),), (Output(1),), (Output(2),)]),
)


def identity(entry: Entry) -> tuple[int, int, tuple[tuple[str, object], ...]]:
    return entry.table, entry.priority, tuple(entry.match.items())


def held(entries: list[Entry]) -> dict[object, Entry]:
    """What a switch holds that was sent these entries one after the other."""
    return {identity(entry): entry for entry in entries}


@given(st.lists(ENTRIES), st.lists(ENTRIES))
def test_differences_lead_from_one_to_the_other(old: list[Entry], new: list[Entry]) -> None:
    differences = Differences.between(old, new)
    table = held(old)
    for entry in differences.removed:
        del table[identity(entry)]
    for entry in differences.added:
        assert identity(entry) not in table
        table[identity(entry)] = entry
    for entry in differences.modified:
        assert table[identity(entry)].actions != entry.actions
        table[identity(entry)] = entry
    assert table == held(new)
    assert bool(differences) == (held(old) != held(new))


@pytest.fixture
def topology(leaf_spine: Build) -> Topology:
    return leaf_spine(leaves=2, spines=1, servers_per_leaf=1)


@pytest.fixture
def entries(topology: Topology) -> Entries:
    return create_scheme("static").entries(topology)


class Bench:
    """A controller with a fake switch for each of the topology's."""

    def __init__(self, folder: Path, topology: Topology, entries: Entries) -> None:
        self._folder = folder
        self._topology = topology
        self.controller = ControllerProcess(
            self.file(entries), log=folder / "log", listen="127.0.0.1:0"
        )
        self.switches: list[FakeSwitch] = []

    def file(self, entries: Mapping[str, list[Entry]]) -> Path:
        path = self._folder / f"program{len(list(self._folder.glob('program*')))}.json"
        write_program(path, self._topology, entries)
        return path

    def start(self) -> None:
        self.controller.start()
        self.connect()
        self.controller.wait_ready(10)

    def connect(self) -> None:
        port = self.controller.wait_listening(20)
        self.switches = [FakeSwitch(port, node.datapath_id) for node in self._topology.switches]

    def wait(self, version: int) -> None:
        deadline = time.monotonic() + 10
        while not self.controller.in_force(version):
            assert time.monotonic() < deadline, self.controller.events
            time.sleep(0.005)

    def said(self) -> list[list[str]]:
        """What each switch was told since the last call."""
        told = [[what for _, what in switch.said] for switch in self.switches]
        for switch in self.switches:
            switch.said.clear()
        return told


@pytest.fixture
def bench(tmp_path: Path, topology: Topology, entries: Entries) -> Iterator[Bench]:
    bench = Bench(tmp_path, topology, entries)
    try:
        yield bench
    finally:
        bench.controller.stop()


def test_an_update_is_one_bundle_of_differences(bench: Bench, entries: Entries) -> None:
    bench.start()
    bench.said()
    gone, kept, *others = entries["leaf1"]
    new = Entry(0, 7, {"in_port": 1}, (Drop(),))
    entries["leaf1"] = [replace(kept, actions=(Output(1),)), new, *others]
    assert gone not in entries["leaf1"]
    version = bench.controller.update(bench.file(entries))
    bench.wait(version)
    assert bench.said() == [["open", "delete strict", "add", "add", "commit"], [], []]


def test_an_update_without_differences_is_in_force_at_once(bench: Bench, entries: Entries) -> None:
    bench.start()
    bench.said()
    bench.wait(bench.controller.update(bench.file(entries)))
    assert bench.said() == [[], [], []]


def test_updates_before_the_switches_connect(bench: Bench, entries: Entries) -> None:
    bench.controller.start()
    entries["leaf1"].append(Entry(0, 7, {"in_port": 1}, (Drop(),)))
    version = bench.controller.update(bench.file(entries))
    assert not bench.controller.in_force(version)
    bench.connect()
    bench.wait(version)
    # a switch may still be quicker than the update, and get the old program first
    added = [sayings[::-1][: sayings[::-1].index("delete")] for sayings in bench.said()]
    assert [sayings.count("add") for sayings in added] == [len(e) for e in entries.values()]


def test_updates_follow_one_another(bench: Bench, entries: Entries) -> None:
    bench.start()
    bench.said()
    versions = []
    for number in range(3):
        entries["spine1"].append(Entry(0, 10 + number, {"in_port": 1}, (Drop(),)))
        versions.append(bench.controller.update(bench.file(entries)))
    assert versions == [1, 2, 3]
    bench.wait(versions[-1])
    # one that comes before the last is in force stands for all that the switch shall hold
    told = bench.said()[2]
    assert told[-1] == "commit"
    assert told.count("add") >= 3


def test_a_restarted_controller_has_the_latest_program(bench: Bench, entries: Entries) -> None:
    bench.start()
    entries["leaf1"].append(Entry(0, 7, {"in_port": 1}, (Drop(),)))
    version = bench.controller.update(bench.file(entries))
    bench.wait(version)
    before = bench.controller.pid
    bench.controller.restart()
    assert bench.controller.pid != before
    assert not bench.controller.in_force(version)
    bench.connect()
    bench.wait(version)
    size = len(entries["leaf1"])
    assert bench.said()[0] == ["open", "delete", *["add"] * size, "commit"]
    entries["leaf1"].pop()
    bench.wait(bench.controller.update(bench.file(entries)))
    assert bench.said()[0] == ["open", "delete strict", "commit"]


def test_a_refused_update_is_reported(bench: Bench, entries: Entries) -> None:
    bench.start()
    for switch in bench.switches:
        switch.refuse = switch.experimenter_messages + 1
    entries["spine1"].append(Entry(0, 7, {"in_port": 1}, (Output(99),)))
    version = bench.controller.update(bench.file(entries))
    with pytest.raises(ControllerError, match=r"spine1: OFPET_BAD_ACTION.*Output\(port=99\)"):
        bench.wait(version)


def test_an_update_that_cannot_be_read_is_reported(bench: Bench, tmp_path: Path) -> None:
    bench.start()
    with pytest.raises(ControllerError, match=r"none\.json: .*No such file"):
        bench.wait(bench.controller.update(tmp_path / "none.json"))


def test_an_update_without_a_controller_is_an_error(bench: Bench, entries: Entries) -> None:
    bench.start()
    bench.controller.stop()
    with pytest.raises(ControllerError, match="the controller was not started"):
        bench.wait(bench.controller.update(bench.file(entries)))
