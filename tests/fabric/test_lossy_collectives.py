"""A collective's numbers survive random loss, whatever the recovery."""

from __future__ import annotations

import pytest

from testbed.registries import recovery_names
from testbed.results import RunResult
from tests.fabric.scenario_runner import ScenarioRunner

pytestmark = pytest.mark.fabric

RANKS = 8


def test_ring_all_reduce_under_loss_gives_the_sum_of_numpy(run: ScenarioRunner) -> None:
    names = recovery_names("rc")
    assert {"go-back-n", "selective-repeat"} <= set(names)

    def check(result: RunResult) -> None:
        for name in names:
            variant = result.variant(name)
            assert [rank.wrong_elements for rank in variant.ranks] == [0] * RANKS
            assert variant.ledger.open == 0
            lost = sum(
                row.packets
                for row in variant.ledger.rows
                if row.fate == "dropped" and row.reason == "injected loss"
            )
            sent = sum(flow.sent_packets for flow in variant.flows)
            assert 0.005 * sent < lost < 0.015 * sent
            assert sum(flow.retransmitted_packets for flow in variant.flows) >= lost

    run(
        {
            "name": "ring-with-loss",
            "seed": 5,
            "topology": {
                "kind": "leaf-spine",
                "leaves": 2,
                "spines": 2,
                "servers_per_leaf": 4,
                "link_rate": "400 Gbps",
            },
            "switch": {"buffer": {"limit": "infinite"}},
            "routing": {"scheme": "static"},
            "workload": {"kind": "ring-all-reduce", "size": "8 MiB"},
            "faults": {"loss": 0.01},
            "variants": [{"name": name, "set": {"nic.recovery": name}} for name in names],
        },
        dilation=8000,
        check=check,
    )
