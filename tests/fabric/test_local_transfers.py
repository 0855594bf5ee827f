"""Computations and NVLink beside the network: what crosses it, and what their time costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testbed.results import RunResult, VariantResult
from testbed.scenario import build_topology
from testbed.schema import Scenario
from tests.fabric.scenario_runner import ScenarioRunner, assert_between, only_variant
from traffic.codec import PACKET_HEADERS

pytestmark = pytest.mark.fabric

GPUS = 4
SERVERS = 2
SIZE = 2**20
MTU = 4096
RETH_AND_IMMEDIATE = 16 + 4


def scenario(workload: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": "local",
        "seed": 6,
        "topology": {
            "kind": "rail-optimised", "pods": 1, "servers_per_pod": SERVERS, "spines": 0,
            "gpus_per_server": GPUS,
        },
        "switch": {"buffer": {"limit": "infinite"}},
        "workload": workload,
    }  # fmt: skip


def arrived(variant: VariantResult, document: dict[str, Any]) -> list[int]:
    """Bytes of data frames that the last switch sent to each rank's NIC."""
    topology = build_topology(Scenario.from_document(document))
    port_of = {port.interface: port for port in variant.ports}
    return [port_of[topology.nic(rank.rank).peer].data_bytes for rank in topology.ranks]


@pytest.mark.parametrize("rendezvous", ["none", "cts"])
def test_hierarchical_all_reduce_crosses_each_rail_with_its_share(
    run: ScenarioRunner, rendezvous: str
) -> None:
    document = scenario(
        {
            "kind": "collective", "algorithm": "hierarchical", "size": SIZE,
            "gpus_per_server": GPUS, "rendezvous": rendezvous,
        }
    )  # fmt: skip

    def check(result: RunResult) -> None:
        variant = only_variant(result)
        assert [rank.wrong_elements for rank in variant.ranks] == [0] * SERVERS * GPUS
        assert variant.ledger.open == 0
        data = [flow for flow in variant.flows if flow.bytes > 64 * flow.messages]
        clear = [flow for flow in variant.flows if flow not in data]
        assert bool(clear) == (rendezvous == "cts")
        # along its rail each GPU reduces a quarter of the data with one other: twice one half
        share = 2 * (SERVERS - 1) * SIZE // GPUS // SERVERS
        for flow in data:
            assert flow.source_rank % GPUS == flow.destination_rank % GPUS
        wire = arrived(variant, document)
        for rank in range(SERVERS * GPUS):
            own = [flow for flow in data if flow.destination_rank == rank]
            assert sum(flow.bytes for flow in own) == share
            messages = sum(flow.messages for flow in own)
            packets = share // MTU
            expected = share + packets * PACKET_HEADERS + messages * RETH_AND_IMMEDIATE
            cleared = sum(flow.messages for flow in clear if flow.destination_rank == rank)
            assert cleared == (messages if rendezvous == "cts" else 0)
            expected += cleared * (64 + PACKET_HEADERS + RETH_AND_IMMEDIATE)
            assert wire[rank] == expected
        # what each GPU has of the sums goes to its neighbours at last, and counts as well
        assert variant.collective is not None
        assert variant.collective.time > max(flow.finish or 0 for flow in data)

    run(document, dilation=20_000, check=check)


def test_computations_take_emulated_time_and_no_other(run: ScenarioRunner, tmp_path: Path) -> None:
    compute, reduce = 4, 7  # node types of Chakra
    phases = (50_000, 30_000)
    nodes: list[dict[str, Any]] = []
    for number, micros in enumerate(phases):
        before = [nodes[-1]["Id"]] if nodes else []
        nodes += [
            {"Id": 2 * number + 1, "NodeType": compute, "runtime": micros, "data_deps": before},
            {
                "Id": 2 * number + 2, "NodeType": reduce, "comm_size": 2**16,
                "data_deps": [2 * number + 1],
            },
        ]  # fmt: skip
    for rank in range(SERVERS * GPUS):
        path = tmp_path / f"trace.{rank}.json"
        path.write_text(json.dumps({"workload_graph": nodes}), encoding="utf-8")

    def check(result: RunResult) -> None:
        variant = only_variant(result)
        total = sum(phases) * 1e-6
        assert variant.emulated_seconds > total
        assert sum(rank.wrong_elements or 0 for rank in variant.ranks) == 0
        # all but the two all-reduces, which take some tens of microseconds, was skipped
        awake = variant.wall_seconds / variant.dilation
        assert_between(awake, 0.0, 0.01 * total, what="emulated time that was not skipped")

    run(scenario({"kind": "replay", "path": str(tmp_path / "trace")}), dilation=20_000, check=check)
