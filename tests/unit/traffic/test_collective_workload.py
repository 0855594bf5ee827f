"""Collectives as plans: numpy's results on a perfect network, bit for bit, for every algorithm."""

from __future__ import annotations

import time

import numpy as np
import pytest
from pydantic import ValidationError

from tests.unit.traffic.lossless import assert_reduced, run_lossless
from traffic.collectives import builder as schedule_builder
from traffic.collectives.algorithms import algorithms_for, create_algorithm
from traffic.collectives.lowering import buffer_offsets, lower
from traffic.collectives.request import Chunking, Collective, CollectiveRequest
from traffic.collectives.schedule import Instruction
from traffic.collectives.symbolic import races
from traffic.executor import RankExecutor
from traffic.locations import RankLocation
from traffic.payload import initial_memory, initial_slice
from traffic.plan import Operation, OpKind, PlanError, WorkloadParameters
from traffic.plan_builder import PlanBuilder
from traffic.workloads import create_workload, verify_rank
from traffic.workloads.collective import schedule_of

PAIRS = [
    (collective, algorithm) for collective in Collective for algorithm in algorithms_for(collective)
]


def plan_of(world_size=4, seed=1, locations=None, **parameters):
    chosen = create_workload("collective")
    return chosen.plan(
        chosen.Parameters(**parameters), world_size=world_size, seed=seed, locations=locations
    )


def wrong(plan, memories):
    return [verify_rank(plan, rank, memory) for rank, memory in enumerate(memories)]


def output_of(plan, memories, rank):
    schedule = schedule_of(plan.parameters, plan.world_size, plan.seed)
    buffers = buffer_offsets(schedule)[rank]
    return np.frombuffer(memories[rank], dtype=plan.dtype.value)[
        buffers.output // plan.dtype.itemsize : buffers.scratch // plan.dtype.itemsize
    ]


@pytest.mark.parametrize(("collective", "algorithm"), PAIRS)
@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16])
def test_every_algorithm_on_numbers(collective, algorithm, ranks):
    dtype = ("float32", "float16", "int32")[ranks % 3]
    plan = plan_of(
        ranks,
        collective=collective,
        algorithm=algorithm,
        size=4 * (9 * ranks + 2),
        dtype=dtype,
        channels=2 if ranks <= 8 else 1,
        chunk=32 if ranks <= 4 else None,
        root=ranks - 1,
        gpus_per_server=4 if ranks % 4 == 0 else 1,
    )
    memories = run_lossless(plan, seed=ranks)
    assert wrong(plan, memories) == [0] * ranks
    if ranks <= 4:
        assert races(plan) == []


