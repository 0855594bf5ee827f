"""Plans and their execution: determinism, unique numbers, dependencies, memory."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traffic.executor import RankExecutor, apply
from traffic.payload import count_wrong, initial_memory, initial_slice
from traffic.plan import (
    DataType,
    Op,
    Operation,
    OpKind,
    PlanError,
    QpScaling,
    Reduction,
    SourcePortPolicy,
    WorkloadParameters,
)
from traffic.plan_builder import PlanBuilder, draw_uniform


def builder(world_size=2, seed=1, policy=SourcePortPolicy.PER_QP, memory=1 << 20):
    made = PlanBuilder(
        workload="incast",
        parameters=WorkloadParameters(),
        world_size=world_size,
        seed=seed,
        qp_scaling=QpScaling(source_port_policy=policy),
    )
    for rank in range(world_size):
        made.memory(rank, initialised=memory // 2, total=memory)
    return made


def one_message(made, source=0, destination=1, length=8, **fields):
    flow = made.flow(made.connect(source, destination))
    return made.message(
        flow,
        operation=fields.pop("operation", Operation.WRITE_WITH_IMM),
        length=length,
        offset=0,
        remote_offset=0,
        **fields,
    )


def plan_of_ops(dependencies, starts=None):
    """One rank whose operation i is a COPY that depends on dependencies[i]."""
    made = builder(world_size=1)
    for depends_on in dependencies:
        made.copy(0, offset=0, source_offset=8, length=8, depends_on=depends_on)
    if starts is not None:
        made._ops[0] = [
            Op(op.op_id, 0, OpKind.COPY, 0, 8, op.depends_on, start=start)
            for op, start in zip(made._ops[0], starts, strict=True)
        ]
    return made.build()


GOLDEN_HASH = "10a6b972cbd0b6f136cfad871268445765f2eec8fdd3bd91607c2f54f5ef24eb"
"""Changes only when what a plan contains changes; results then cannot be compared any more."""


# numbers drawn from the seed


@given(st.integers(0, 2**40))
def test_same_seed_same_plan(seed):
    plans = []
    for _ in range(2):
        made = builder(world_size=3, seed=seed)
        one_message(made)
        one_message(made, 1, 2)
        plans.append(made.build())
    assert plans[0] == plans[1]
    assert plans[0].plan_hash() == plans[1].plan_hash()


def test_hash_is_stable_across_versions_and_machines():
    made = builder(seed=7)
    one_message(made)
    assert made.build().plan_hash() == GOLDEN_HASH


def test_every_part_changes_the_hash():
    def hash_of(seed=1, policy=SourcePortPolicy.PER_QP, length=8, memory=1 << 20, **fields):
        made = builder(seed=seed, policy=policy, memory=memory)
        one_message(made, length=length, **fields)
        return made.build().plan_hash()

    variants = [
        hash_of(),
        hash_of(seed=2),
        hash_of(policy=SourcePortPolicy.PER_PAIR),
        hash_of(length=16),
        hash_of(memory=1 << 21),
        hash_of(start=1e-6),
        hash_of(operation=Operation.SEND),
    ]
    assert len(set(variants)) == len(variants)


def test_numbers_are_in_range_and_qp_numbers_unique_per_rank():
    made = builder(world_size=4)
    for index in range(600):
        one_message(made, index % 4, (index + 1) % 4)
    plan = made.build()
    for rank in range(4):
        pairs = list(plan.queue_pairs(rank))
        assert len({pair.qp_num for pair in pairs}) == len(pairs) == 300
    for c in plan.connections:
        assert 0xFF < c.source_qp_num < 0xFFFFFF
        assert 0xFF < c.destination_qp_num < 0xFFFFFF
        assert 0 <= c.source_psn < 1 << 24
        assert 0 <= c.destination_psn < 1 << 24
        assert 49152 <= c.source_port <= 65535
        assert 49152 <= c.reverse_source_port <= 65535


def test_qp_numbers_stay_unique_where_the_sequence_wraps():
    made = builder()
    made._qp_counts[0] = 0xFFFFFF - 0x100 - 5
    first = made._next_qp_num(0)
    numbers = [first, *(made._next_qp_num(0) for _ in range(10))]
    assert len(set(numbers)) == 11
    assert all(0xFF < number < 0xFFFFFF for number in numbers)


def test_source_port_policies():
    def ports(policy):
        made = builder(policy=policy)
        for _ in range(64):
            one_message(made)
        plan = made.build()
        return {c.source_port for c in plan.connections}, {
            c.reverse_source_port for c in plan.connections
        }

    forward, reverse = ports(SourcePortPolicy.PER_QP)
    assert len(forward) > 60
    assert len(reverse) > 60
    forward, reverse = ports(SourcePortPolicy.PER_PAIR)
    assert len(forward) == len(reverse) == 1


def test_both_ends_of_a_connection_agree():
    made = builder()
    one_message(made)
    plan = made.build()
    (near,), (far,) = plan.queue_pairs(0), plan.queue_pairs(1)
    assert (near.qp_num, near.sq_psn) == (far.dest_qp_num, far.rq_psn)
    assert (far.qp_num, far.sq_psn) == (near.dest_qp_num, near.rq_psn)
    assert (near.peer_rank, far.peer_rank) == (1, 0)
    assert near.source_port == plan.connections[0].source_port
    assert far.source_port == plan.connections[0].reverse_source_port


def test_uniform_draws_are_uniform():
    values = [draw_uniform(5, "x", index) for index in range(2000)]
    assert all(0 <= value < 1 for value in values)
    assert np.mean(values) == pytest.approx(0.5, abs=0.03)


# what the builder refuses


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: builder(world_size=0), "world_size: 0"),
        (lambda: builder(seed=-1), "seed: -1"),
        (lambda: one_message(builder(), 1, 1), "rank 1"),
        (lambda: one_message(builder(), length=0), "0 bytes"),
        (lambda: one_message(builder(), length=2**31 + 1), "2147483649 bytes"),
    ],
)
def test_builder_refuses(make, words):
    with pytest.raises(PlanError, match=words):
        make()


def test_builder_refuses_to_leave_the_memory():
    made = builder(memory=64)
    one_message(made, length=65)
    with pytest.raises(PlanError, match="64 bytes"):
        made.build()


def test_builder_refuses_a_flow_without_messages():
    made = builder()
    made.flow(made.connect(0, 1))
    with pytest.raises(PlanError, match="flow 0"):
        made.build()


def test_plain_write_has_no_receive():
    made = builder()
    assert one_message(made, operation=Operation.WRITE) == (0, None)
    assert made.build().ops[1] == ()


# execution


def run(executor, now=0.0):
    """Complete everything at once; returns the order of op ids."""
    order = []
    executor.start(now)
    while not executor.done:
        released = executor.ready(now)
        if not released:
            wake = executor.next_start()
            assert wake is not None
            assert wake > now
            now = wake
        for op in released:
            order.append(op.op_id)
            executor.complete(op.op_id, now)
    return order


@given(st.data())
def test_dependencies_hold_for_any_graph_and_completion_order(data):
    count = data.draw(st.integers(1, 25))
    dependencies = [
        sorted(data.draw(st.sets(st.integers(0, index - 1), max_size=4))) if index else []
        for index in range(count)
    ]
    executor = RankExecutor(plan_of_ops(dependencies), 0)
    executor.start(0.0)
    open_ops: list[int] = []
    seen: list[int] = []
    finished: set[int] = set()
    while not executor.done:
        for op in executor.ready(0.0):
            assert set(dependencies[op.op_id]) <= finished
            open_ops.append(op.op_id)
            seen.append(op.op_id)
        assert open_ops
        chosen = open_ops.pop(data.draw(st.integers(0, len(open_ops) - 1)))
        executor.complete(chosen, 0.0)
        finished.add(chosen)
    assert sorted(seen) == list(range(count))


def test_start_times_are_relative_to_the_start():
    executor = RankExecutor(plan_of_ops([[], [], [0]], starts=[0.0, 2e-6, 5e-6]), 0)
    executor.start(1.0)
    assert executor.next_start() == -math.inf
    assert [op.op_id for op in executor.ready(1.0)] == [0]
    assert executor.next_start() == pytest.approx(1.0 + 2e-6)
    assert executor.ready(1.0 + 1e-6) == []
    assert [op.op_id for op in executor.ready(1.0 + 3e-6)] == [1]
    assert executor.next_start() is None
    executor.complete(0, 1.0 + 4e-6)
    assert executor.next_start() == pytest.approx(1.0 + 5e-6)
    assert [op.op_id for op in executor.ready(2.0)] == [2]
    executor.complete(1, 2.0)
    executor.complete(2, 2.5)
    assert executor.done
    assert list(executor.started) == [1.0, 1.0 + 3e-6, 2.0]
    assert list(executor.finished) == [1.0 + 4e-6, 2.0, 2.5]


def test_executor_refuses_what_cannot_be():
    executor = RankExecutor(plan_of_ops([[], [0]]), 0)
    executor.start(0.0)
    with pytest.raises(RuntimeError, match="already started"):
        executor.start(0.0)
    executor.ready(0.0)
    with pytest.raises(ValueError, match="not handed out"):
        executor.complete(1, 0.0)
    executor.complete(0, 0.0)
    with pytest.raises(ValueError, match="complete already"):
        executor.complete(0, 0.0)


def test_a_hundred_thousand_operations_take_linear_time():
    def seconds(count):
        executor = RankExecutor(plan_of_ops([[i - 1] if i else [] for i in range(count)]), 0)
        begin = time.process_time()
        assert run(executor) == list(range(count))
        return time.process_time() - begin

    small = min(seconds(10_000) for _ in range(3))
    assert seconds(100_000) < 10 * small * 4


# memory


@pytest.mark.parametrize("dtype", list(DataType))
@pytest.mark.parametrize("reduction", list(Reduction))
def test_apply_is_numpys_arithmetic(dtype, reduction):
    made = builder(world_size=1, memory=128)
    made.dtype, made.reduction = dtype, reduction
    op_id = made.reduce(0, offset=0, source_offset=64, length=64, depends_on=[])
    copy_id = made.copy(0, offset=64, source_offset=0, length=64)
    made.memory(0, initialised=128, total=128)
    plan = made.build()
    memory = bytearray(initial_memory(plan, 0))
    left, right = initial_slice(plan, 0, 0, 64), initial_slice(plan, 0, 64, 64)
    expected = left + right if reduction is Reduction.SUM else np.maximum(left, right)
    apply(plan.ops[0][op_id], memory, dtype=dtype, reduction=reduction)
    assert bytes(memory) == expected.tobytes() + right.tobytes()
    apply(plan.ops[0][copy_id], memory, dtype=dtype, reduction=reduction)
    assert bytes(memory) == expected.tobytes() * 2


def test_apply_refuses_messages():
    made = builder()
    send, _ = one_message(made)
    plan = made.build()
    with pytest.raises(ValueError, match="send"):
        apply(plan.ops[0][send], bytearray(64), dtype=DataType.UINT8, reduction=Reduction.SUM)


@given(st.sampled_from(list(DataType)), st.integers(0, 64), st.integers(0, 64))
def test_a_slice_equals_that_part_of_the_whole(dtype, begin, end):
    made = builder()
    made.memory(0, initialised=200, total=256)
    made.dtype = dtype
    plan = made.build()
    item = dtype.itemsize
    begin, end = min(begin, end), max(begin, end)
    whole = initial_slice(plan, 0, 0, 256)
    part = initial_slice(plan, 0, begin * item, (end - begin) * item)
    assert part.tobytes() == whole[begin:end].tobytes()
    assert not whole.view(np.uint8)[200:].any()
    assert whole.tobytes() == initial_memory(plan, 0).tobytes()


def test_memory_differs_by_rank_and_seed():
    plans = [builder(seed=seed).build() for seed in (1, 2)]
    contents = [initial_memory(plan, rank).tobytes() for plan in plans for rank in (0, 1)]
    assert len(set(contents)) == 4


def test_floats_are_in_range_and_use_their_precision():
    made = builder()
    made.dtype = DataType.FLOAT32
    values = initial_slice(made.build(), 0, 0, 1 << 18)
    assert values.min() >= -1
    assert values.max() < 1
    assert abs(values.mean()) < 0.01
    assert len(np.unique(values)) > 60_000


def test_wrong_elements_are_counted_by_their_bits():
    expected = np.array([0.0, np.nan, 1.0], dtype=np.float32)
    assert count_wrong(expected.copy(), expected) == 0
    assert count_wrong(np.array([-0.0, np.nan, 2.0], dtype=np.float32), expected) == 2
