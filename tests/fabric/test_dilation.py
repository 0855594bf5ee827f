"""Dilation does not matter: the incast of the main job, slower and slower still (Shows M).

Compared is what the physics of the fabric decides: completion of a job that loses nothing, and what
an overflowing port drops and delivers. How often go-back-N's timer must help after an overflow is
not: whose packet finds the one free slot of a full port depends on the phase of packets within one
frame time, at any dilation, and each timeout costs a hundred times as long as the data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.results import RunResult
from tests.fabric.scenario_runner import ScenarioRunner, assert_close

pytestmark = pytest.mark.fabric

MAIN_JOB = Path(__file__).parents[2] / "scenarios" / "incast.yaml"
DILATION = 8000


def main_job(**changes: Any) -> dict[str, Any]:
    """The main job with some sections replaced, and without its expectations."""
    document = yaml.safe_load(MAIN_JOB.read_text(encoding="utf-8"))
    del document["expect"]
    for section, values in changes.items():
        document[section] = values
    return document


def test_without_loss_every_flow_takes_as_long(run: ScenarioRunner) -> None:
    scenario = main_job(switch={"buffer": {"limit": "infinite"}})
    first = run(scenario, dilation=DILATION, check=lambda result: None)

    def check(second: RunResult) -> None:
        for variant in first.variants:
            other = second.variant(variant.name)
            assert variant.plan_hash == other.plan_hash
            for name in ("completion_time_median", "completion_time_max", "goodput"):
                assert_close(
                    other.metrics[name],
                    variant.metrics[name],
                    tolerance=0.03,
                    what=f"{name} of {variant.name} at twice the dilation",
                )

    run(scenario, dilation=2 * first.variants[0].dilation, check=check)


def test_an_overflow_drops_and_delivers_as_much(run: ScenarioRunner) -> None:
    """Without recovery; each packet is a message, so that a lost one costs no other."""
    document = main_job(nic={"transport": "uc"})
    workload = document["workload"] | {"message_size": 4096, "messages": 512, "operation": "write"}
    scenario = document | {"workload": workload, "variants": []}
    first = run(scenario, dilation=DILATION, check=lambda result: None)
    (one,) = first.variants
    assert one.metrics["dropped_packets"] > 1000

    def check(second: RunResult) -> None:
        (two,) = second.variants
        assert one.plan_hash == two.plan_hash
        for name in (
            "completion_time_median",
            "completion_time_max",
            "dropped_packets",
            "dropped_bytes",
            "delivered_bytes",
        ):
            assert_close(
                two.metrics[name],
                one.metrics[name],
                tolerance=0.03,
                what=f"{name} at twice the dilation",
            )

    run(scenario, dilation=2 * one.dilation, check=check)
