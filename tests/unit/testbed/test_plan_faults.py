"""What a plan says of its faults, and which way flows start under those that have happened."""

from __future__ import annotations

import io

from rich.console import Console

from testbed.plan_faults import FAILS, SLOW, PlannedStarts, fault_rows, loss_notes, troubled_links
from testbed.plan_view import print_plan
from testbed.scenario import build_topology, load_scenario, plan_traffic
from testbed.schema import Faults

CUT = "faults.links=[{link: leaf1-spine1, down: 10 us, up: 1 ms}]"


def starts(*overrides: str, name: str = "permutation") -> PlannedStarts:
    scenario = load_scenario(
        name, ["routing.scheme=static", "variants=[]", "expect=[]", *overrides]
    )
    topology = build_topology(scenario)
    return PlannedStarts(scenario, topology, plan_traffic(scenario, topology))


def shown(name: str, *overrides: str) -> str:
    console = Console(file=io.StringIO(), width=120, highlight=False)
    print_plan(load_scenario(name, ["dilation=1000", *overrides]), console)
    return " ".join(console.file.getvalue().replace("│", " ").split())


def flows_at(start: str) -> str:
    return (
        "workload={kind: flows, flows: ["
        f"{{source: 0, destination: 4, size: 4 KiB, start: {start}}}, "
        f"{{source: 1, destination: 5, size: 4 KiB, start: {start}}}]}}"
    )


def test_a_flow_starts_on_the_way_that_all_switches_know() -> None:
    crossing = "leaf1-spine1"
    before, blind, noticed, after, healed = (
        [planned.of(flow) for flow in planned.plan.flows]
        for planned in (
            starts(CUT, flows_at(t)) for t in ("0 us", "15 us", "50 us", "200 us", "2 ms")
        )
    )
    (used,) = [start for start in before if crossing in start.ways[0]]
    assert before == healed
    assert all(start.cut == start.noticed == () for start in (*before, *after))
    for found in (blind, noticed):
        assert [start.ways for start in found] == [start.ways for start in before]
        assert [start.cut for start in found] == [(crossing,) * (start == used) for start in before]
    # its switch knows 10 us after the link has failed, the others after 100 us
    assert all(start.noticed == () for start in blind)
    assert all(start.noticed == start.cut for start in noticed)
    assert all(crossing not in way for start in after for way in start.ways)
    assert "leaf1-spine1 is down, as leaf1 knows" in shown(
        "permutation", "variants=[]", "expect=[]", "routing.scheme=static", CUT, flows_at("50 us")
    )


def test_no_way_is_left() -> None:
    links = ", ".join(f"{{link: leaf1-spine{n}, down: 0 us}}" for n in range(1, 5))
    planned = starts(f"faults.links=[{links}]", flows_at("1 ms"))
    assert [planned.of(flow).ways for flow in planned.plan.flows] == [(), ()]
    text = shown("permutation", f"faults.links=[{links}]", flows_at("1 ms"))
    assert "no way is left" in text


def test_rows_say_who_knows_when() -> None:
    faults = Faults.model_validate(
        {
            "links": [{"link": "leaf1-spine1", "down": "10 us", "up": "1 ms"}],
            "slow": [{"link": "leaf1-spine2", "rate": "100 Gbps"}],
            "controller": [{"restart": "30 us"}],
            "detection": "5 us",
            "convergence": "50 us",
        }
    )
    planned = starts(
        CUT, "faults.slow=[{link: leaf1-spine2, rate: 100 Gbps}]",
        "faults.controller=[{restart: 30 us}]", "faults.detection=5 us", "faults.convergence=50 us",
    )  # fmt: skip
    assert fault_rows(planned.timeline, faults) == [
        ("0", "link slow", "leaf1-spine2, 100 Gb/s", "–", "–"),
        ("10.0 us", "link down", "leaf1-spine1", "15.0 us", "60.0 us"),
        ("30.0 us", "controller restart", "–", "–", "–"),
        ("1.00 ms", "link up", "leaf1-spine1", "1.01 ms", "1.05 ms"),
    ]
    assert troubled_links(planned.timeline) == {"leaf1-spine1": FAILS, "leaf1-spine2": SLOW}


def test_a_variant_that_differs_in_its_faults_is_shown() -> None:
    text = shown("central-te")
    assert "variant te-cut leaf-spine" in text
    assert text.count("link down leaf1-spine4 10.0 us 100 us") == 2


def test_a_switch_that_dies_takes_all_of_its_links() -> None:
    planned = starts("faults.switches=[{switch: spine2, down: 1 us}]")
    assert troubled_links(planned.timeline) == {"leaf1-spine2": FAILS, "leaf2-spine2": FAILS}


def test_losses_without_a_failure() -> None:
    faults = {"loss": 0.001, "drop": [{"connection": 0, "psn_offset": 3}]}
    notes = loss_notes(Faults.model_validate(faults))
    assert notes == [
        "every data packet is lost with a probability of 0.001",
        "the first switch discards 1 data packet",
    ]
    assert loss_notes(Faults()) == []
