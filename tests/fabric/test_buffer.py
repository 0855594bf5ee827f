"""A full port: what an incast without recovery loses is what a fluid cannot pass."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.results import RunResult
from tests.fabric.scenario_runner import ScenarioRunner, assert_close, only_variant
from traffic.codec import PACKET_HEADERS

pytestmark = [pytest.mark.fabric, pytest.mark.alone]

MTU = 4096
RETH = 16
FRAME = MTU + PACKET_HEADERS
"""Bytes of a middle packet as a queue counts it."""

LINK_RATE = 400e9
DILATION = 20_000


def incast(topology: dict[str, Any], workload: dict[str, Any], limit: int) -> dict[str, Any]:
    """Senders without recovery, and without pace but that of their link."""
    return {
        "name": "fluid",
        "topology": {"kind": "leaf-spine", "link_rate": "400 Gbps", **topology},
        "switch": {"buffer": {"limit": limit}, "ecn": {"threshold": None}},
        "nic": {"transport": "uc", "path_mtu": MTU},
        "workload": {"kind": "incast", "operation": "write", **workload},
    }


def check_fluid(
    result: RunResult, *, port: str, senders: int, message: int, limit: int, rate: float
) -> None:
    """Dropped = offered - what is queued at the end - what the port served meanwhile.

    All senders begin together and fill their links, so packets arrive for as long as one message
    takes on a sender's link. In that time the port, full from early on, serves rate / link rate of
    one message.
    """
    offered = (message // MTU) * FRAME + RETH
    served = offered * rate / LINK_RATE
    queue = next(p for p in only_variant(result).ports if p.interface == port)
    elsewhere = [p.interface for p in only_variant(result).ports if p.dropped_bytes and p != queue]
    assert elsewhere == []
    assert limit - (FRAME + RETH) < queue.max_depth <= limit
    assert queue.enqueued_bytes + queue.dropped_bytes["port limit"] == senders * offered
    assert_close(
        queue.dropped_bytes["port limit"],
        senders * offered - limit - served,
        tolerance=0.03,
        what=f"bytes dropped at {port}",
    )


@pytest.mark.parametrize(("senders", "limit"), [(4, 400_000), (7, 1_048_576)])
def test_incast_into_a_server_port(run: ScenarioRunner, senders: int, limit: int) -> None:
    message = 2 * 2**20
    run(
        incast(
            {"leaves": 1, "spines": 0, "servers_per_leaf": senders + 1},
            {"senders": senders, "message_size": message},
            limit,
        ),
        dilation=DILATION,
        check=lambda result: check_fluid(
            result,
            port="leaf1-rank0",
            senders=senders,
            message=message,
            limit=limit,
            rate=LINK_RATE,
        ),
    )


def test_incast_into_a_slower_uplink(run: ScenarioRunner) -> None:
    message, limit = 2 * 2**20, 512_000
    run(
        incast(
            {"leaves": 2, "spines": 1, "servers_per_leaf": 3, "uplink_rate": "100 Gbps"},
            {"senders": 3, "receiver": 3, "message_size": message},
            limit,
        ),
        dilation=DILATION,
        check=lambda result: check_fluid(
            result, port="leaf1-spine1", senders=3, message=message, limit=limit, rate=100e9
        ),
    )
