"""Training jobs and replayed traces on the fabric: time, order and numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed.results import RunResult, VariantResult
from tests.fabric.scenario_runner import (
    ScenarioRunner,
    assert_between,
    assert_close,
    only_variant,
)
from tests.unit.traffic import chakra_files, msccl_files

pytestmark = pytest.mark.fabric

MEGABYTE = 2**20
RING = [{"collective": "all-reduce", "algorithm": "ring"}]


def scenario(workload: dict[str, Any], *, leaves: int, per_leaf: int) -> dict[str, Any]:
    """Servers of one GPU."""
    return {
        "name": workload["kind"],
        "topology": {
            "kind": "leaf-spine",
            "leaves": leaves,
            "spines": 2,
            "servers_per_leaf": per_leaf,
            "link_rate": "400 Gbps",
        },
        "routing": {"scheme": "te"},
        "workload": workload,
    }


def assert_right(variant: VariantResult) -> None:
    """Every result that is looked at equals numpy's, and no packet is unaccounted for."""
    assert [rank.wrong_elements for rank in variant.ranks] == [0] * len(variant.ranks)
    assert variant.ledger.open == 0
    assert variant.job is not None


@pytest.mark.alone
def test_computation_takes_emulated_time_but_no_wall_time(run: ScenarioRunner) -> None:
    """The slow variant computes a hundred times as long, and communicates the same."""

    def check(result: RunResult) -> None:
        fast, slow = result.variant("fast"), result.variant("slow")
        for variant in (fast, slow):
            assert_right(variant)
        compute = [variant.job.ranks[0].compute for variant in (fast, slow) if variant.job]
        assert_close(compute[1], 100 * compute[0], tolerance=0.02, what="time of computations")
        times = [float(variant.metrics["iteration_time"] or 0) for variant in (fast, slow)]
        assert_close(
            times[1] - times[0], 99 * compute[0], tolerance=0.05, what="longer iteration"
        )  # fmt: skip
        skipped = 1 - slow.wall_seconds / (slow.emulated_seconds * slow.dilation)
        assert_between(skipped, 0.8, 1.0, what="share of the time that is skipped")

    model = {"layers": 2, "hidden": 512, "heads": 4, "sequence": 512}
    job = {"kind": "training", "model": model, "scale": 0.05, "micro_batches": 1}
    run(
        {
            **scenario({**job, "bucket": "1 GiB"}, leaves=2, per_leaf=2),
            "variants": [
                {"name": "fast", "set": {"workload.utilisation": 0.4}},
                {"name": "slow", "set": {"workload.utilisation": 0.004}},
            ],
        },
        dilation=20_000,
        check=check,
    )


def write_chakra(directory: Path, ranks: list[bytes]) -> str:
    for rank, data in enumerate(ranks):
        (directory / f"trace.{rank}.et").write_bytes(data)
    return str(directory / "trace")


def test_the_astra_sim_microbenchmark_replays(run: ScenarioRunner, tmp_path: Path) -> None:
    """all_reduce of 8 NPUs and 1 MB: one COMM_COLL node per rank, zero-valued fields absent."""

    def check(result: RunResult) -> None:
        variant = only_variant(result)
        assert_right(variant)
        assert variant.metrics["delivered_bytes"] == 8 * 2 * 7 * MEGABYTE // 8

    node = chakra_files.node
    files = [
        chakra_files.et(node(0, chakra_files.COLL, "all_reduce", comm_size=MEGABYTE))
        for _ in range(8)
    ]
    path = write_chakra(tmp_path, files)
    workload = {"kind": "replay", "path": path, "format": "chakra", "algorithm_table": RING}
    run(scenario(workload, leaves=2, per_leaf=4), dilation=10000, check=check)


def test_sends_and_receives_replay_in_their_order(run: ScenarioRunner, tmp_path: Path) -> None:
    """Rank 0 computes for 50 us and sends; rank 1 answers after 20 us; rank 0 computes again."""
    node, et = chakra_files.node, chakra_files.et
    comp, send, recv = chakra_files.COMP, chakra_files.SEND, chakra_files.RECV
    first = et(
        node(0, comp, duration=50),
        node(1, send, deps=(0,), comm_size=MEGABYTE, comm_dst=1),
        node(2, recv, comm_size=4096, comm_src=1, comm_dst=0, comm_tag=1),
        node(3, comp, duration=30, deps=(2,)),
    )
    second = et(
        node(0, recv, comm_size=MEGABYTE, comm_dst=1),
        node(1, comp, duration=20, deps=(0,)),
        node(2, send, deps=(1,), comm_size=4096, comm_src=1, comm_tag=1),
    )

    def check(result: RunResult) -> None:
        variant = only_variant(result)
        assert_right(variant)
        ping, pong = sorted(variant.flows, key=lambda flow: -flow.bytes)
        assert ping.finish is not None and pong.finish is not None
        assert_close(ping.start, 50e-6, tolerance=0.05, what="start of the first message")
        # the answer waits for the last byte, not for its sender's acknowledgement
        assert_close(
            pong.start - ping.finish, 20e-6, tolerance=0.3, what="time until the answer"
        )  # fmt: skip
        total = float(variant.metrics["iteration_time"] or 0)
        assert_close(total - pong.finish, 30e-6, tolerance=0.2, what="last computation")

    path = write_chakra(tmp_path, [first, second])
    run(
        scenario({"kind": "replay", "path": path}, leaves=2, per_leaf=1),
        dilation=10000,
        check=check,
    )


def test_an_msccl_ring_replays(run: ScenarioRunner, tmp_path: Path) -> None:
    """Two channels of four GPUs: its schedule is proved before it is run on numbers."""

    def check(result: RunResult) -> None:
        variant = only_variant(result)
        assert_right(variant)
        assert variant.metrics["delivered_bytes"] == 4 * 2 * 3 * MEGABYTE // 4
        done = variant.collective
        assert done is not None
        assert (done.operation, done.ranks, done.bytes) == ("all-reduce", 4, MEGABYTE)
        assert done.busbw == pytest.approx(2 * 3 / 4 * MEGABYTE * 8 / done.time)
        assert done.model_time is not None
        assert done.model_time < 1.1 * done.time

    path = tmp_path / "ring.xml"
    path.write_bytes(msccl_files.ring_all_reduce(4, channels=2))
    workload = {"kind": "replay", "path": str(path), "format": "msccl", "size": MEGABYTE}
    run(scenario(workload, leaves=2, per_leaf=2), dilation=10000, check=check)
