"""Traces from files run as plans: what they say is what is sent, and in that order."""

from __future__ import annotations

import gzip
from pathlib import Path

import msccl_files
import pytest
from chakra_files import COLL, COMP, RECV, SEND, et, node
from lossless import run_lossless

from traffic.locations import RankLocation
from traffic.plan import OpKind, PlanError
from traffic.workloads import create_workload, verify_rank

MEGABYTE = 2**20

SIMAI = """\
HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 1 pp: 1 vpp: 1 ga: 1 all_gpus: 4
2
attention -1 1000 ALLREDUCE 4096 500 NONE 0 500 NONE 0 100
mlp -1 2000 ALLREDUCE 4096 500 NONE 0 500 ALLREDUCE 8192 100
"""

ASTRA_SIM = """\
DATA
2
conv1 -1 1000 NONE 0 1000 NONE 0 1000 ALLREDUCE 8192 10
fc -1 500 NONE 0 500 NONE 0 500 ALLREDUCE 4096 10
"""

FLOWS = """\
4
0 1 3 100 5000 2.0
0 1 3 100 6000 2.0
1 2 3 100 70000 2.000001
3 0 3 100 1 2.5
"""


def replayed(path, *, ranks=8, per_server=1, **parameters):
    workload = create_workload("replay")
    locations = [RankLocation(server=f"server{r // per_server}") for r in range(ranks)]
    return workload.plan(
        workload.Parameters(path=str(path), **parameters),
        world_size=ranks, seed=1, locations=locations,
    )  # fmt: skip


def wrong_elements(plan):
    return sum(verify_rank(plan, r, m) for r, m in enumerate(run_lossless(plan)))


def write_chakra(directory, ranks, *, packed=False):
    for rank, data in enumerate(ranks):
        name = f"trace.{rank}.et" + (".gz" if packed else "")
        (directory / name).write_bytes(gzip.compress(data) if packed else data)
    return directory / "trace"


def microbenchmark(ranks=8, size=MEGABYTE):
    """One COMM_COLL node per rank, as ASTRA-sim's generator writes it: comm_type 0 is absent."""
    return [et(node(0, COLL, f"all_reduce_{rank}", comm_size=size)) for rank in range(ranks)]


@pytest.mark.parametrize("packed", [False, True])
def test_astra_sims_all_reduce_of_8_npus_and_1_mb(tmp_path, packed):
    path = write_chakra(tmp_path, microbenchmark(), packed=packed)
    plan = replayed(
        path, format="chakra", algorithm_table=[{"collective": "all-reduce", "algorithm": "ring"}]
    )
    assert plan.payload_bytes == 8 * 2 * 7 * MEGABYTE // 8
    assert {(c.source_rank, c.destination_rank) for c in plan.connections} == {
        (rank, (rank + 1) % 8) for rank in range(8)
    }
    assert wrong_elements(plan) == 0
    assert len(create_workload("replay").communicators(plan)) == 1
    assert create_workload("replay").reference(plan).bus_factor == 2 * 7 / 8


def test_only_what_is_one_collective_and_nothing_else_has_a_bus_bandwidth(tmp_path):
    """Not two in turn, nor one with a computation before."""
    for first in (node(0, COLL, "one", comm_size=MEGABYTE), node(0, COMP, "busy", duration=3)):
        rank = et(first, node(1, COLL, "two", deps=(0,), comm_size=MEGABYTE))
        plan = replayed(write_chakra(tmp_path, [rank] * 4), ranks=4)
        assert not create_workload("replay").communicators(plan)
        assert create_workload("replay").reference(plan).bus_factor == 1


