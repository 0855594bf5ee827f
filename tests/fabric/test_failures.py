"""Links, switches and the controller fail amid traffic: what is lost, who knows, what goes on.

The probes that end every run with faults compare predicted with observed paths; a difference makes
the run invalid, which the runner of scenarios does not accept.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from testbed.results import FaultRecord, RunResult, VariantResult
from tests.fabric.machine_state import MachineState
from tests.fabric.scenario_runner import (
    ScenarioRunner,
    assert_between,
    assert_close,
    only_variant,
)
from tests.fabric.test_lifecycle import Run, assert_gone

pytestmark = [
    pytest.mark.fabric,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: builds fabrics"),
    pytest.mark.timeout(240),
]

LINK_RATE = 400e9
FRAME = 4096 + 58
"""Bytes of a full request, from the Ethernet header to the ICRC; a label adds 4."""
PACKET_TIME = (FRAME + 24) * 8 / LINK_RATE
US = 1e-6
REACTION = 2e-6
"""Emulated seconds at DILATION that software may take for a step: 60 ms of wall time."""

DILATION = 30_000

SCENARIO: dict[str, Any] = {
    "name": "failures",
    "topology": {"kind": "leaf-spine", "leaves": 2, "spines": 2, "servers_per_leaf": 2},
    "switch": {"buffer": {"limit": "infinite"}},
    "nic": {"timeout": 8, "recovery": "selective-repeat"},
    "routing": {"scheme": "static"},
    "workload": {
        "kind": "flows",
        "flows": [
            {"source": 0, "destination": 2, "size": "1 MiB"},
            {"source": 1, "destination": 2, "size": "1 MiB"},
            {"source": 2, "destination": 0, "size": "1 MiB"},
        ],
    },
}
"""All flows go through spine1; the first two share leaf1's uplink, and a queue builds there."""


def scenario(faults: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        **SCENARIO,
        "faults": {"detection": "4 us", "convergence": "12 us", **faults},
        **changes,
    }


def happened(variant: VariantResult, what: str) -> list[FaultRecord]:
    return [fault for fault in variant.faults if fault.what == what]


def lost_to_dead_links(variant: VariantResult) -> dict[str, int]:
    """Packets by place."""
    lost: dict[str, int] = {}
    for row in variant.ledger.rows:
        if row.reason == "link down":
            lost[row.place] = lost.get(row.place, 0) + row.packets
    return lost


def assert_sound(variant: VariantResult) -> None:
    assert variant.ledger.closed, variant.ledger.summary
    assert {row.reason for row in variant.ledger.rows if row.fate == "dropped"} <= {"link down"}


def test_a_link_goes_down_and_comes_back(run: ScenarioRunner) -> None:
    def check(result: RunResult) -> None:
        variant = only_variant(result)
        assert_sound(variant)
        assert all(not flow.failed for flow in variant.flows)
        (down,), (up,) = happened(variant, "link down"), happened(variant, "link up")
        assert set(lost_to_dead_links(variant)) <= {"leaf1-spine1", "spine1-leaf1"}
        assert sum(lost_to_dead_links(variant).values()) >= down.flushed_packets > 0
        before = [flow.index for flow in variant.flows if "leaf1-spine1" in flow.path]
        assert before, "no flow used the link"
        away, back = variant.path_changes
        assert set(away.paths) == set(back.paths) >= set(before)
        for index in before:
            (way,) = away.paths[index]
            assert "leaf1-spine1" not in way
            assert back.paths[index] == [variant.flows[index].path]
        assert_between(down.time / US, 10, 10 + REACTION / US, what="link down")
        assert_between(up.time / US, 60, 60 + REACTION / US, what="link up")
        # the leaf turns to its other uplink once it sees the link down, the rest when all know
        for interface, delay in (("leaf1-spine1", 4), ("spine1-leaf1", 12)):
            times = [d.time for d in variant.drops if d.interface == interface]
            last = max(times, default=down.time)
            assert_between(last / US, 10, 10 + delay + REACTION / US, what=f"loss at {interface}")

    faults = {"links": [{"link": "spine1-leaf1", "down": "10 us", "up": "60 us"}]}
    run(scenario(faults), dilation=DILATION, check=check)


