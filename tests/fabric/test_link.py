"""A link carries what its rate allows, and a queue delays by what is in it."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from testbed.results import PsnTrace, RunResult
from tests.fabric.scenario_runner import ScenarioRunner, ToleranceMissed, assert_close, only_variant
from traffic.bounds import payload_rate
from traffic.codec import FRAME_OVERHEAD, PACKET_HEADERS

pytestmark = [pytest.mark.fabric, pytest.mark.alone]

MTU = 4096
RETH = 16
LINK_RATE = 400e9
HOP_LATENCY = NIC_LATENCY = 1e-6
FABRIC: dict[str, Any] = {
    "kind": "leaf-spine",
    "link_rate": "400 Gbps",
    "hop_latency": "1 us",
    "nic_latency": "1 us",
}


def test_one_flow_fills_the_link(run: ScenarioRunner) -> None:
    """16 MiB through one switch; the RTT from the last packet to the completion is included."""

    def check(result: RunResult) -> None:
        (flow,) = only_variant(result).flows
        assert flow.delivered_bytes == 16 * 2**20
        assert flow.retransmitted_packets == 0
        assert flow.goodput is not None
        share = flow.goodput / payload_rate(LINK_RATE, MTU)
        assert share <= 1
        if share < 0.97:
            raise ToleranceMissed(f"one flow reached {share:.2%} of the link's payload rate")

    run(
        {
            "name": "one-flow",
            "topology": {**FABRIC, "leaves": 1, "spines": 0, "servers_per_leaf": 2},
            "switch": {"buffer": {"limit": "infinite"}},
            "workload": {"kind": "incast", "senders": 1, "message_size": "16 MiB"},
        },
        dilation=12_000,
        check=check,
    )


@pytest.mark.parametrize("depth", [256_000, 1_000_000])
def test_a_standing_queue_delays_by_its_depth(run: ScenarioRunner, depth: int) -> None:
    """An unreliable sender into an uplink of half its rate: what gets in finds the port full.

    Each packet is a message of its own, so that those that are dropped cost no others. The delay
    is taken between the two ends' traces: from leaving the sender to reaching the receiver's
    queue pair.
    """
    frame = MTU + PACKET_HEADERS + RETH
    uplink_rate = LINK_RATE / 2
    sent = 4 * depth // frame

    def check(result: RunResult) -> None:
        variant = only_variant(result)
        port = next(p for p in variant.ports if p.interface == "leaf2-spine1")
        assert depth - frame < port.max_depth <= depth
        assert variant.psn_trace is not None
        delays = _delays_in_standing_queue(variant.psn_trace)
        assert len(delays) > sent / 8
        frames = depth // frame
        expected = frames * (frame + FRAME_OVERHEAD) * 8 / uplink_rate
        expected += (frame + FRAME_OVERHEAD) * 8 / LINK_RATE  # into the receiver
        expected += NIC_LATENCY + 3 * HOP_LATENCY
        assert_close(
            statistics.median(delays), expected, tolerance=0.03, what="one-way delay in seconds"
        )

    run(
        {
            "name": "standing-queue",
            "topology": {
                **FABRIC,
                "leaves": 2,
                "spines": 1,
                "servers_per_leaf": 1,
                "uplink_rate": "200 Gbps",
            },
            "switch": {"buffer": {"limit": depth}},
            "nic": {"transport": "uc", "path_mtu": MTU},
            "workload": {
                "kind": "incast",
                "senders": 1,
                "operation": "write",
                "message_size": MTU,
                "messages": sent,
            },
        },
        dilation=20_000,
        check=check,
    )


def _delays_in_standing_queue(trace: PsnTrace) -> list[float]:
    """One-way delays of what was sent after the first loss."""
    events = list(zip(trace.times, trace.events, trace.psns, strict=True))
    first_drop = min(time for time, event, _ in events if event == "drop")
    sent = {psn: time for time, event, psn in events if event == "send" and time > first_drop}
    return [time - sent[psn] for time, event, psn in events if event == "receive" and psn in sent]
