"""Rails and servers: PXN keeps an all-to-all below the leaves, GPUs that share a NIC are slower."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.results import RunResult, VariantResult
from tests.fabric.scenario_runner import ScenarioRunner, assert_close
from traffic.bounds import payload_rate
from traffic.codec import PACKET_HEADERS

pytestmark = pytest.mark.fabric

SERVERS, GPUS = 4, 4
RANKS = SERVERS * GPUS
MTU = 4096
BLOCK = 4 * MTU
"""What each rank sends to each other."""
RETH_AND_IMMEDIATE = 16 + 4

TOPOLOGY: dict[str, Any] = {
    "kind": "rail-optimised",
    "pods": 1,
    "servers_per_pod": SERVERS,
    "gpus_per_server": GPUS,
    "spines": 2,
    "link_rate": "100 Gbps",
}


def wire_bytes(blocks: int, messages: int | None = None) -> int:
    """Of so many blocks, each a message unless their number is given."""
    payload = blocks * (BLOCK + BLOCK // MTU * PACKET_HEADERS)
    return payload + RETH_AND_IMMEDIATE * (blocks if messages is None else messages)


def assert_right(variant: VariantResult) -> None:
    assert variant.ledger.open == 0
    assert [rank.wrong_elements for rank in variant.ranks] == [0] * len(variant.ranks)
    assert not any(flow.retransmitted_packets for flow in variant.flows)


def test_all_to_all_crosses_no_spine_with_pxn_and_does_without(run: ScenarioRunner) -> None:
    """The same bytes reach every NIC; without PXN three quarters of them are for another rail."""
    algorithms = "pxn", "pairwise", "direct"
    scenario = {
        "name": "rails",
        "topology": TOPOLOGY,
        "switch": {"buffer": {"limit": "infinite"}},
        "workload": {
            "kind": "collective",
            "collective": "all-to-all",
            "size": RANKS * BLOCK,
            "gpus_per_server": GPUS,
        },
        "variants": [{"name": name, "set": {"workload.algorithm": name}} for name in algorithms],
    }

    def check(result: RunResult) -> None:
        for variant in result.variants:
            assert_right(variant)
            down = [port for port in variant.ports if "-rank" in port.interface]
            from_other_servers = (SERVERS - 1) * GPUS
            # what a server's GPUs have for a rank comes in one message on the rail
            messages = SERVERS - 1 if variant.name == "pxn" else from_other_servers
            expected = wire_bytes(from_other_servers, messages)
            assert [port.data_bytes for port in down] == [expected] * RANKS
            up = [
                port
                for port in variant.ports
                if port.interface.startswith("leaf") and "-spine" in port.interface
            ]
            assert len(up) == 2 * GPUS
            if variant.name == "pxn":
                # no acknowledgement either
                assert not any(port.dequeued_packets for port in up)
            else:
                to_other_rails = RANKS * (SERVERS - 1) * (GPUS - 1)
                assert sum(port.data_bytes for port in up) == wire_bytes(to_other_rails)

    run(scenario, dilation=20_000, check=check)


def test_gpus_that_share_a_nic_send_at_half_its_rate(run: ScenarioRunner) -> None:
    """Two GPUs per 100 Gb/s NIC (pcie-4gpu): a neighbour's message takes twice as long."""
    messages, size = 8, 2**18
    round_trip = 2 * (1e-6 + 1e-6)
    scenario = {
        "name": "shared-nic",
        "topology": {**TOPOLOGY, "servers_per_pod": 2},
        "switch": {"buffer": {"limit": "infinite"}},
        "workload": {
            "kind": "permutation", "shift": GPUS, "messages": messages, "message_size": size,
        },
        "variants": [
            {"name": "own", "set": {}},
            {"name": "shared", "set": {"server.preset": "pcie-4gpu"}},
        ],
    }  # fmt: skip

    def check(result: RunResult) -> None:
        for variant, rate in zip(result.variants, (100e9, 50e9), strict=True):
            assert_right(variant)
            expected = messages * size * 8 / payload_rate(rate, MTU) + round_trip
            for flow in variant.flows:
                assert flow.finish is not None
                took = flow.finish - flow.start
                assert_close(took, expected, tolerance=0.03, what=f"flow {flow.index}")

    run(scenario, dilation=10_000, check=check)