def test_sends_and_receives_keep_their_dependencies(tmp_path):
    """Rank 0 computes and sends; rank 1 answers when it has received; then rank 0 computes."""
    first = et(
        node(0, COMP, "before", duration=3),
        node(1, SEND, "ping", deps=(0,), comm_size=5000, comm_dst=1, comm_tag=4),
        node(2, RECV, "pong", comm_size=700, comm_src=1, comm_dst=0),
        node(3, COMP, "after", duration=2, deps=(2,)),
    )
    second = et(
        node(7, RECV, "ping", comm_size=5000, comm_dst=1, comm_tag=4),
        node(8, SEND, "pong", deps=(7,), comm_size=700, comm_src=1),
    )
    plan = replayed(write_chakra(tmp_path, [first, second]), ranks=2)
    by_kind = {(op.rank, op.kind, op.name): op for ops in plan.ops for op in ops}
    before = by_kind[0, OpKind.COMPUTE, "before"]
    after = by_kind[0, OpKind.COMPUTE, "after"]
    assert (before.duration, after.duration) == (3e-6, 2e-6)
    ping, pong = by_kind[0, OpKind.SEND, ""], by_kind[1, OpKind.SEND, ""]
    assert (ping.length, pong.length) == (5000, 700)
    assert ping.depends_on == (before.op_id,)
    assert pong.depends_on == (by_kind[1, OpKind.RECEIVE, ""].op_id,)
    assert after.depends_on == (by_kind[0, OpKind.RECEIVE, ""].op_id,)
    assert wrong_elements(plan) == 0


@pytest.mark.parametrize("per_server", [1, 2])
def test_an_msccl_ring_replays_after_its_symbolic_check(tmp_path, per_server):
    path = tmp_path / "ring.xml"
    path.write_bytes(msccl_files.ring_all_reduce(4, channels=2))
    plan = replayed(path, ranks=4, per_server=per_server, size=64 * 1024)
    crossing = 4 if per_server == 1 else 2
    assert plan.payload_bytes == crossing * 2 * 3 * 64 * 1024 // 4
    assert wrong_elements(plan) == 0
    (communicator,) = create_workload("replay").communicators(plan)
    assert communicator.schedule.request.collective == "all-reduce"
    assert communicator.schedule.request.gpus_per_server == per_server
    reference = create_workload("replay").reference(plan)
    assert (reference.size_bytes, reference.bus_factor, reference.ranks) == (64 * 1024, 1.5, 4)


@pytest.mark.parametrize(
    "algorithm", [msccl_files.ring_all_gather(3), msccl_files.direct_all_to_all(3)]
)
def test_other_msccl_algorithms_replay(tmp_path, algorithm):
    path = tmp_path / "algorithm.xml"
    path.write_bytes(algorithm)
    plan = replayed(path, ranks=3, size=12 * 1024)
    assert plan.payload_bytes == 3 * 2 * 12 * 1024 // 3
    assert wrong_elements(plan) == 0


def test_a_wrong_msccl_algorithm_does_not_run(tmp_path):
    path = tmp_path / "race.xml"
    path.write_bytes(msccl_files.pairwise_all_reduce(wait=False))
    message = (
        r"race\.xml: algorithm test: gpu 0, tb 1, step 1: reads chunk 0 of buffer s, which nobody"
    )
    with pytest.raises(PlanError, match=message):
        replayed(path, ranks=2, size=4096)


