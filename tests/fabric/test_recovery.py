"""What one lost packet costs each recovery."""

from __future__ import annotations

import time
from typing import Any

import pytest

from testbed.experiment import SEND_AHEAD
from testbed.results import RunResult, VariantResult
from tests.fabric.scenario_runner import ScenarioRunner, assert_between, assert_close
from traffic.codec import FRAME_OVERHEAD, PACKET_HEADERS
from traffic.qp.timers import ack_timeout_seconds

pytestmark = [pytest.mark.fabric, pytest.mark.alone]

MTU = 4096
LINK_RATE = 400e9
FRAME_TIME = (MTU + PACKET_HEADERS + FRAME_OVERHEAD) * 8 / LINK_RATE
RTT = 2 * (1e-6 + 3 * 1e-6)
"""Latency of the NICs and three switches, there and back."""


def one_flow(*, message: int, lost: int, **nic: Any) -> dict[str, Any]:
    """One message across the fabric, whose packet number ``lost`` is lost once."""
    return {
        "name": "one-loss",
        "topology": {
            "kind": "leaf-spine",
            "leaves": 2,
            "spines": 1,
            "servers_per_leaf": 1,
            "link_rate": "400 Gbps",
            "hop_latency": "1 us",
            "nic_latency": "1 us",
        },
        "switch": {"buffer": {"limit": "infinite"}},
        "nic": {"path_mtu": MTU, **nic},
        "workload": {"kind": "incast", "senders": 1, "message_size": message},
        "faults": {"drop": [{"connection": 0, "psn_offset": lost}]},
        "variants": [
            {"name": recovery, "set": {"nic.recovery": recovery}}
            for recovery in ("go-back-n", "selective-repeat")
        ],
    }


def assert_delivered(variant: VariantResult, message: int) -> None:
    """Every byte arrived, and is the one that was sent."""
    (flow,) = variant.flows
    assert not flow.failed
    assert flow.delivered_bytes == message
    assert [rank.wrong_elements for rank in variant.ranks] == [0, 0]
    assert variant.ledger.open == 0
    lost = [row for row in variant.ledger.rows if row.fate == "dropped"]
    assert [(row.reason, row.packets) for row in lost] == [("injected loss", 1)]


def test_one_loss_in_the_middle(run: ScenarioRunner) -> None:
    """Selective repeat sends one packet again, go-back-N all that had left before the NAK came.

    The gap shows when the next packet has arrived, and the NAK reaches the requester an RTT and a
    frame time after that packet began to leave. By then the requester has handed out one packet per
    frame time, and those that it may be ahead of the wire: with the lost one
    2 + (RTT + lead) / frame time in all.
    """
    message, dilation = 2 * 2**20, 40_000

    def check(result: RunResult) -> None:
        for variant in result.variants:
            assert_delivered(variant, message)
            (flow,) = variant.flows
            assert flow.timeouts == 0
            assert flow.naks >= 1
        (selective,) = result.variant("selective-repeat").flows
        assert selective.retransmitted_packets == 1
        variant = result.variant("go-back-n")
        (flow,) = variant.flows
        lead = max(SEND_AHEAD / variant.dilation, FRAME_TIME)
        in_flight = 2 + (RTT + lead) / FRAME_TIME
        assert_between(
            flow.retransmitted_packets, in_flight - 2, in_flight + 2, what="packets sent again"
        )

    run(one_flow(message=message, lost=256), dilation=dilation, check=check)


def test_a_lost_last_packet_waits_for_the_timer(run: ScenarioRunner) -> None:
    """Nothing follows it that could show the gap: only the timer helps, the same for everyone.

    The timer last began to run when the requester got its last ACK, so that it ends no later than
    the transfer and a timeout; then the packet is sent again and acknowledged. Go-back-N begins
    with what that ACK did not cover, an interval of packets; selective repeat sends the last one.
    """
    message, ack_interval = 2**20, 64
    sent_again = {"go-back-n": ack_interval, "selective-repeat": 1}
    timeout = ack_timeout_seconds(14)
    assert timeout is not None
    assert round(timeout, 4) == 0.0671
    transfer = message // MTU * FRAME_TIME + RTT

    def check(result: RunResult) -> None:
        times = []
        for variant in result.variants:
            assert_delivered(variant, message)
            (flow,) = variant.flows
            assert flow.timeouts == 1
            assert flow.retransmitted_packets == sent_again[variant.name]
            assert flow.completion_time is not None
            assert_between(
                flow.completion_time,
                timeout,
                1.01 * (timeout + transfer + RTT),
                what="completion time in seconds",
            )
            times.append(flow.completion_time)
        assert_close(times[0], times[1], tolerance=0.01, what="completion time of go-back-N")

    begin = time.monotonic()
    run(
        one_flow(message=message, lost=255, timeout=14, ack_interval=ack_interval),
        dilation=8000,
        check=check,
    )
    assert time.monotonic() - begin < 20
