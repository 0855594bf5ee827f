"""Model shapes, published sizes and volumes, parallel groups, bad input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traffic.replay import rank_totals
from traffic.training import (
    ModelShape,
    Parallelism,
    RankOrder,
    TrainingError,
    TrainingJob,
    compute_rate,
    linearity,
    published_job,
    scaled_job,
    timeline,
    training_preset_names,
)
from traffic.training.volumes import (
    activation_bytes,
    gradient_bytes,
    stage_transfer_bytes,
    tensor_parallel_bytes,
)


def shape(**changes):
    small = {
        "layers": 4, "hidden": 64, "feed_forward": 256, "heads": 4, "kv_heads": 2,
        "vocabulary": 1000, "sequence": 32,
    }  # fmt: skip
    return ModelShape(**(small | changes))


@pytest.mark.parametrize(
    ("name", "billions"),
    [("llama3-405b", 405), ("llama3-70b", 70.6), ("llama3-8b", 8.03), ("gpt3-175b", 174.6)],
)
def test_published_models_have_their_published_size(name, billions):
    assert published_job(name).shape.parameters / 1e9 == pytest.approx(billions, rel=0.003)


@pytest.mark.parametrize("name", training_preset_names())
def test_training_costs_about_six_flops_per_parameter_and_token(name):
    model = published_job(name).shape
    tokens = model.sequence
    # the tables cost once and are there twice; attention adds 12 * layers * sequence * hidden
    attention = 12 * model.layers * model.sequence * model.hidden * tokens
    weights = model.parameters
    if not model.tied_embeddings:
        weights -= model.embedding_parameters
    assert model.iteration_flops(tokens) == pytest.approx(6 * weights * tokens + attention)


def test_flops_agree_with_megatrons_formula():
    # Narayanan et al., SC'21: 96 B s l h^2 (1 + s/6h + V/16lh) with recomputation, which is a
    # second forward pass of the layers; without it 72 ... and the logits as they are
    model = published_job("gpt3-175b").shape
    h, s, layers, v = model.hidden, model.sequence, model.layers, model.vocabulary
    expected = 72 * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * layers * h))
    assert model.iteration_flops(s) == pytest.approx(expected, rel=1e-9)


def test_volumes_of_gpt3_as_published_by_hpn():
    """HPN (SIGCOMM'24), table 3: GPT-3 175B with TP 8, PP 8, DP 512.

    DP 5.5 GB: a rank's gradients, two bytes for each of 175e9 / (8 * 8) parameters. PP 6 MB: the
    activations of 2048 tokens of 12288 values, two bytes each, a TP-th part. TP 560 MB: the paper
    does not say of what; a rank's 12 layers with one all-reduce of the same activations each
    make 576 MiB, the closest of the simple forms.
    """
    published = published_job("gpt3-175b")
    parallelism = Parallelism(published.tp, published.pp, published.dp, order=published.order)
    assert parallelism.world_size == 32768
    job = TrainingJob(published.shape, parallelism)
    mean = sum(gradient_bytes(job, stage) for stage in range(8)) / 8
    assert mean == pytest.approx(5.5e9, rel=0.01)
    assert gradient_bytes(job, 3) == pytest.approx(5.5e9, rel=0.02)
    assert stage_transfer_bytes(job) == 6 * 2**20
    per_layer = tensor_parallel_bytes(job) / (4 * job.layers_per_stage)
    assert per_layer == activation_bytes(job) == 48 * 2**20
    assert job.layers_per_stage * per_layer == pytest.approx(560 * 2**20, rel=0.03)


@given(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2),
    st.sampled_from(RankOrder),
)  # fmt: skip
def test_groups_partition_the_ranks(tp, pp, blocks, ep, order):
    p = Parallelism(tp, pp, blocks * ep, ep=ep, order=order)
    for rank in range(p.world_size):
        c = p.coordinates(rank)
        assert p.rank(c.tp, c.dp, c.pp) == rank
    groups = p.groups()
    for prefix, size in (("tp-", tp), ("dp-", blocks * ep), ("ep-", ep if ep > 1 else 1)):
        members = [group for name, group in groups.items() if name.startswith(prefix)]
        if size > 1:
            assert sorted(rank for group in members for rank in group) == list(range(p.world_size))
            assert {len(group) for group in members} == {size}
        else:
            assert not members


def test_tensor_parallel_ranks_are_neighbours_in_either_order():
    for order, dp_peers in ((RankOrder.TP_DP_PP, (0, 4, 8)), (RankOrder.TP_PP_DP, (0, 8, 16))):
        p = Parallelism(tp=4, pp=2, dp=3, order=order)
        assert p.groups()[p.tp_group(p.coordinates(5))] == (4, 5, 6, 7)
        assert p.groups()[p.dp_group(p.coordinates(0))] == dp_peers


def test_experts_lie_in_blocks_of_the_data_parallel_group():
    p = Parallelism(dp=6, ep=2)
    groups = p.groups()
    assert groups[p.ep_group(p.coordinates(3))] == (2, 3)
    assert groups[p.expert_dp_group(p.coordinates(3))] == (1, 3, 5)


@pytest.mark.parametrize("name", training_preset_names())
@pytest.mark.parametrize("world_size", [8, 16, 32])
def test_scaled_jobs_send_what_was_asked_for(name, world_size):
    made = scaled_job(name, world_size=world_size, gpus_per_server=4, rank_bytes=2**20)
    assert made.job.parallelism.world_size == world_size
    assert made.job.parallelism.tp <= 4
    assert 0 < made.scale < 1
    assert 0 < made.layer_factor < 1
    assert 0 < made.rank_factor < 1
    trace = made.trace()
    assert trace.size_scale == trace.time_scale == made.scale
    # rounding up adds a byte per message at most
    assert max(rank_totals(trace)) == pytest.approx(2**20, rel=0.01)


def test_worlds_are_compared_with_the_same_model_and_scale():
    same = {"gpus_per_server": 4, "pp": 2, "micro_batches": 4, "scale": 1e-3}
    worlds = (8, 16, 32)
    made = [scaled_job("llama3-405b", world_size=size, **same) for size in worlds]
    assert len({(m.scale, m.job.shape, m.job.parallelism.tp) for m in made}) == 1
    assert [m.job.parallelism.dp for m in made] == [1, 2, 4]
    # without communication the throughput per rank stays the same
    throughput = [m.job.iteration_flops / timeline(m.trace()).duration for m in made]
    for ranks, value in zip(worlds, throughput, strict=True):
        assert linearity(value, ranks, throughput[0], 8) == pytest.approx(1)


def test_linearity_is_throughput_per_rank_against_a_smaller_job():
    assert linearity(30.0, 16, 20.0, 8) == pytest.approx(0.75)
    with pytest.raises(ValueError, match="allowed: above 0"):
        linearity(30.0, 16, 0.0, 8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: shape(layers=0), "layers: 0; at least 1"),
        (lambda: shape(heads=5), "hidden: 64; allowed: multiples of heads, 5"),
        (lambda: shape(kv_heads=3), "heads: 4; allowed: multiples of kv_heads, 3"),
        (lambda: shape(experts_per_token=2), "experts_per_token: 2; at most 1"),
        (lambda: Parallelism(tp=0), "tp: 0; at least 1"),
        (lambda: Parallelism(dp=4, ep=3), "ep: 3; allowed: divisors of dp, 4"),
        (lambda: TrainingJob(shape(), Parallelism(pp=3)), "layers: 4; .* multiples of pp, 3"),
        (lambda: TrainingJob(shape(), Parallelism(tp=8)), "heads: 4; .* multiples of tp, 8"),
        (lambda: TrainingJob(shape(), Parallelism(dp=2, ep=2)), "experts: 1; .* of ep, 2"),
        (lambda: TrainingJob(shape(), Parallelism(), micro_batches=0), "micro_batches: 0"),
        (lambda: TrainingJob(shape(), Parallelism(), imbalance=2.0), "imbalance: 2.0"),
        (lambda: TrainingJob(shape(), Parallelism(), slowdown={1: 2.0}), "stragglers: rank 1"),
        (lambda: TrainingJob(shape(), Parallelism(), compute_rate=0), "compute_rate: 0"),
        (lambda: compute_rate("b300"), "gpu: 'b300'; allowed: a100, h100"),
        (lambda: compute_rate("h100", 1.5), "utilisation: 1.5"),
        (lambda: published_job("bert"), "preset: 'bert'; allowed: gpt3-175b"),
        (lambda: scaled_job("llama3-8b", world_size=6, gpus_per_server=4), "world_size: 6"),
        (lambda: scaled_job("llama3-70b", world_size=8, gpus_per_server=4, pp=3), "pp: 3; .* of 2"),
        (
            lambda: scaled_job("llama3-8b", world_size=4, gpus_per_server=4, rank_bytes=0),
            "rank_bytes: 0",
        ),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(make, message):
    with pytest.raises(TrainingError, match=message):
        make()
