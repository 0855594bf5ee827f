"""Plans of collectives: proven on sets of contributions, free of races, right on real numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.traffic.lossless import assert_reduced, run_lossless
from traffic.collectives.symbolic import contributions, races
from traffic.payload import initial_slice
from traffic.plan import DataType, OpKind, PlanError
from traffic.schedule import execution_order, match_messages
from traffic.workloads import create_workload, verify_rank


def ring(ranks, elements, channels=1, **fields):
    chosen = create_workload("ring-all-reduce")
    size = elements * DataType(fields.get("dtype", "float32")).itemsize
    parameters = chosen.Parameters(size=size, channels=channels, **fields)
    return chosen.plan(parameters, world_size=ranks, seed=3)


def wrong_units(plan):
    """Units of the results, over all ranks, that are not everybody's, each exactly once."""
    wrong = 0
    for memory in contributions(plan):
        units = plan.parameters.size // memory.unit
        right = (memory.counts[units : 2 * units] == 1).all(axis=1)
        right &= memory.origin[units : 2 * units] == np.arange(units)
        wrong += int(np.count_nonzero(~right))
    return wrong


def replace_op(plan, rank, op_id, **changes):
    ops = [list(ops) for ops in plan.ops]
    ops[rank][op_id] = replace(ops[rank][op_id], **changes)
    return replace(plan, ops=tuple(tuple(ops) for ops in ops))


@pytest.mark.parametrize("ranks", range(2, 18))
@pytest.mark.parametrize("extra", [0, 1, -1])
def test_ring_reduces_everything_everywhere(ranks, extra):
    plan = ring(ranks, 3 * ranks + extra)
    assert wrong_units(plan) == 0
    assert races(plan) == []


@pytest.mark.parametrize(("ranks", "elements"), [(2, 1), (5, 1), (5, 4), (9, 10), (16, 100)])
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_ring_of_few_elements_and_several_channels(ranks, elements, channels):
    plan = ring(ranks, elements, channels)
    assert wrong_units(plan) == 0
    assert races(plan) == []


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_ring_sends_what_theory_says(ranks):
    plan = ring(ranks, 8 * ranks)
    for rank in range(ranks):
        sent = [op for op in plan.ops[rank] if op.kind is OpKind.SEND]
        assert len(sent) == 2 * (ranks - 1)
        assert sum(op.length for op in sent) == 2 * (ranks - 1) * 32
    assert [(c.source_rank, c.destination_rank) for c in plan.connections] == [
        (rank, (rank + 1) % ranks) for rank in range(ranks)
    ]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("reduction", ["sum", "max"])
@pytest.mark.parametrize("order", range(3))
def test_ring_on_numbers(dtype, reduction, order):
    ranks, elements = 5, 333
    plan = ring(ranks, elements, dtype=dtype, reduction=reduction, channels=2)
    memories = run_lossless(plan, seed=order)
    assert [verify_rank(plan, rank, memories[rank]) for rank in range(ranks)] == [0] * ranks
    data = [initial_slice(plan, rank, 0, plan.parameters.size) for rank in range(ranks)]
    result = np.frombuffer(memories[0], dtype=dtype, count=elements, offset=data[0].nbytes)
    assert_reduced(result, data, reduction, dtype)


def test_ring_adds_in_its_own_order():
    """Chunk c begins with rank c + 1 and ends with rank c."""
    ranks, elements = 5, 100
    plan = ring(ranks, elements)
    memories = run_lossless(plan)
    result = np.frombuffer(memories[2], dtype="float32", count=elements, offset=4 * elements)
    data = [initial_slice(plan, rank, 0, 4 * elements) for rank in range(ranks)]
    for chunk in range(ranks):
        part = slice(20 * chunk, 20 * (chunk + 1))
        total = data[(chunk + 1) % ranks][part]
        for distance in range(2, ranks + 1):
            total = data[(chunk + distance) % ranks][part] + total
        assert np.array_equal(result[part], total)


def test_ring_refuses_parts_of_elements():
    chosen = create_workload("ring-all-reduce")
    with pytest.raises(PlanError, match="size: 1001 bytes"):
        chosen.plan(chosen.Parameters(size=1001), world_size=2, seed=0)


# that the proof finds mistakes


def test_a_missing_reduction_is_found():
    plan = ring(4, 8)
    op = next(op for op in plan.ops[2] if op.kind is OpKind.REDUCE)
    plan = replace_op(plan, 2, op.op_id, kind=OpKind.COPY)
    assert wrong_units(plan) > 0


def test_a_double_contribution_is_found():
    plan = ring(4, 8)
    first, second = [op for op in plan.ops[1] if op.kind is OpKind.REDUCE][:2]
    plan = replace_op(plan, 1, second.op_id, offset=first.offset, source_offset=first.source_offset)
    assert wrong_units(plan) > 0


def test_mixing_different_chunks_is_found():
    plan = ring(4, 8)
    op = next(op for op in plan.ops[1] if op.kind is OpKind.REDUCE)
    plan = replace_op(plan, 1, op.op_id, source_offset=(op.source_offset + 8) % 32)
    with pytest.raises(PlanError, match="different places"):
        contributions(plan)


@pytest.mark.parametrize("kind", [OpKind.REDUCE, OpKind.SEND])
def test_a_missing_dependency_is_a_race(kind):
    plan = ring(4, 8)
    op = next(op for op in plan.ops[1] if op.kind is kind and op.depends_on)
    assert races(replace_op(plan, 1, op.op_id, depends_on=())) != []


def test_a_deadlock_is_found():
    plan = ring(2, 2)
    first = next(op for op in plan.ops[0] if op.kind is OpKind.SEND)
    last = [op for op in plan.ops[0] if op.kind is OpKind.RECEIVE][-1]
    with pytest.raises(PlanError, match="wait for each other"):
        execution_order(replace_op(plan, 0, first.op_id, depends_on=(last.op_id,)))


def test_unmatched_messages_are_found():
    plan = ring(2, 2)
    receive = next(op for op in plan.ops[1] if op.kind is OpKind.RECEIVE)
    with pytest.raises(PlanError):
        match_messages(replace_op(plan, 1, receive.op_id, tag=99))
    with pytest.raises(PlanError, match="tag of another"):
        match_messages(replace_op(plan, 1, receive.op_id, tag=receive.tag + 1))
