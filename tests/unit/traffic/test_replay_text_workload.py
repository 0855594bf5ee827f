"""Text workloads of ASTRA-sim and SimAI: groups, sizes, dependencies, bad lines."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traffic.collectives.request import Collective
from traffic.replay import WORLD, NodeKind, TraceError
from traffic.replay.text_workload import parse_text_workload, text_workload_trace

DATA_PARALLEL = b"""DATA
2
conv1 -1 100 NONE 0 200 NONE 0 300 ALLREDUCE 4096 10
fc    -1 110 NONE 0 210 NONE 0 310 ALLREDUCE 8192 20
"""
TRANSFORMER = b"""HYBRID_TRANSFORMER\tmodel_parallel_NPU_group: 4\t\t
2\t\t\t
Embedding\t-1\t300\tALLGATHER\t8388608\t1\tNONE\t0\t1\tNONE\t0\t10
Q1\t-1\t3145728\tNONE\t0\t2162688\tALLREDUCE\t8388608\t2228224\tALLREDUCE\t33554432\t10
"""
SIMAI = b"""HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 pp: 1 vpp: 1 ga: 1 \
all_gpus: 8 checkpoints: 0 checkpoint_initiates: 0 pp_comm: 0
4
grad_norm -1 1 ALLGATHER 4096 1 NONE 0 1 REDUCESCATTER 8192 100
moe -1 1 ALLTOALL_EP 1024 1 NONE 0 1 ALLGATHER_DP_EP 0 100
moe_norm -1 1 NONE 0 1 NONE 0 1 REDUCESCATTER_DP_EP 512 100
embedding -1 1 NONE 16777216 1 NONE 0 1 NONE 0 0
"""


def trace_of(data, **arguments):
    return text_workload_trace(parse_text_workload(data), **arguments)


def by_name(trace, rank=0):
    return {(node.name, node.kind): node for node in trace.ranks[rank]}


def test_data_parallel_gradients_are_reduced_over_all_ranks():
    trace = trace_of(DATA_PARALLEL, world_size=4)
    collectives = [n for _, n in trace.nodes() if n.kind is NodeKind.COLLECTIVE]
    assert {(n.collective, n.group) for n in collectives} == {(Collective.ALL_REDUCE, WORLD)}
    assert [n.size for n in trace.ranks[3] if n.kind is NodeKind.COLLECTIVE] == [8192, 4096]
    nodes = by_name(trace)
    assert nodes["conv1 fwd", NodeKind.COMPUTE].duration == pytest.approx(100e-9)
    # forward, then backward from the last layer; no gradient for the first layer's input
    order = [n.name for n in trace.ranks[0] if n.kind is NodeKind.COMPUTE]
    assert order == ["conv1 fwd", "fc fwd", "fc wg", "fc update", "fc ig", "conv1 wg",
                     "conv1 update"]  # fmt: skip


def test_the_reduction_of_a_gradient_overlaps_the_next_layers_backward_pass():
    nodes = by_name(trace_of(DATA_PARALLEL, world_size=2))
    reduced = nodes["fc wg", NodeKind.COLLECTIVE]
    assert reduced.dependencies == (nodes["fc wg", NodeKind.COMPUTE].node_id,)
    assert nodes["fc ig", NodeKind.COMPUTE].dependencies == reduced.dependencies
    assert nodes["fc update", NodeKind.COMPUTE].dependencies == (reduced.node_id,)


def test_the_next_pass_waits_for_the_update_of_each_layer():
    trace = trace_of(DATA_PARALLEL, world_size=2, passes=2)
    first, second = (n for n in trace.ranks[0] if n.name == "fc fwd")
    update = next(n for n in trace.ranks[0] if n.name == "fc update")
    assert update.node_id in second.dependencies
    assert update.node_id not in first.dependencies


def test_a_transformer_has_model_groups_of_neighbours_and_data_groups_across():
    trace = trace_of(TRANSFORMER, world_size=8)
    nodes = by_name(trace, rank=5)
    assert trace.members(nodes["Q1 ig", NodeKind.COLLECTIVE].group) == (4, 5, 6, 7)
    assert trace.members(nodes["Q1 wg", NodeKind.COLLECTIVE].group) == (1, 5)
    # ASTRA-sim's all-gather: its size is what a rank puts in
    assert nodes["Embedding fwd", NodeKind.COLLECTIVE].size == 8388608


def test_data_model_is_model_data_with_the_groups_exchanged():
    lines = DATA_PARALLEL.replace(b"fc    -1 110 NONE 0", b"fc -1 110 ALLREDUCE 64")
    for policy, model, data in (
        (b"HYBRID_MODEL_DATA", (0, 1), (0, 2, 4)),
        (b"HYBRID_DATA_MODEL", (0, 3), (0, 1, 2)),
    ):
        trace = trace_of(lines.replace(b"DATA\n", policy + b"\n", 1), world_size=6, model_group=2)
        nodes = by_name(trace)
        assert trace.members(nodes["fc fwd", NodeKind.COLLECTIVE].group) == model
        assert trace.members(nodes["fc wg", NodeKind.COLLECTIVE].group) == data


def test_simai_header_groups_and_sizes():
    trace = trace_of(SIMAI)
    assert trace.world_size == 8
    nodes = by_name(trace, rank=3)
    gathered = nodes["grad_norm fwd", NodeKind.COLLECTIVE]
    assert trace.members(gathered.group) == (2, 3)
    assert gathered.size == 4096 // 2  # SimAI's size is the result's
    assert trace.members(nodes["grad_norm wg", NodeKind.COLLECTIVE].group) == (1, 3, 5, 7)
    assert nodes["grad_norm wg", NodeKind.COLLECTIVE].size == 8192
    assert trace.members(nodes["moe fwd", NodeKind.COLLECTIVE].group) == (1, 3)
    assert trace.members(nodes["moe_norm wg", NodeKind.COLLECTIVE].group) == (3, 7)
    assert ("moe wg", NodeKind.COLLECTIVE) not in nodes  # of 0 bytes


def test_one_pipeline_stage_on_request():
    staged = SIMAI.replace(b"pp: 1 ", b"pp: 2 ")
    with pytest.raises(TraceError, match="pp: 2; the file has the layers of one stage"):
        trace_of(staged)
    assert trace_of(staged, one_stage=True).world_size == 4


def test_layers_with_their_own_parallelism():
    data = b"""HYBRID_CUSTOMIZED