def test_a_flapping_link(run: ScenarioRunner) -> None:
    def check(result: RunResult) -> None:
        variant = only_variant(result)
        assert_sound(variant)
        assert all(not flow.failed for flow in variant.flows)
        times = [round(f.time / US) for f in variant.faults if not f.reaction]
        assert len(times) == 6
        assert len(happened(variant, "entries in force")) == 12
        assert len(variant.path_changes) == 6

    flap = {"link": "leaf1-spine1", "at": "5 us", "period": "16 us", "count": 3}
    faults = {"flaps": [flap], "detection": "2 us", "convergence": "4 us"}
    run(scenario(faults), dilation=DILATION, check=check)


def test_idle_time_is_skipped_to_the_next_fault_and_not_beyond(run: ScenarioRunner) -> None:
    """The only path is cut for a tenth of a second; the run does not end, nor wait for it."""

    def check(result: RunResult) -> None:
        variant = only_variant(result)
        assert_sound(variant)
        (up,) = happened(variant, "link up")
        assert_close(up.time, 0.1, tolerance=0.001, what="link up")
        cut_off = [flow for flow in variant.flows if (flow.completion_time or 0.0) > 0.1]
        assert {flow.index for flow in cut_off} == {0, 1, 2}
        assert all(not flow.failed for flow in variant.flows)
        assert variant.skipped_wall_seconds > 0.9 * 0.1 * variant.dilation
        assert variant.wall_seconds < 60

    topology = {**SCENARIO["topology"], "spines": 1}
    faults = {"links": [{"link": "leaf1-spine1", "down": "10 us", "up": "100 ms"}]}
    nic = {**SCENARIO["nic"], "timeout": 14}
    run(scenario(faults, topology=topology, nic=nic), dilation=DILATION, check=check)


def test_a_switch_goes_down_and_comes_back(run: ScenarioRunner) -> None:
    def check(result: RunResult) -> None:
        variant = only_variant(result)
        assert_sound(variant)
        assert all(not flow.failed for flow in variant.flows)
        (down,) = happened(variant, "switch down")
        assert set(down.links) == {"leaf1-spine1", "leaf2-spine1"}
        away, back = variant.path_changes
        for ways in away.paths.values():
            assert not any("spine1" in interface for way in ways for interface in way)
        assert back.paths == {c: [variant.flows[c].path] for c in away.paths}

    faults = {"switches": [{"switch": "spine1", "down": "10 us", "up": "60 us"}]}
    run(scenario(faults), dilation=DILATION, check=check)


def dual_tor(*, dual: bool) -> dict[str, Any]:
    topology = {
        "kind": "hpn", "segments": 2, "servers_per_segment": 2, "gpus_per_server": 1, "spines": 2,
        "dual_tor": dual,
    }  # fmt: skip
    changes = {"topology": topology, "workload": {"kind": "ring-all-reduce", "size": "512 KiB"}}
    nic = {**SCENARIO["nic"], "timeout": 6}
    faults = {"switches": [{"switch": "leaf1", "down": "8 us"}]}
    return scenario(faults, **changes, nic=nic, routing={"scheme": "ecmp"})


def test_a_job_survives_one_of_two_tors(run: ScenarioRunner) -> None:
    def check(result: RunResult) -> None:
        variant = only_variant(result)
        assert_sound(variant)
        assert all(not flow.failed for flow in variant.flows)
        assert [rank.wrong_elements for rank in variant.ranks] == [0] * 4
        assert sum(lost_to_dead_links(variant).values()) > 0
        for ways in variant.path_changes[-1].paths.values():
            assert not any("leaf1" in interface for way in ways for interface in way)

    run(dual_tor(dual=True), dilation=DILATION, check=check)