@pytest.mark.parametrize("name", ["ring.xml", "./ring.xml", "l"])  # "l" is in every message
def test_a_file_that_is_wrong_is_named_once(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(b"<algo")
    with pytest.raises(PlanError) as caught:
        replayed(name, ranks=2, size=4096, format="msccl")
    assert str(caught.value).count(Path(name).name + ": ") == 1


def test_a_simai_workload_knows_its_world(tmp_path):
    path = tmp_path / "workload.txt"
    path.write_text(SIMAI)
    plan = replayed(path, format="simai", ranks=8)
    assert create_workload("replay").job(plan).ranks == (0, 1, 2, 3)
    assert wrong_elements(plan) == 0


def test_an_astra_sim_workload_takes_all_ranks(tmp_path):
    path = tmp_path / "workload.txt"
    path.write_text(ASTRA_SIM)
    table = [{"collective": "all-reduce", "algorithm": "ring"}]
    plan = replayed(path, format="astra-sim", ranks=4, algorithm_table=table)
    assert plan.payload_bytes == 2 * 3 * (8192 + 4096)
    plan = replayed(path, ranks=4, world_size=2, algorithm_table=table)
    assert plan.payload_bytes == 2 * 1 * (8192 + 4096)
    assert wrong_elements(plan) == 0


def test_hpcc_flows_keep_their_starts(tmp_path):
    path = tmp_path / "flows.txt"
    path.write_text(FLOWS)
    plan = replayed(path, format="hpcc-flows", ranks=4, per_server=2)
    found = sorted(
        (c.source_rank, c.destination_rank, flow.payload_bytes, round(flow.start, 9))
        for flow in plan.flows
        for c in [plan.connections[flow.connection]]
    )
    assert len(plan.connections) == 4
    assert found == [(0, 1, 5000, 0.0), (0, 1, 6000, 0.0), (1, 2, 70000, 1e-6), (3, 0, 1, 0.5)]
    assert wrong_elements(plan) == 0


def test_sizes_and_times_are_scaled_and_the_factors_said(tmp_path):
    path = write_chakra(
        tmp_path,
        [et(node(0, COMP, "c", duration=10), node(1, COLL, "r", deps=(0,), comm_size=8000))] * 2,
    )
    plan = replayed(path, ranks=2, size_scale=0.5, time_scale=0.1)
    assert plan.payload_bytes == 2 * 4000
    assert [op.duration for op in plan.ops[0] if op.kind is OpKind.COMPUTE] == [1e-6]
    job = create_workload("replay").job(plan)
    assert (job.size_scale, job.time_scale) == (0.5, 0.1)
    assert "sizes × 0.5, times × 0.1" in job.notes[0]


def test_a_collective_group_is_who_names_it(tmp_path):
    def rank(group):
        return et(node(0, COLL, "r", comm_size=8000, pg_name=group))

    path = write_chakra(tmp_path, [rank("even"), rank("odd"), rank("even"), rank("odd")])
    plan = replayed(path, ranks=4)
    assert {(c.source_rank, c.destination_rank) for c in plan.connections} == {
        (0, 2), (2, 0), (1, 3), (3, 1),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "data", "parameters", "message"),
    [
        ("none.et", None, {}, "no files <prefix>.<rank>.et"),
        ("a.0.et", b"\x05\x00", {}, "rank 0"),
        ("a.0.et", et(node(0, COLL, "c")), {}, "COMM_COLL_NODE without comm_size"),
        ("a.0.et", et(node(0, SEND, "s", comm_size=8, comm_dst=1)), {}, "send with rank 1"),
        ("ring.xml", msccl_files.ring_all_reduce(4), {}, "give the size"),
        ("flows.txt", b" \n", {}, "flows.txt: is empty"),
        ("ring.xml", msccl_files.ring_all_reduce(4), {"size": 1001}, "multiples of 16"),
        ("ring.xml", msccl_files.ring_all_reduce(9), {"size": 3600}, "the trace has 9 ranks"),
        ("ring.xml", b"<algo", {"size": 8}, "ring.xml"),
        ("flows.txt", b"2\n0 1 3 100 5 2\n", {}, "2 flows announced, 1 are there"),
        ("flows.txt", b"1\n0 9 3 100 5 2\n", {}, "host 9; allowed: 0 to 7"),
        ("flows.txt", b"1\n0 1 3 100 8000000000 2\n", {}, "scale the sizes down"),
        ("w.txt", b"DATAX\n1\n", {}, "parallelism 'DATAX'; allowed"),
        ("w.txt", ASTRA_SIM.encode(), {"format": "chakra"}, "no rank in the name|no files"),
    ],
)
def test_what_cannot_be_replayed_is_refused_in_one_line(tmp_path, name, data, parameters, message):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(PlanError, match=message) as error:
        replayed(tmp_path / name, **parameters)
    assert "\n" not in str(error.value)
