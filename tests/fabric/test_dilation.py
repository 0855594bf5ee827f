"""Dilation does not matter: the incast of the main job, slower and slower still (Shows M).

Compared is what the physics of the fabric decides: all of a job that loses nothing, and what an
overflow drops and delivers, with and without recovery. Whose packet finds the one free slot of a
full port is not decided by it, but by the phase of the senders' packets within one frame time
("traffic phase effects", Floyd and Jacobson 1992): two runs at one dilation differ in that as well.
It decides whose last packet is lost, and a timeout costs a thousand times as long as the data. So
with recovery the overflow is one that happens once, and the median flow, which may or may not
have lost its last packet, is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.results import RunResult
from tests.fabric.scenario_runner import ScenarioRunner, assert_close

pytestmark = pytest.mark.fabric

MAIN_JOB = Path(__file__).parents[2] / "scenarios" / "incast.yaml"


def main_job(workload: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """The main job with some sections replaced and the workload changed; it expects nothing."""
    document = yaml.safe_load(MAIN_JOB.read_text(encoding="utf-8"))
    document["workload"] |= workload
    return document | {"expect": []} | sections


def assert_dilation_does_not_matter(
    run: ScenarioRunner, scenario: dict[str, Any], dilation: float, metrics: Iterable[str]
) -> RunResult:
    """Run at a dilation and at twice as much; returns the first result."""
    first = run(scenario, dilation=dilation, check=lambda result: None)

    def check(second: RunResult) -> None:
        for variant in first.variants:
            other = second.variant(variant.name)
            assert variant.plan_hash == other.plan_hash
            for name in metrics:
                assert_close(
                    other.metrics[name],
                    variant.metrics[name],
                    tolerance=0.03,
                    what=f"{name} of {variant.name} at twice the dilation",
                )

    run(scenario, dilation=2 * first.variants[0].dilation, check=check)
    return first


def test_without_loss(run: ScenarioRunner) -> None:
    result = assert_dilation_does_not_matter(
        run,
        main_job({"message_size": "1 MiB"}, switch={"buffer": {"limit": "infinite"}}),
        8000,
        ("completion_time_median", "completion_time_max", "goodput", "max_queue_depth"),
    )
    for variant in result.variants:
        assert variant.metrics["dropped_packets"] == 0
        assert variant.metrics["max_queue_depth"] > 2**20


def test_overflow_without_recovery(run: ScenarioRunner) -> None:
    """Each packet is a message, so that a lost one costs no other."""
    result = assert_dilation_does_not_matter(
        run,
        main_job(
            {"message_size": 4096, "messages": 512, "operation": "write"},
            nic={"transport": "uc"},
            variants=[],
        ),
        8000,
        (
            "completion_time_median",
            "completion_time_max",
            "dropped_packets",
            "dropped_bytes",
            "delivered_bytes",
        ),
    )
    (variant,) = result.variants
    assert variant.metrics["dropped_packets"] > 1000


def test_overflow_with_recovery(run: ScenarioRunner) -> None:
    """What was lost fits into the port when it is sent again, so that nothing is lost twice."""
    result = assert_dilation_does_not_matter(
        run,
        main_job({"message_size": "192 KiB", "messages": 1}, switch={"buffer": {"limit": 512_000}}),
        20_000,
        ("completion_time_max", "duration", "goodput", "dropped_packets", "dropped_bytes"),
    )
    for variant in result.variants:
        assert variant.metrics["dropped_packets"] > 50
        assert variant.metrics["timeouts"] > 0