def test_a_job_does_not_survive_its_only_tor_and_says_so(run: ScenarioRunner) -> None:
    def check(result: RunResult) -> None:
        variant = only_variant(result)
        assert_sound(variant)
        statuses = {flow.status for flow in variant.flows if flow.failed}
        assert "IBV_WC_RETRY_EXC_ERR" in statuses
        assert variant.metrics["failed_flows"] == sum(flow.failed for flow in variant.flows)
        assert any(ways == [] for ways in variant.path_changes[-1].paths.values())
        (line,) = [
            line
            for line in (run.latest / "report.html").read_text().splitlines()
            if "flows failed (" in line and "IBV_WC_RETRY_EXC_ERR" in line
        ]
        assert ") after switch down leaf1" in line

    run(dual_tor(dual=False), dilation=DILATION, check=check)


def test_a_link_that_slows_down(run: ScenarioRunner) -> None:
    """What was sent before at the full rate, the rest at a quarter; nothing is lost by it."""
    size, changed = 2**21, 20 * US

    def check(result: RunResult) -> None:
        variant = only_variant(result)
        assert variant.ledger.closed
        assert variant.metrics["dropped_packets"] == 0
        (flow,) = variant.flows
        (slow,) = happened(variant, "link slow")
        assert result.topology is not None
        packets = size // 4096
        sent = (slow.time - flow.start) / PACKET_TIME
        expected = slow.time - flow.start + (packets - sent) * PACKET_TIME * 4
        expected += result.topology.base_rtt
        assert flow.completion_time is not None
        assert_close(flow.completion_time, expected, tolerance=0.05, what="completion time")

    flows = {"kind": "flows", "flows": [{"source": 0, "destination": 2, "size": size}]}
    slow = {"link": "leaf1-spine1", "rate": "100 Gbps", "at": f"{changed / US:g} us"}
    faults = {"slow": [slow]}
    nic = {**SCENARIO["nic"], "timeout": 14}
    run(scenario(faults, workload=flows, nic=nic), dilation=DILATION, check=check)


def test_adaptive_leaves_a_slow_uplink_within_two_round_trips(run: ScenarioRunner) -> None:
    """Four NICs fill four uplinks, until one of them slows down to a quarter.

    Equal queues all grow at one rate g: 4 R arrive, 3 R + R / 4 leave, so 4 g = 3/4 R, and the slow
    uplink gets R / 4 + g = 7/16 R, 7 of 64 packets. A fixed path goes on with 16 of 64.
    """
    nics, packets, changed = 4, 384, 4 * US

    def check(result: RunResult) -> None:
        fixed, adaptive = result.variants
        uplinks = [f"leaf1-spine{n}" for n in range(1, nics + 1)]
        for variant in result.variants:
            assert variant.metrics["dropped_packets"] == 0
        assert _requests_at(fixed, uplinks) == [packets] * nics
        (slow,) = happened(adaptive, "link slow")
        before = slow.time / PACKET_TIME
        expected = before + (nics * (packets - before)) * 7 / 64
        carried = _requests_at(adaptive, uplinks)[0]
        assert_close(carried, expected, tolerance=0.1, what="packets on the slow uplink")
        assert result.topology is not None
        settled = slow.time + 2 * result.topology.base_rtt
        sent = packets * PACKET_TIME
        series = adaptive.queue_series
        assert series is not None
        rows = [i for i, time in enumerate(series.times) if settled < time < 0.9 * sent]
        assert rows, "nothing was sampled while all NICs sent"
        for row in rows:
            depths = [series.depths[uplink][row] / FRAME for uplink in uplinks]
            assert_between(max(depths) - min(depths), 0, 8, what="packets between the queues")

    flows = [{"source": n, "destination": nics + n, "size": packets * 4096} for n in range(nics)]
    both = scenario(
        {"slow": [{"link": "leaf1-spine1", "rate": "100 Gbps", "at": f"{changed / US:g} us"}]},
        topology={**SCENARIO["topology"], "spines": nics, "servers_per_leaf": nics},
        workload={"kind": "flows", "flows": flows},
        nic={**SCENARIO["nic"], "timeout": 14, "reordering_threshold": 4096},
    )
    both["variants"] = [
        {"name": scheme, "set": {"routing.scheme": scheme}} for scheme in ("static", "adaptive")
    ]
    run(both, dilation=DILATION, check=check)