@pytest.mark.parametrize("algorithm", algorithms_for(Collective.ALL_REDUCE))
@pytest.mark.parametrize("reduction", ["sum", "max"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_all_reduce_is_numpys(algorithm, reduction, dtype):
    ranks, size = 6, 400
    plan = plan_of(ranks, algorithm=algorithm, reduction=reduction, dtype=dtype, size=size)
    memories = run_lossless(plan)
    data = [initial_slice(plan, rank, 0, size) for rank in range(ranks)]
    for rank in range(ranks):
        assert_reduced(output_of(plan, memories, rank), data, reduction, dtype)
    assert wrong(plan, memories) == [0] * ranks


def test_the_order_of_additions_shows():
    """Two algorithms add in different orders: each has its own bits, and verify knows them."""
    plans = [plan_of(8, algorithm=name, size=4096) for name in ("ring", "binary-tree")]
    memories = [run_lossless(plan) for plan in plans]
    results = [output_of(plan, m, 0) for plan, m in zip(plans, memories, strict=True)]
    assert not np.array_equal(*results)
    assert np.allclose(*results, atol=1e-5)


@pytest.mark.parametrize(("collective", "algorithm"), PAIRS)
def test_one_wrong_bit_is_found(collective, algorithm):
    plan = plan_of(4, collective=collective, algorithm=algorithm, size=400)
    memories = run_lossless(plan)
    schedule = schedule_of(plan.parameters, 4, 1)
    for rank, buffers in enumerate(buffer_offsets(schedule)):
        if buffers.output == buffers.scratch:
            continue  # the root's alone
        memories[rank][buffers.scratch - 1] ^= 1
        assert verify_rank(plan, rank, memories[rank]) == 1


@pytest.mark.parametrize(("collective", "algorithm"), PAIRS)
def test_inputs_are_left_alone(collective, algorithm):
    plan = plan_of(4, collective=collective, algorithm=algorithm, size=400)
    for rank, memory in enumerate(run_lossless(plan)):
        initialised = plan.memory[rank].initialised
        assert memory[:initialised] == initial_memory(plan, rank)[:initialised].tobytes()


def test_bytes_on_the_wire_are_the_closed_form():
    size, ranks = 4 * 8 * 3 * 10, 8
    for algorithm in ("ring", "direct", "recursive-halving-doubling"):
        plan = plan_of(ranks, algorithm=algorithm, size=size, channels=3)
        for ops in plan.ops:
            sent = sum(op.length for op in ops if op.kind is OpKind.SEND)
            assert sent * ranks == 2 * (ranks - 1) * size


# posting


@pytest.mark.parametrize(("collective", "algorithm"), PAIRS)
def test_messages_are_posted_in_order_and_not_too_many(collective, algorithm):
    """On every connection, whatever the order in which other work is completed."""
    plan = plan_of(5, collective=collective, algorithm=algorithm, size=4000, chunk=64, root=2)
    schedule = schedule_of(plan.parameters, 5, plan.seed)
    window = schedule.chunking.messages_in_flight
    for rank, ops in enumerate(plan.ops):
        executor = RankExecutor(plan, rank)
        executor.start(0.0)
        posted: dict[int, list[int]] = {}
        completed: dict[int, int] = {}
        others = []
        while not executor.done:
            for op in executor.ready(1.0):
                if op.kind is OpKind.SEND:
                    tags = posted.setdefault(op.connection, [])
                    assert op.tag == len(tags)
                    tags.append(op.op_id)
                    assert len(tags) - completed.get(op.connection, 0) <= window
                else:
                    others.append(op.op_id)
            # the latest first, as unlike the order of posting as can be
            if others:
                executor.complete(others.pop(), 1.0)
                continue
            connection = next(c for c, tags in posted.items() if len(tags) > completed.get(c, 0))
            executor.complete(posted[connection][completed.get(connection, 0)], 1.0)
            completed[connection] = completed.get(connection, 0) + 1
        assert len(ops) == len(executor.ops)


@pytest.mark.parametrize("operation", [Operation.SEND, Operation.SEND_WITH_IMM])
def test_other_verbs(operation):
    plan = plan_of(4, operation=operation, size=4000, chunk=256)
    assert wrong(plan, run_lossless(plan)) == [0] * 4


# communicators


def test_some_ranks_only_in_any_order():
    plan = plan_of(6, ranks=(5, 1, 3), size=300, channels=2, algorithm="ring")
    edges = {(c.source_rank, c.destination_rank) for c in plan.connections}
    assert edges == {(5, 1), (1, 3), (3, 5)}
    memories = run_lossless(plan)
    assert wrong(plan, memories) == [0] * 6
    total = np.sum([initial_slice(plan, rank, 0, 300) for rank in (1, 3, 5)], axis=0)
    small = schedule_of(plan.parameters, 3, plan.seed)
    begin = buffer_offsets(small)[0].output
    result = np.frombuffer(memories[3], dtype="float32", offset=begin, count=75)
    assert np.allclose(result, total, atol=1e-5)
    assert [memory.total for memory in plan.memory][0::2] == [0, 0, 0]


@pytest.mark.parametrize("groups", [((0, 1, 2), (5, 4, 3)), ((0, 1), (1, 2), (2, 0))])
def test_several_communicators_at_once(groups):
    """Disjoint or not: every rank has buffers of its own for each of its communicators."""
    plan = plan_of(6, groups=groups, size=3000, dtype="float16")
    memories = run_lossless(plan, seed=4)
    assert wrong(plan, memories) == [0] * 6
    assert races(plan) == []
    assert create_workload("collective").reference(plan).size_bytes == 3000
    often = [sum(rank in group for group in groups) for rank in range(6)]
    assert [memory.initialised for memory in plan.memory] == [3000 * times for times in often]
    for rank in {rank for group in groups for rank in group}:
        memories[rank][plan.memory[rank].initialised] ^= 1
        assert verify_rank(plan, rank, memories[rank]) == 1


def test_two_collectives_after_each_other_in_one_plan():
    """The second all-reduces the output of the first: n times the sum. Operations of the second
    wait for those of the first at their own rank."""
    ranks, elements = 4, 40
    builder = PlanBuilder(
        workload="collective", parameters=WorkloadParameters(), world_size=ranks, seed=3
    )
    builder.dtype = create_workload("collective").Parameters(dtype="int32").dtype
    request = CollectiveRequest(Collective.ALL_REDUCE, ranks, elements, chunking=Chunking(16, 1, 2))
    schedule = create_algorithm("ring").schedule(request)
    first = buffer_offsets(schedule)
    second = buffer_offsets(
        schedule,
        inputs=[buffer.output for buffer in first],
        rest=[buffer.end for buffer in first],
    )
    for rank in range(ranks):
        builder.memory(rank, initialised=first[rank].output, total=second[rank].end)
    before = lower(schedule, builder, buffers=first)
    split = [len(ops) for ops in builder.build().ops]
    lower(schedule, builder, buffers=second, after=before.last)
    plan = builder.build()
    assert races(plan) == []
    for rank, ops in enumerate(plan.ops):
        for op in ops[split[rank] :]:
            if op.kind is OpKind.SEND and op.tag == 0:
                assert any(needed < split[rank] for needed in op.depends_on)
    memories = run_lossless(plan)
    total = np.sum([initial_slice(plan, r, 0, 160) for r in range(ranks)], axis=0, dtype=np.int32)
    for memory in memories:
        result = np.frombuffer(memory, dtype="int32", offset=second[0].output, count=elements)
        assert np.array_equal(result, total * np.int32(ranks))


# servers


def on_servers(gpus, world_size=8):
    return [RankLocation(server=f"server{rank // gpus}") for rank in range(world_size)]


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [("all-reduce", "hierarchical"), ("all-to-all", "pxn"), ("all-reduce", "double-binary-tree")],
)
def test_what_stays_in_a_server_takes_nvlink(collective, algorithm):
    plan = plan_of(
        8, collective=collective, algorithm=algorithm, size=800, gpus_per_server=4,
        locations=on_servers(4),
    )  # fmt: skip
    assert all(c.source_rank // 4 != c.destination_rank // 4 for c in plan.connections)
    assert all(c.source_rank % 4 == c.destination_rank % 4 for c in plan.connections)
    local = [op for ops in plan.ops for op in ops if op.kind is OpKind.LOCAL_SEND]
    assert local
    assert all(op.rank // 4 == op.peer // 4 for op in local)
    assert races(plan) == []
    assert wrong(plan, run_lossless(plan)) == [0] * 8


def local_sends(plan):
    return sum(op.kind is OpKind.LOCAL_SEND for ops in plan.ops for op in ops)


def test_nvlink_is_used_as_the_fabric_has_it():
    """By default; the explicit number is the same plan, and 1 leaves all to the network."""
    plan = plan_of(8, size="4 MiB", locations=on_servers(4))  # auto
    told = plan_of(8, size="4 MiB", gpus_per_server=4, locations=on_servers(4))
    flat = plan_of(8, size="4 MiB", gpus_per_server=1, locations=on_servers(4))
    (communicator,) = create_workload("collective").communicators(plan)
    assert communicator.schedule.algorithm == "hierarchical"
    assert plan.ops == told.ops
    assert local_sends(plan)
    assert not local_sends(flat)
    (communicator,) = create_workload("collective").communicators(flat)
    assert communicator.schedule.algorithm == "ring"


@pytest.mark.parametrize(
    ("parameters", "gpus"),
    [
        ({"ranks": (0, 1, 4, 5)}, 2),  # two of each server's four
        ({"ranks": (4, 5, 6, 7, 0, 1, 2, 3)}, 4),
        ({"ranks": (0, 4, 1, 5)}, 1),  # neighbours are on different servers
        ({"ranks": (0, 1, 2, 4)}, 1),  # three and one
        ({"groups": ((0, 4), (1, 5))}, 1),
        ({"groups": ((0, 1, 4, 5), (2, 6, 3, 7))}, 2),  # the second has no two in a row
        ({"gpus_per_server": 2}, 2),
    ],
)
def test_servers_that_are_not_filled_evenly(parameters, gpus):
    plan = plan_of(8, algorithm="ring", size=800, locations=on_servers(4), **parameters)
    communicators = create_workload("collective").communicators(plan)
    assert max(c.schedule.request.gpus_per_server for c in communicators) == gpus
    assert (local_sends(plan) > 0) == (gpus > 1)
    assert wrong(plan, run_lossless(plan)) == [0] * 8


def test_the_network_takes_what_is_not_in_one_server_after_all():
    """The algorithm takes four ranks for one server, but there are two in each."""
    plan = plan_of(
        8, algorithm="hierarchical", size=800, gpus_per_server=4, locations=on_servers(2)
    )
    inside = {c.source_rank // 4 == c.destination_rank // 4 for c in plan.connections}
    assert inside == {True, False}
    assert wrong(plan, run_lossless(plan)) == [0] * 8


# parameters


def test_auto_chooses_by_size_and_can_be_overridden():
    assert len(plan_of(8, size="1 KiB").connections) == 28  # two trees
    assert len(plan_of(8, size="2 MiB").connections) == 8  # a ring
    table = [{"algorithm": "direct", "up_to": "2 MiB"}]
    assert len(plan_of(8, size="1 MiB", algorithm_table=table).connections) == 56
    assert len(plan_of(8, size="4 MiB", algorithm_table=table).connections) == 8


def test_chunk_and_window():
    def sends(**parameters):
        plan = plan_of(4, collective="send-recv", size=4096, chunk=512, **parameters)
        return [op for op in plan.ops[0] if op.kind is OpKind.SEND]

    assert [op.length for op in sends()] == [512] * 8
    assert [len(op.depends_on) for op in sends()] == [0] * 8
    assert [op.depends_on for op in sends(in_flight=1)][1:] == [
        (op.op_id,) for op in sends(in_flight=1)[:-1]
    ]


def test_all_to_allv_is_drawn_from_the_seed():
    plans = [plan_of(4, seed, collective="all-to-allv", size=4000) for seed in (1, 1, 2)]
    lengths = [[op.length for ops in plan.ops for op in ops] for plan in plans]
    assert lengths[0] == lengths[1] != lengths[2]
    even = plan_of(4, collective="all-to-allv", size=4000, imbalance=0)
    assert {op.length for ops in even.ops for op in ops} == {1000}
    reference = create_workload("collective").reference(plans[0])
    inputs = [memory.initialised for memory in plans[0].memory]
    assert inputs == [4000] * 4
    assert reference.size_bytes >= 4000


@pytest.mark.parametrize(
    ("collective", "factor"),
    [
        ("all-reduce", 1.5), ("reduce-scatter", 0.75), ("all-gather", 0.75), ("all-to-all", 0.75),
        ("gather", 0.75), ("scatter", 0.75), ("broadcast", 1), ("reduce", 1), ("send-recv", 1),
    ],
)  # fmt: skip
def test_bus_factors_are_those_of_nccl_tests(collective, factor):
    reference = create_workload("collective").reference(plan_of(4, collective=collective, size=400))
    assert (reference.bus_factor, reference.size_bytes) == (factor, 400)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"size": 1001}, "size: 1001 bytes are no whole number of float32"),
        ({"algorithm": "star"}, "'star'; allowed: auto, binary-tree"),
        ({"algorithm": "pairwise"}, "pairwise cannot do all-reduce; allowed: binary-tree"),
        ({"root": 4}, "root: 4; allowed: 0 to 3"),
        ({"ranks": (0, 4)}, "ranks: 4 has no GPU; allowed: 0 to 3"),
        ({"ranks": (0, 0)}, "ranks: 0 is listed twice"),
        ({"groups": ()}, "groups: allowed: one list of ranks or more"),
        ({"groups": ((0, 1),), "ranks": (0, 1)}, "no ranks beside it"),
        ({"groups": ((0, 1), (1, 2, 3))}, "different sizes"),
        ({"groups": ((0, 1), (1, 4))}, "ranks: 4 has no GPU"),
        ({"ranks": (1,)}, "ranks: 1 listed; allowed: 2 or more"),
        ({"gpus_per_server": 3}, "gpus_per_server: 3 does not divide 4"),
        ({"collective": "gather", "size": 4}, "size: 4 bytes leave gather nothing to send"),
        ({"algorithm_table": [{"algorithm": "star"}]}, "'star'"),
    ],
)
def test_what_does_not_fit_is_refused(parameters, words):
    with pytest.raises(PlanError, match=words):
        plan_of(4, **parameters)
    with pytest.raises(PlanError, match="world_size: 2 GPUs or more are needed, not 1"):
        plan_of(1)


