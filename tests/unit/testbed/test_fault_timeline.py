"""The timeline of faults: which links are down when, and who knows of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from testbed.failures import (
    FaultError,
    FaultKind,
    FaultTimeline,
    StepKind,
    slowed_from_start,
)
from testbed.schema import Faults
from testbed.topology import create_topology

US = 1e-6
LINKS = ["leaf1-spine1", "leaf1-spine2", "leaf2-spine1", "rank0-leaf1"]


FABRIC = create_topology("leaf-spine", leaves=2, spines=2, servers_per_leaf=2)


def timeline(**faults: Any) -> FaultTimeline:
    return FaultTimeline(Faults.model_validate(faults), FABRIC)


def us(number: float) -> str:
    return f"{number} us"


outages = st.tuples(st.integers(0, 40), st.none() | st.integers(1, 20)).map(
    lambda pair: (pair[0], None if pair[1] is None else pair[0] + pair[1])
)
link_faults = st.lists(st.tuples(st.sampled_from(LINKS), outages), max_size=5)
switch_faults = st.lists(st.tuples(st.sampled_from(["leaf1", "spine1"]), outages), max_size=2)
flaps = st.lists(
    st.tuples(st.sampled_from(LINKS), st.integers(0, 30), st.integers(1, 5), st.integers(1, 4)),
    max_size=2,
)


def as_faults(links: Any, switches: Any, flapping: Any) -> dict[str, Any]:
    def times(down: int, up: int | None) -> dict[str, Any]:
        return {"down": us(down), "up": None if up is None else us(up)}

    return {
        "links": [{"link": link, **times(*outage)} for link, outage in links],
        "switches": [{"switch": switch, **times(*outage)} for switch, outage in switches],
        "flaps": [
            {"link": link, "at": us(at), "period": us(2 * half), "count": count}
            for link, at, half, count in flapping
        ],
    }


def held_down(links: Any, switches: Any, flapping: Any, link: str, time: float) -> bool:
    """By the words of the scenario, without a timeline: is the link down just after ``time``?"""
    ends = {FABRIC.interfaces[link].node, FABRIC.interfaces[link].peer_node}
    spans = [outage for name, outage in links if name == link]
    spans += [outage for name, outage in switches if name in ends]
    spans += [
        (at + 2 * half * number, at + 2 * half * number + half)
        for name, at, half, count in flapping
        if name == link
        for number in range(count)
    ]
    return any(down <= time and (up is None or time < up) for down, up in spans)


@settings(max_examples=150, deadline=None)
@given(link_faults, switch_faults, flaps)
def test_state_after_each_event_is_what_the_scenario_says(links, switches, flapping) -> None:
    line = timeline(**as_faults(links, switches, flapping))
    times = [event.time for event in line.events]
    assert times == sorted(times)
    last_of_instant = {event.time: (event, n) for n, event in enumerate(line.events)}
    for event, number in last_of_instant.values():
        state = line.states[number]
        for link in LINKS:
            expected = held_down(links, switches, flapping, link, round(event.time / US))
            assert (not state.up(FABRIC.interfaces[link])) == expected, (link, event)


@settings(max_examples=150, deadline=None)
@given(link_faults, switch_faults, flaps)
def test_an_event_names_exactly_the_links_that_change(links, switches, flapping) -> None:
    line = timeline(**as_faults(links, switches, flapping))
    failed: frozenset[str] = frozenset()
    for event, state in zip(line.events, line.states, strict=True):
        assert set(event.links) == failed ^ state.failed
        going_down = event.kind in (FaultKind.LINK_DOWN, FaultKind.SWITCH_DOWN)
        assert set(event.links) == (state.failed - failed if going_down else failed - state.failed)
        failed = state.failed


@settings(max_examples=150, deadline=None)
@given(link_faults, switch_faults, flaps, st.integers(0, 9), st.integers(0, 90))
def test_views_are_the_same_states_later(links, switches, flapping, detection, more) -> None:
    convergence = detection + more
    line = timeline(
        **as_faults(links, switches, flapping), detection=us(detection), convergence=us(convergence)
    )
    delays = {StepKind.PHYSICAL: 0, StepKind.LOCAL: detection, StepKind.GLOBAL: convergence}
    views = {StepKind.PHYSICAL: "physical", StepKind.LOCAL: "local", StepKind.GLOBAL: "known"}
    order = [(step.time, step.kind) for step in line.steps]
    assert order == sorted(order)
    for kind, delay in delays.items():
        taken = [
            (round((step.time - delay * US) / US), getattr(step, views[kind]))
            for step in line.steps
            if step.kind is kind and step.event.links
        ]
        assert taken == [
            (round(event.time / US), state)
            for event, state in zip(line.events, line.states, strict=True)
            if event.links
        ]
    if line.steps:
        last = line.steps[-1]
        assert last.physical == last.local == last.known == line.states[-1]


def test_overlapping_faults_of_one_link() -> None:
    line = timeline(
        links=[
            {"link": "leaf1-spine1", "down": "1 us", "up": "5 us"},
            {"link": "spine1-leaf1", "down": "3 us", "up": "9 us"},
        ]
    )
    assert [(round(event.time / US), event.links) for event in line.events] == [
        (1, ("leaf1-spine1",)), (3, ()), (5, ()), (9, ("leaf1-spine1",)),
    ]  # fmt: skip


def test_a_link_handed_over_at_one_instant_does_not_blink() -> None:
    line = timeline(
        links=[
            {"link": "leaf1-spine1", "down": "0.05 ms", "up": "0.1 ms"},
            {"link": "leaf1-spine1", "down": "100 us"},
        ]
    )
    assert [event.links for event in line.events] == [("leaf1-spine1",), (), ()]


def test_a_dead_switch_takes_its_links_along() -> None:
    line = timeline(switches=[{"switch": "leaf1", "down": "1 us", "up": "2 us"}])
    down, up = line.events
    assert set(down.links) == {"rank0-leaf1", "rank1-leaf1", "leaf1-spine1", "leaf1-spine2"}
    assert (down.kind, up.kind) == (FaultKind.SWITCH_DOWN, FaultKind.SWITCH_UP)
    assert up.links == down.links
    assert line.states[-1].failed == frozenset()


def test_slow_links_both_ways_and_from_the_start_only_at_0() -> None:
    faults = Faults.model_validate(
        {
            "slow": [
                {"link": "spine1-leaf1", "rate": "100 Gbps"},
                {"link": "leaf2-spine2", "rate": "50 Gbps", "at": "1 us"},
            ]
        }
    )
    slowed = slowed_from_start(FABRIC, faults)
    assert {i.name: i.rate for i in slowed.interfaces.values() if i.rate != 400e9} == {
        "leaf1-spine1": 100e9,
        "spine1-leaf1": 100e9,
    }
    assert slowed_from_start(FABRIC, Faults()) is FABRIC
    steps = FaultTimeline(faults, FABRIC).steps
    assert [(step.event.subject, step.kind) for step in steps] == [
        ("leaf2-spine2", StepKind.PHYSICAL)
    ]


def test_a_controller_restart_changes_no_link() -> None:
    (step,) = timeline(controller=[{"restart": "3 us"}]).steps
    assert (step.kind, step.event.kind) == (StepKind.PHYSICAL, FaultKind.CONTROLLER_RESTART)
    assert step.known == step.physical


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        (
            {"links": [{"link": "leaf9-spine1", "down": "1 us"}]},
            "links.0.link: 'leaf9-spine1' is no link; did you mean 'leaf",
        ),
        ({"links": [{"link": "leaf1", "down": "1 us"}]}, "links.0.link: 'leaf1' is no link; "),
        (
            {"flaps": [{"link": "spine1-spine2", "at": "1 us", "period": "2 us"}]},
            "flaps.0.link: 'spine1-spine2' is no link; ",
        ),
        (
            {"switches": [{"switch": "leave1", "down": "1 us"}]},
            "switches.0.switch: 'leave1' is no switch; did you mean 'leaf1'? allowed: leaf1, leaf2",
        ),
        ({"switches": [{"switch": "server1", "down": 0}]}, "'server1' is no switch; allowed: "),
        (
            {"slow": [{"link": "leaf1-spine1", "rate": "800 Gbps"}]},
            "slow.0.rate: 800 Gb/s is above what the link was built to; allowed: at most 400 Gb/s",
        ),
    ],
)
def test_names_that_the_topology_does_not_have(faults, message) -> None:
    with pytest.raises(FaultError) as caught:
        timeline(**faults)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "faults",
    [
        {"links": [{"link": "leaf1-spine1", "down": "2 us", "up": "2 us"}]},
        {"switches": [{"switch": "leaf1", "down": "2 us", "up": "1 us"}]},
        {"flaps": [{"link": "leaf1-spine1", "at": "1 us", "period": "0 us"}]},
        {"flaps": [{"link": "leaf1-spine1", "at": "1 us", "period": "1 us", "count": 0}]},
        {"links": [{"link": "leaf1-spine1"}]},
        {"detection": "20 us", "convergence": "10 us"},
        {"slow": [{"link": "leaf1-spine1", "rate": "0 Gbps"}]},
    ],
)
def test_times_that_make_no_sense(faults) -> None:
    with pytest.raises(ValidationError):
        Faults.model_validate(faults)