2
a -1 1 ALLGATHER 64 1 NONE 0 1 ALLREDUCE 64 1 HYBRID_MODEL_DATA
b -1 1 ALLGATHER 64 1 NONE 0 1 ALLREDUCE 64 1 DATA
"""
    trace = trace_of(data, world_size=4, model_group=2)
    nodes = by_name(trace)
    assert trace.members(nodes["a fwd", NodeKind.COLLECTIVE].group) == (0, 1)
    assert trace.members(nodes["b wg", NodeKind.COLLECTIVE].group) == (0, 1, 2, 3)
    assert ("b fwd", NodeKind.COLLECTIVE) not in nodes


def test_microbenchmarks_run_their_collectives_independently():
    trace = trace_of(b"MICRO\n1\nar -1 5 NONE 0 5 NONE 0 5 ALLREDUCE 1048576 5", world_size=2)
    (only,) = trace.ranks[1]
    assert (only.size, only.dependencies) == (1048576, ())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"DATA\n", b"HYBRID_DLRM 3\n", "line 1: parallelism 'HYBRID_DLRM'; allowed: DATA, MODEL"),
        (b"\n2\n", b"\nlayers\n", "line 2: 'layers'; allowed: the number of layers"),
        (b"\n2\n", b"\n3\n", "3 layers announced, 2 are there"),
        (b"\n2\n", b"\n0\n", "line 2: 0 layers; allowed: 1 to"),
        (b" 8192 20", b" 8192", "line 4: 11 columns; a layer has 12"),
        (b"110", b"-110", "line 4, layer fc: '-110'; allowed: whole numbers"),
        (b"ALLREDUCE 4096", b"ALLTOSOME 4096", "line 3, layer conv1: communication 'ALLTOSOME'"),
        (DATA_PARALLEL, b"DATA", "fewer than 2 lines"),
        (DATA_PARALLEL, b"DATA checkpoints: 2\n1\n", "checkpoints: 2; recomputation is not"),
        (DATA_PARALLEL, b"\xff\xfe", "no text: byte 0 is no UTF-8"),
    ],
)
def test_bad_files_are_refused_with_the_line(old, new, message):
    with pytest.raises(TraceError) as error:
        parse_text_workload(DATA_PARALLEL.replace(old, new, 1))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("data", "arguments", "message"),
    [
        (DATA_PARALLEL, {}, "does not say how many ranks"),
        (DATA_PARALLEL, {"world_size": 0}, "0 ranks"),
        (DATA_PARALLEL, {"world_size": 10**6}, "2 layers on 1000000 ranks make about"),
        (TRANSFORMER, {"world_size": 6}, "groups of 4 do not divide 6 ranks"),
        (SIMAI.replace(b"ep: 2", b"ep: 3"), {}, "ep: 3 does not divide 4 replicas"),
        (TRANSFORMER.replace(b"model_parallel_NPU_group: 4", b""), {"world_size": 8},
         "needs the size of model parallel groups"),
    ],
)  # fmt: skip
def test_worlds_that_do_not_fit_are_refused(data, arguments, message):
    with pytest.raises(TraceError, match=message):
        trace_of(data, **arguments)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_files_give_a_trace_or_a_trace_error(data):
    damaged = bytearray(data.draw(st.sampled_from([DATA_PARALLEL, TRANSFORMER, SIMAI])))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        trace = trace_of(bytes(damaged), world_size=8, one_stage=True)
    except TraceError as error:
        assert "\n" not in str(error)
    else:
        assert trace.world_size == 8