def _requests_at(variant: VariantResult, interfaces: list[str]) -> list[int]:
    """Request packets that switch ports sent; all of them are of one size."""
    ports = {port.interface: port for port in variant.ports}
    return [round(ports[name].data_bytes / FRAME) for name in interfaces]


def test_a_restart_of_the_controller_changes_nothing(run: ScenarioRunner) -> None:
    def check(result: RunResult) -> None:
        kept, restarted = result.variants
        (down,) = happened(restarted, "controller restart")
        (back,) = happened(restarted, "controller back")
        last = max(flow.finish or 0.0 for flow in restarted.flows)
        assert down.time < back.time < last, "traffic must run while it comes back"
        for variant in result.variants:
            assert variant.ledger.closed
            assert variant.metrics["dropped_packets"] == 0
            assert variant.metrics["retransmitted_packets"] == 0
        assert [f.sent_packets for f in kept.flows] == [f.sent_packets for f in restarted.flows]
        assert [f.path for f in kept.flows] == [f.path for f in restarted.flows]
        for before, after in zip(kept.flows, restarted.flows, strict=True):
            assert before.completion_time is not None
            assert after.completion_time is not None
            assert_close(
                after.completion_time, before.completion_time, tolerance=0.05, what="completion"
            )

    flows = [{**flow, "size": "3 MiB"} for flow in SCENARIO["workload"]["flows"]]
    both = scenario(
        {}, workload={"kind": "flows", "flows": flows}, nic={**SCENARIO["nic"], "timeout": 14}
    )
    both["variants"] = [
        {"name": "kept", "set": {}},
        {"name": "restarted", "set": {"faults.controller": [{"restart": "10 us"}]}},
    ]
    run(both, dilation=DILATION, check=check)


def test_the_controller_places_flows_again_on_its_interval(run: ScenarioRunner) -> None:
    """Two NICs send at first, then one: the matrix changes, and with it the entries."""

    def check(result: RunResult) -> None:
        variant = only_variant(result)
        assert_sound(variant)
        updates = [f for f in variant.faults if f.subject == "traffic matrix"]
        assert updates
        # detection and convergence of the cut as well
        assert len(happened(variant, "entries in force")) >= len(updates) + 2

    flows = [
        {"source": 0, "destination": 2, "size": "256 KiB"},
        {"source": 1, "destination": 3, "size": "2 MiB"},
    ]
    faults = {"links": [{"link": "leaf1-spine1", "down": "15 us"}]}
    routing = {"scheme": "te", "interval": "10 us"}
    workload = {"kind": "flows", "flows": flows}
    run(scenario(faults, workload=workload, routing=routing), dilation=DILATION, check=check)


@pytest.mark.alone
def test_nothing_is_left_of_a_run_that_is_killed_amid_its_faults(tmp_path: Path) -> None:
    before = MachineState.look()
    flap = {"link": "leaf1-spine1", "at": "5 us", "period": "20 us", "count": 50}
    faults = {"flaps": [flap], "controller": [{"restart": "20 us"}]}
    flows = [{**flow, "size": "32 MiB"} for flow in SCENARIO["workload"]["flows"]]
    workload = {"kind": "flows", "flows": flows}
    run = Run({**scenario(faults, workload=workload), "dilation": DILATION}, tmp_path)
    run.wait_for("traffic")
    (log,) = run.output.glob("*/logs")
    # until the first flap has been answered with new entries
    deadline = time.monotonic() + 30
    while not any(log.glob("program-[3-9].json")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    run.process.kill()
    run.process.wait()
    assert_gone(run)
    before.assert_unchanged()
