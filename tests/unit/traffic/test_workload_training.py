"""Training jobs as workloads: their plans, their numbers, and what is refused."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
from lossless import run_lossless
from pydantic import ValidationError

from traffic.locations import RankLocation
from traffic.plan import OpKind, PlanError
from traffic.workloads import create_workload, verify_rank

MODEL = {"layers": 4, "hidden": 128, "heads": 4, "sequence": 64}


def training_plan(*, ranks=8, per_server=4, **parameters):
    workload = create_workload("training")
    locations = [RankLocation(server=f"server{r // per_server}") for r in range(ranks)]
    return workload.plan(
        workload.Parameters(**parameters), world_size=ranks, seed=1, locations=locations
    )


def wrong_elements(plan):
    return sum(verify_rank(plan, r, m) for r, m in enumerate(run_lossless(plan)))


def network_bytes(plan):
    """Bytes from rank to rank over the network."""
    sent = defaultdict(int)
    for flow in plan.flows:
        connection = plan.connections[flow.connection]
        sent[connection.source_rank, connection.destination_rank] += flow.payload_bytes
    return sent


@pytest.mark.parametrize(
    "parameters",
    [
        {"preset": "llama3-405b", "rank_bytes": 2**18},
        {"preset": "llama3-8b", "rank_bytes": 2**18},
        {"preset": "gpt3-175b", "tp": 2, "pp": 2, "rank_bytes": 2**18},
        {"model": MODEL, "sharding": "full", "iterations": 2},
        {"model": MODEL, "tp": 2, "pp": 2, "sharding": "optimizer"},
        {
            "model": {**MODEL, "experts": 8, "experts_per_token": 2},
            "ep": 4,
            "imbalance": 0.5,
            "rank_bytes": 2**18,
        },
    ],
    ids=["llama3-405b", "llama3-8b", "gpt3-175b", "fsdp", "3d", "experts"],
)
def test_the_numbers_come_out_as_numpy_has_them(parameters):
    assert wrong_elements(training_plan(**parameters)) == 0


def test_computations_take_what_the_model_costs():
    plan = training_plan(model=MODEL, gpu="a100", utilisation=0.5, scale=1.0, micro_batches=3)
    workload = create_workload("training")
    job = workload.job(plan)
    seconds = [sum(op.duration for op in ops if op.kind is OpKind.COMPUTE) for ops in plan.ops]
    # 6 FLOPs per parameter and token, and attention's 12 hidden sequence per layer and token
    per_token = 6 * 12 * 4 * 128**2 + 12 * 4 * 128 * 64
    assert job.tokens == 8 * 3 * 64
    for rank in seconds:
        assert math.isclose(rank, 3 * 64 * per_token / (312e12 * 0.5))


def test_the_scale_multiplies_sizes_and_times_and_is_said():
    whole = training_plan(model=MODEL, scale=1.0, per_server=1)
    half = training_plan(model=MODEL, scale=0.5, per_server=1)
    assert half.payload_bytes == pytest.approx(whole.payload_bytes / 2, rel=1e-3)
    for plan, scale in ((whole, 1.0), (half, 0.5)):
        job = create_workload("training").job(plan)
        assert (job.size_scale, job.time_scale) == (scale, scale)
        assert f"× {scale:.4g}" in job.notes[0]


def test_a_preset_says_what_it_was_cut_down_from():
    plan = training_plan(preset="llama3-405b", rank_bytes=2**18)
    note = create_workload("training").job(plan).notes[0]
    assert "2 layers, 8 ranks" in note
    assert "published: 126 layers, 16384 ranks" in note


def test_scatter_gather_sends_one_tensor_parallel_share_to_the_next_stage():
    sizes = {"model": MODEL, "tp": 4, "pp": 2, "dp": 1, "scale": 1.0}
    whole = network_bytes(training_plan(**sizes, scatter_gather=False))
    shares = network_bytes(training_plan(**sizes, scatter_gather=True))
    assert set(whole) == set(shares) == {(r, (r + 4) % 8) for r in range(8)}
    for pair, size in whole.items():
        assert shares[pair] * 4 == size


def test_a_straggler_computes_longer_than_others():
    plan = training_plan(model=MODEL, stragglers=[{"rank": 3, "slowdown": 1.5}], scale=1.0)
    seconds = [sum(op.duration for op in ops if op.kind is OpKind.COMPUTE) for ops in plan.ops]
    assert seconds[3] == pytest.approx(1.5 * seconds[0])
    assert seconds[:3] == [seconds[0]] * 3


def test_ranks_decide_who_takes_part():
    plan = training_plan(model=MODEL, ranks=8, per_server=1)
    some = training_plan_on((6, 2, 4, 0))
    assert {r for pair in network_bytes(plan) for r in pair} == set(range(8))
    assert {r for pair in network_bytes(some) for r in pair} == {0, 2, 4, 6}
    assert wrong_elements(some) == 0


def training_plan_on(ranks):
    workload = create_workload("training")
    parameters = workload.Parameters(model=MODEL, ranks=ranks, rank_bytes=2**18)
    return workload.plan(parameters, world_size=8, seed=1)


def test_fewer_replicas_leave_the_rest_of_the_ranks_alone():
    plan = training_plan(model=MODEL, dp=2, tp=1, pp=2, per_server=1)
    assert {r for pair in network_bytes(plan) for r in pair} == set(range(4))
    assert create_workload("training").job(plan).ranks == (0, 1, 2, 3)


def plan_of_jobs(*jobs, **parameters):
    workload = create_workload("training")
    parameters = workload.Parameters(model=MODEL, **parameters)
    return workload.plan(parameters, world_size=8, seed=1, jobs=jobs)


def test_every_job_trains_a_model_of_its_own():
    plan = plan_of_jobs((0, 2, 4, 6), (5, 1), scale=0.5)
    pairs = network_bytes(plan)
    assert {tuple(sorted({a % 2, b % 2})) for a, b in pairs} == {(0,), (1,)}
    assert wrong_elements(plan) == 0
    job = create_workload("training").job(plan)
    assert job.ranks == (0, 2, 4, 6, 5, 1)
    assert job.tokens == (4 + 2) * 2 * 64  # replicas, micro-batches, tokens of a sequence
    assert len(job.notes) == 2
    assert job.verified.startswith("results verified: ")


def test_jobs_share_a_scale():
    with pytest.raises(PlanError, match="scale: the jobs' own differ; give one for all"):
        plan_of_jobs((0, 2, 4, 6), (5, 1), rank_bytes=2**18)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "preset: give either a preset or a model"),
        ({"preset": "llama3-8b", "model": MODEL}, "preset: give either a preset or a model"),
        ({"preset": "gpt5"}, "preset: 'gpt5'; allowed: gpt3-175b"),
        ({"preset": "llama3-8b", "pp": 3}, "pp: 3; allowed: divisors of 8"),
        ({"preset": "llama3-70b", "tp": 3}, "tp: 3; allowed: divisors of 8"),
        ({"preset": "llama3-8b", "dp": 4}, "dp: with a preset give tp and pp as well"),
        ({"model": MODEL, "tp": 4, "pp": 4}, "tp: 4 × 4 × 1 ranks; allowed: at most 8"),
        ({"model": MODEL, "gpu": "z9"}, "gpu: 'z9'; allowed: a100"),
        ({"model": MODEL, "stragglers": [{"rank": 9, "slowdown": 2}]}, "stragglers: rank 9"),
        (
            {"model": MODEL, "stragglers": [{"rank": 1, "slowdown": 2}] * 2},
            "stragglers: rank 1 is listed twice",
        ),
        (
            {"model": MODEL, "iterations": 1000, "chunk": "4 KiB"},
            "more than 500000 operations in the first ",
        ),
        ({"model": {**MODEL, "heads": 3}}, "hidden: 128; allowed: multiples of heads, 3"),
        ({"model": MODEL, "tp": 4, "dp": 1}, "nothing crosses the network"),
        (
            {
                "model": MODEL,
                "algorithm_table": [{"collective": "all-gather", "algorithm": "pxn"}],
            },
            "pxn cannot do all-gather",
        ),
    ],
)
def test_what_does_not_fit_is_refused(parameters, message):
    with pytest.raises(PlanError, match=message.replace("(", r"\(")):
        training_plan(**parameters)


@pytest.mark.parametrize(
    "parameters", [{"presett": "llama3-8b"}, {"model": {"layers": 0, "hidden": 8}}, {"scale": 2}]
)
def test_parameters_are_strict(parameters):
    with pytest.raises(ValidationError):
        create_workload("training").Parameters(**parameters)
