"""Dilation does not matter: the incast of the main job, slower and slower still (Shows M).

Compared is what the physics of the fabric decides: all of a job that loses nothing, all that an
overflow drops and delivers without recovery, and what it drops with one. Whose packet finds the one
free slot of a full port is not decided by it, but by the phase of the senders' packets within one
frame time ("traffic phase effects", Floyd and Jacobson 1992), so that two runs at one dilation
differ in that as well. It decides whether a flow loses its last packet, and then waits for a timer
a thousand times as long as the data take: completion times after a loss are not compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.results import RunResult
from tests.fabric.scenario_runner import ScenarioRunner, assert_close, only_variant

pytestmark = pytest.mark.fabric

MAIN_JOB = Path(__file__).parents[2] / "scenarios" / "incast.yaml"


def main_job(workload: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """The main job with some sections replaced and the workload changed; it expects nothing."""
    document = yaml.safe_load(MAIN_JOB.read_text(encoding="utf-8"))
    document["workload"] |= workload
    return document | {"expect": []} | sections


def assert_same(one: RunResult, two: RunResult, metrics: Iterable[str]) -> None:
    """The metrics of every variant agree within 3 %."""
    for variant in one.variants:
        other = two.variant(variant.name)
        assert other.dilation == 2 * variant.dilation
        assert other.plan_hash == variant.plan_hash
        for name in metrics:
            assert_close(
                other.metrics[name],
                variant.metrics[name],
                tolerance=0.03,
                what=f"{name} of {variant.name} at twice the dilation",
            )


def test_without_loss(run: ScenarioRunner) -> None:
    def check(one: RunResult, two: RunResult) -> None:
        metrics = only_variant(one).metrics
        assert metrics["dropped_packets"] == 0
        assert metrics["max_queue_depth"] > 2**20
        compared = "completion_time_median", "completion_time_max", "goodput", "max_queue_depth"
        assert_same(one, two, compared)

    run.at_two_dilations(
        main_job({"message_size": "1 MiB"}, switch={"buffer": {"limit": "infinite"}}, variants=[]),
        dilation=12_000,
        check=check,
    )


def test_overflow_without_recovery(run: ScenarioRunner) -> None:
    """Each packet is a message, so that a lost one costs no other."""

    def check(one: RunResult, two: RunResult) -> None:
        assert only_variant(one).metrics["dropped_packets"] > 1000
        compared = "completion_time_median", "completion_time_max", "dropped_packets"
        assert_same(one, two, (*compared, "dropped_bytes", "delivered_bytes"))

    run.at_two_dilations(
        main_job(
            {"message_size": 4096, "messages": 512, "operation": "write"},
            nic={"transport": "uc"},
            variants=[],
        ),
        dilation=20_000,
        check=check,
    )


def test_overflow_with_recovery(run: ScenarioRunner) -> None:
    """What was lost fits into the port when it is sent again, so that nothing is lost twice."""

    def check(one: RunResult, two: RunResult) -> None:
        for variant in one.variants:
            assert variant.metrics["dropped_packets"] > 50
            assert variant.metrics["retransmitted_packets"] >= variant.metrics["dropped_packets"]
        assert_same(one, two, ("dropped_packets", "dropped_bytes", "delivered_bytes"))

    run.at_two_dilations(
        main_job({"message_size": "192 KiB", "messages": 1}, switch={"buffer": {"limit": 512_000}}),
        dilation=40_000,
        check=check,
    )