@pytest.mark.parametrize(
    "parameters",
    [
        {"collective": "all-in"},
        {"operation": "write"},
        {"channels": 0},
        {"chunk": 0},
        {"size": 0},
        {"imbalance": 2},
        {"algorithm_table": [{"algorithm": "ring", "to": 1}]},
    ],
)
def test_parameters_are_checked(parameters):
    with pytest.raises(ValidationError):
        plan_of(4, **parameters)


@pytest.mark.parametrize("collective", ["all-reduce", "all-to-all", "broadcast", "all-gather"])
def test_messages_too_small_to_count_are_refused(collective):
    """And at once: without a limit the schedule fills the memory."""
    began = time.process_time()
    with pytest.raises(PlanError, match="chunk: messages of 1 bytes cut a buffer into more than"):
        plan_of(4, collective=collective, size=2**50, chunk=1)
    assert time.process_time() - began < 10


def test_a_write_without_notification_is_refused():
    schedule = create_algorithm("ring").schedule(CollectiveRequest(Collective.ALL_REDUCE, 2, 2))
    builder = PlanBuilder(
        workload="collective", parameters=WorkloadParameters(), world_size=2, seed=3
    )
    with pytest.raises(PlanError, match="operation: write"):
        lower(schedule, builder, buffers=buffer_offsets(schedule), operation=Operation.WRITE)


@pytest.mark.parametrize("algorithm", ["ring", "double-binary-tree", "direct"])
def test_more_operations_than_a_plan_holds_are_refused_before_they_are_made(monkeypatch, algorithm):
    """Every rank's buffers have few enough pieces, but the ranks together do too much with them."""
    made = []

    def instruction(*fields):
        made.append(fields)
        return Instruction(*fields)

    monkeypatch.setattr(schedule_builder, "OPERATION_LIMIT", 5000)
    monkeypatch.setattr(schedule_builder, "Instruction", instruction)
    with pytest.raises(PlanError, match="chunk: messages of 720 bytes make more than 5000 op"):
        plan_of(16, size="1 MiB", chunk=720, algorithm=algorithm)
    assert len(made) == 5000
