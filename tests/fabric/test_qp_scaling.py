"""Queue pairs, source ports and NIC ports on a real fabric: who spreads, who reorders."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.results import RunResult, VariantResult
from tests.fabric.scenario_runner import ScenarioRunner, only_variant

pytestmark = pytest.mark.fabric

MESSAGE = 2**20
PACKETS = MESSAGE // 4096
SPINES = 4


def assert_everything_arrived(variant: VariantResult) -> None:
    """Every packet has an end, every byte is the right one, every path was predicted."""
    assert variant.ledger.open == 0
    assert not any(flow.failed for flow in variant.flows)
    assert not any(rank.wrong_elements for rank in variant.ranks)


def uplink_packets(variant: VariantResult) -> list[int]:
    """Of the leaves, in order."""
    return [
        port.dequeued_packets
        for port in variant.ports
        if port.interface.startswith("leaf") and "-spine" in port.interface
    ]


def test_spraying_by_source_port_needs_a_recovery_that_waits(run: ScenarioRunner) -> None:
    """Per packet, all paths are used and order is lost: go-back-N sends most packets again.

    Selective repeat that waits for packets as late as the path's spread sends none. Four queue
    pairs keep the order and send none again with either.
    """
    spread: dict[str, Any] = {"nic.source_port_policy": "per-packet"}
    short = {"workload.message_size": MESSAGE // 8}  # it will be sent many times
    scenario = {
        "name": "spray",
        "topology": {
            "kind": "leaf-spine",
            "leaves": 2,
            "spines": SPINES,
            "servers_per_leaf": 4,
            "link_rate": "400 Gbps",
        },
        "switch": {"buffer": {"limit": "infinite"}},
        "nic": {
            "recovery": "selective-repeat",
            "source_ports": 32,
            "reordering_threshold": 2 * PACKETS,
            "reordering_timeout": "10 ms",
        },
        "workload": {"kind": "permutation", "partners": "other-leaf", "message_size": MESSAGE},
        "variants": [
            {"name": "go-back-n", "set": {**spread, **short, "nic.recovery": "go-back-n"}},
            {"name": "selective-repeat", "set": spread},
            {
                "name": "split",
                "set": {"nic.qps_per_connection": 4, "nic.message_strategy": "split"},
            },
        ],
    }

    def check(result: RunResult) -> None:
        for variant in result.variants:
            assert_everything_arrived(variant)
        resent = {
            variant.name: sum(flow.retransmitted_packets for flow in variant.flows)
            for variant in result.variants
        }
        assert resent["selective-repeat"] == resent["split"] == 0
        assert resent["go-back-n"] > 8 * PACKETS / 8
        sprayed, split = result.variant("selective-repeat"), result.variant("split")
        assert sum(flow.out_of_order_packets for flow in sprayed.flows) > 2 * PACKETS
        assert sum(flow.out_of_order_packets for flow in split.flows) == 0
        assert min(uplink_packets(sprayed)) > 0.4 * 8 * PACKETS / (2 * SPINES)
        for flow in split.flows:
            assert (flow.sent_packets, flow.delivered_bytes) == (PACKETS, MESSAGE)

    run(scenario, dilation=25_000, check=check)


@pytest.mark.parametrize("strategy", ["split", "round-robin", "least-outstanding"])
def test_two_ports_carry_what_two_queue_pairs_send(run: ScenarioRunner, strategy: str) -> None:
    """A dual-ToR NIC: both of its ports send, each packet from its queue pair's."""
    scenario = {
        "name": "two-ports",
        "topology": {
            "kind": "hpn",
            "segments": 1,
            "servers_per_segment": 3,
            "gpus_per_server": 1,
            "spines": 2,
            "link_rate": "400 Gbps",
        },
        "switch": {"buffer": {"limit": "infinite"}},
        "nic": {"qps_per_connection": 2, "message_strategy": strategy},
        "workload": {
            "kind": "permutation",
            "message_size": MESSAGE // 4,
            "messages": 4,
            "shift": 1,
        },
    }

    def check(result: RunResult) -> None:
        variant = only_variant(result)
        assert_everything_arrived(variant)
        assert sum(flow.path_migrations for flow in variant.flows) == 0
        arrived = {
            port.interface: port.dequeued_packets
            for port in variant.ports
            if "-rank" in port.interface
        }
        for rank in range(3):
            data = sorted(
                packets for name, packets in arrived.items() if name.endswith(f"-rank{rank}")
            )
            assert sum(data) >= PACKETS
            # half of the data each, and the acknowledgements of what it sends
            assert data[0] >= PACKETS / 2
            assert data[1] <= PACKETS / 2 + 20

    run(scenario, dilation=20_000, check=check)
