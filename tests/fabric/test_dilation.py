"""Dilation does not matter: the incast of the main job, slower and slower still.

Whose packet finds the one free slot of a full port is decided by the phase of the senders' packets
within one frame time ("traffic phase effects", Floyd and Jacobson 1992), in which any two runs
differ. So an overload that lasts (scenarios/incast-long.yaml) ends differently each time, by whole
timeouts. The main job is sized so that this luck changes no figure that is compared: the burst
overflows the port once, all that was lost fits when it is sent again, and most of fifteen flows
lose their last packet.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.results import RunResult
from tests.fabric.scenario_runner import ScenarioRunner, assert_close, only_variant

pytestmark = [pytest.mark.fabric, pytest.mark.alone]

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
        main_job(
            {"message_size": "512 KiB"}, switch={"buffer": {"limit": "infinite"}}, variants=[]
        ),
        dilation=20_000,
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
        dilation=40_000,
        check=check,
    )


def test_main_job(run: ScenarioRunner) -> None:
    """As it is, with both recoveries."""

    def check(one: RunResult, two: RunResult) -> None:
        for variant in one.variants:
            assert variant.metrics["dropped_packets"] > 50
            assert variant.metrics["timeouts"] > 0
        # not the median: about half of the flows wait for a timer, and it is 62 us or 67 ms by luck
        compared = "completion_time_max", "goodput", "dropped_packets", "dropped_bytes"
        assert_same(one, two, (*compared, "delivered_bytes"))

    run.at_two_dilations(main_job({}), dilation=20_000, check=check)
