"""Traces of training iterations: bytes, the pipeline's bubble, overlap, matched transfers."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traffic.collectives.request import Collective
from traffic.replay import NodeKind, check, rank_totals
from traffic.training import (
    ModelShape,
    Parallelism,
    RankOrder,
    Sharding,
    TrainingError,
    TrainingJob,
    exposed_communication,
    timeline,
    training_trace,
)
from traffic.training.experts import token_matrix, transposed
from traffic.training.pipeline import bubble_fraction, one_forward_one_backward
from traffic.training.timeline import compute_seconds
from traffic.training.volumes import (
    activation_bytes,
    dense_layer_bytes,
    expert_bytes,
    expert_layer_bytes,
    gradient_bytes,
    stage_transfer_bytes,
    tensor_parallel_bytes,
)


def job(*, layers=4, vocabulary=0, experts=1, tied=False, micro_batches=2, **parallelism):
    fields = {f.name for f in dataclasses.fields(TrainingJob)}
    other = {name: parallelism.pop(name) for name in list(parallelism) if name in fields}
    shape = ModelShape(
        layers=layers, hidden=48, feed_forward=192, heads=6, kv_heads=3, vocabulary=vocabulary,
        sequence=16, experts=experts, experts_per_token=min(2, experts), tied_embeddings=tied,
    )  # fmt: skip
    return TrainingJob(shape, Parallelism(**parallelism), micro_batches=micro_batches, **other)


def collectives(trace, rank, kind=None, prefix=""):
    return [
        node
        for node in trace.ranks[rank]
        if node.kind is NodeKind.COLLECTIVE
        and node.group.startswith(prefix)
        and kind in (None, node.collective)
    ]


@given(st.integers(1, 6), st.integers(1, 8))
def test_one_forward_one_backward(stages, micro_batches):
    for stage in range(stages):
        steps = one_forward_one_backward(stage, stages, micro_batches)
        for forward in (True, False):
            order = [s.micro_batch for s in steps if s.forward is forward]
            assert order == list(range(micro_batches))
        held = most = 0
        for step in steps:
            held += 1 if step.forward else -1
            most = max(most, held)
            assert held >= 0
        assert most == min(micro_batches, stages - stage)


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (2, 2), (4, 4), (4, 16), (3, 1)])
def test_the_bubble_of_the_pipeline(stages, micro_batches):
    made = job(layers=2 * stages, pp=stages, micro_batches=micro_batches)
    trace = training_trace(made)
    duration = timeline(trace).duration
    for rank in range(stages):
        idle = 1 - compute_seconds(trace, rank) / duration
        assert idle == pytest.approx(bubble_fraction(stages, micro_batches), abs=1e-9)
    assert bubble_fraction(stages, micro_batches) == pytest.approx(
        (stages - 1) / (micro_batches + stages - 1)
    )


def test_computation_is_the_flops_over_the_rate_however_it_is_shared():
    for parallelism in (
        {},
        {"tp": 3},
        {"pp": 2},
        {"tp": 2, "dp": 2},
        {"dp": 2, "sharding": "full"},
    ):
        made = job(vocabulary=96, compute_rate=1e12, **parallelism)
        trace = training_trace(made)
        total = sum(compute_seconds(trace, rank) for rank in range(trace.world_size))
        flops = made.shape.iteration_flops(made.iteration_tokens)
        assert total == pytest.approx(flops / 1e12)


def test_tensor_parallel_all_reduces():
    made = job(tp=3, pp=2, micro_batches=3)
    trace = training_trace(made)
    for rank in range(6):
        reduced = collectives(trace, rank, Collective.ALL_REDUCE, "tp-")
        assert len(reduced) == 4 * 2 * 3  # two a layer each way, two layers, three micro-batches
        assert {node.size for node in reduced} == {activation_bytes(made)}
        assert sum(node.size for node in reduced) == tensor_parallel_bytes(made)


def test_scatter_gather_sends_a_part_per_rail_and_gathers_it_behind():
    whole = job(tp=3, pp=2, scatter_gather=False)
    parts = job(tp=3, pp=2, scatter_gather=True)
    sent = {}
    for made in (whole, parts):
        trace = training_trace(made)
        sends = [n for n in trace.ranks[1] if n.kind is NodeKind.SEND]
        assert {node.peer for node in sends} == {4}  # the same tensor rank of the next stage
        assert len(sends) == made.micro_batches
        sent[made.scatter_gather] = sum(node.size for node in sends)
        gathers = collectives(trace, 4, Collective.ALL_GATHER, "tp-")
        assert len(gathers) == (made.micro_batches if made.scatter_gather else 0)
        assert all(node.size == stage_transfer_bytes(made) for node in gathers)
    assert sent[False] == 3 * sent[True]


def test_gradients_are_reduced_in_buckets_that_overlap_the_backward_pass():
    made = job(dp=3, micro_batches=2, bucket=1)
    trace = training_trace(made)
    reduced = collectives(trace, 0, Collective.ALL_REDUCE, "dp-")
    assert [node.size for node in reduced] == [dense_layer_bytes(made)] * 4
    assert sum(node.size for node in reduced) == gradient_bytes(made, 0)
    names = {node.node_id: node.name for node in trace.ranks[0]}
    assert [names[node.dependencies[0]] for node in reduced] == [
        f"bwd 1 layer {layer}" for layer in (3, 2, 1, 0)
    ]
    # a bucket takes a third of a layer's backward pass: only the last one is exposed
    layer = next(n.duration for n in trace.ranks[0] if n.name == "bwd 1 layer 0")
    assert exposed_communication(trace, lambda node, ranks: layer / 3) == pytest.approx(layer / 3)
    large = training_trace(dataclasses.replace(made, bucket=2**40))
    (only,) = collectives(large, 0, Collective.ALL_REDUCE, "dp-")
    assert only.size == gradient_bytes(made, 0)
    assert exposed_communication(large, lambda node, ranks: 4 * layer / 3) == pytest.approx(
        4 * layer / 3
    )


def test_full_sharding_costs_half_as_much_again():
    whole = training_trace(job(dp=4, micro_batches=1))
    trace = training_trace(job(dp=4, micro_batches=1, sharding=Sharding.FULL))
    assert rank_totals(trace)[0] == pytest.approx(1.5 * rank_totals(whole)[0])
    optimizer = training_trace(job(dp=4, micro_batches=1, sharding=Sharding.OPTIMIZER))
    assert rank_totals(optimizer)[0] == pytest.approx(rank_totals(whole)[0])
    made = job(dp=4, micro_batches=1)
    gathers = collectives(trace, 0, Collective.ALL_GATHER)
    scatters = collectives(trace, 0, Collective.REDUCE_SCATTER)
    assert [node.size for node in gathers] == [dense_layer_bytes(made) // 4] * 8
    assert [node.size for node in scatters] == [dense_layer_bytes(made)] * 4


def test_layers_that_stay_gathered_are_gathered_once():
    kept = training_trace(job(dp=4, micro_batches=3, sharding=Sharding.FULL, reshard=False))
    dropped = training_trace(job(dp=4, micro_batches=3, sharding=Sharding.FULL, reshard=True))
    assert len(collectives(kept, 0, Collective.ALL_GATHER)) == 4
    assert len(collectives(dropped, 0, Collective.ALL_GATHER)) == 2 * 3 * 4


def test_gathering_a_layer_overlaps_the_layer_before():
    trace = training_trace(job(dp=2, micro_batches=1, sharding=Sharding.FULL))
    layer = next(n.duration for n in trace.ranks[0] if n.name == "fwd 0 layer 1")

    def cost(node, ranks):
        return 0.9 * layer if node.collective is Collective.ALL_GATHER else 0.0

    # the first layer of either pass is waited for, all others are there in time
    assert exposed_communication(trace, cost) == pytest.approx(2 * 0.9 * layer)


def test_tied_embeddings_are_added_up_between_first_and_last_stage():
    trace = training_trace(job(pp=4, dp=2, tied=True, vocabulary=96))
    sizes = [[n.size for n in collectives(trace, r, prefix="embedding")] for r in (0, 2, 6)]
    assert sizes == [[96 * 48 * 2], [], [96 * 48 * 2]]
    untied = training_trace(job(pp=4, dp=2, vocabulary=96))
    assert not collectives(untied, 0, prefix="embedding")


def test_experts_exchange_all_tokens_there_and_back():
    made = job(experts=8, dp=4, ep=4, imbalance=0.5, micro_batches=1)
    trace = training_trace(made)
    by_rank = [collectives(trace, r, Collective.ALL_TO_ALLV) for r in range(4)]
    assert [len(nodes) for nodes in by_rank] == [4 * made.shape.layers] * 4
    for calls in zip(*by_rank, strict=True):
        if "dispatch" in calls[0].name:
            assert {node.size for node in calls} == {expert_bytes(made)}
            dispatched = [node.sizes for node in calls]
        else:
            assert [node.sizes for node in calls] == list(zip(*dispatched, strict=True))
    # popular experts compute longer: the group's mean stays
    experts = [
        next(n.duration for n in trace.ranks[r] if n.name == "fwd 0 layer 0 experts")
        for r in range(4)
    ]
    even = training_trace(dataclasses.replace(made, imbalance=0.0))
    (expected,) = {n.duration for _, n in even.nodes() if n.name == "fwd 0 layer 0 experts"}
    assert sum(experts) / 4 == pytest.approx(expected)
    assert max(experts) > 1.05 * expected
    gradients = collectives(trace, 0, Collective.ALL_REDUCE)
    assert {n.group.split("-tp")[0] for n in gradients} == {"dp"}  # ep spans all replicas
    assert sum(n.size for n in gradients) == 4 * dense_layer_bytes(made)


def test_gradients_of_experts_are_reduced_among_the_ranks_that_have_them():
    made = job(experts=4, dp=4, ep=2, micro_batches=1)
    trace = training_trace(made)
    gradients = collectives(trace, 3, Collective.ALL_REDUCE, "expert-dp")
    assert {trace.members(n.group) for n in gradients} == {(1, 3)}
    assert sum(n.size for n in gradients) == 4 * expert_layer_bytes(made)


@given(st.integers(1, 6), st.integers(0, 10_000), st.floats(0, 1))
def test_token_matrices_add_up(members, total, imbalance):
    matrix = token_matrix(members, total, imbalance=imbalance, seed=1, labels=(0,))
    assert all(sum(row) == total and min(row) >= 0 for row in matrix)
    assert transposed(transposed(matrix)) == matrix
    if imbalance == 0:
        assert max(matrix[0]) - min(matrix[0]) <= 1 + members


def test_a_slow_rank_delays_everyone():
    quick = training_trace(job(dp=4))
    slow = training_trace(job(dp=4, slowdown={2: 1.5}))
    assert compute_seconds(slow, 2) == pytest.approx(1.5 * compute_seconds(quick, 2))
    assert compute_seconds(slow, 0) == compute_seconds(quick, 0)
    assert timeline(slow).duration == pytest.approx(1.5 * timeline(quick).duration)


def test_iterations_follow_each_other():
    made = job(dp=2, pp=2, optimizer_seconds=1e-3)
    one, three = (timeline(training_trace(made, iterations=n)).duration for n in (1, 3))
    assert three == pytest.approx(3 * one)
    with pytest.raises(TrainingError, match="iterations: 0; at least 1"):
        training_trace(made, iterations=0)
    with pytest.raises(TrainingError, match="operations; at most"):
        training_trace(made, iterations=10**6)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_job_gives_a_trace_that_can_run(data):
    """Transfers are matched, collectives agree, nothing waits for itself, bytes are the closed
    forms, whatever the shape."""
    tp, pp = data.draw(st.sampled_from([1, 2, 3])), data.draw(st.integers(1, 3))
    ep = data.draw(st.sampled_from([1, 2]))
    sharding = data.draw(st.sampled_from(Sharding))
    made = job(
        layers=pp * data.draw(st.integers(1, 3)),
        vocabulary=data.draw(st.sampled_from([0, 96, 101])),
        experts=data.draw(st.sampled_from([1, 4])) if ep == 1 else 4,
        tied=data.draw(st.booleans()),
        micro_batches=data.draw(st.integers(1, 4)),
        tp=tp, pp=pp, ep=ep, dp=ep * data.draw(st.integers(1, 2)), sharding=sharding,
        order=data.draw(st.sampled_from(RankOrder)),
        bucket=data.draw(st.sampled_from([1, 50_000, 2**30])),
        scatter_gather=data.draw(st.booleans()),
        reshard=data.draw(st.booleans()),
        imbalance=data.draw(st.sampled_from([0.0, 1.0])),
    )  # fmt: skip
    trace = training_trace(made, iterations=data.draw(st.integers(1, 2)))
    check(trace)
    iterations = sum(node.name == "optimizer" for node in trace.ranks[0])
    for rank in range(trace.world_size):
        stage = made.parallelism.coordinates(rank).pp
        sends = [n for n in trace.ranks[rank] if n.kind is NodeKind.SEND]
        directions = (stage > 0) + (stage < pp - 1)
        assert len(sends) == directions * made.micro_batches * iterations
        reduced = [
            node
            for node in collectives(trace, rank)
            if node.name == "gradients"
        ]  # fmt: skip
        expected = gradient_bytes(made, stage) * iterations
        p = made.parallelism
        if p.dp == 1:
            assert not reduced
        elif p.dp // p.ep > 1:
            padding = len(reduced) * p.dp if sharding is not Sharding.NONE else 0
            assert expected <= sum(node.size for node in reduced) <= expected + padding
