"""Every moment of a rank is computation, exposed communication or waiting."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nic_world import World

from traffic.executor import Timeline
from traffic.locations import RankLocation
from traffic.plan import Operation, OpKind, WorkloadParameters
from traffic.plan_builder import PlanBuilder
from traffic.rank_times import covered, rank_times
from traffic.workloads import create_workload


def builder(ranks=2):
    return PlanBuilder(workload="incast", parameters=WorkloadParameters(), world_size=ranks, seed=1)


def timeline(*spans):
    started, finished = zip(*spans, strict=True)
    return Timeline(array("B", [0] * len(spans)), array("d", started), array("d", finished))


def test_times_by_hand():
    """Rank 0 computes 0-4 and sends 3-6; it is rank 1's from 3 until it has arrived at 5."""
    plan = builder()
    for rank in range(2):
        plan.memory(rank, initialised=64, total=128)
    compute = plan.compute(0, duration=4.0)
    flow = plan.flow(plan.connect(0, 1))
    plan.message(
        flow, operation=Operation.WRITE_WITH_IMM, length=64, offset=0, remote_offset=64,
        depends_on=(compute,),
    )  # fmt: skip
    plan.compute(1, duration=1.0)
    timelines = {0: timeline((0, 4), (3, 6)), 1: timeline((0, 5), (7, 8))}
    first, second = rank_times(plan.build(), timelines, (0, 1))
    assert (first.compute, first.exposed_communication, first.waiting) == (4, 2, 2)
    assert (second.compute, second.exposed_communication, second.waiting) == (1, 2, 5)


def test_what_did_not_end_has_no_times():
    plan = builder(1)
    plan.compute(0, duration=1.0)
    assert rank_times(plan.build(), {0: timeline((0, float("nan")))}, (0,)) is None


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=8))
def test_covered_counts_every_moment_once(spans):
    intervals = [(float(begin), float(begin + length)) for begin, length in spans]
    seconds = {s for begin, length in spans for s in range(begin, begin + length)}
    assert covered(intervals) == len(seconds)


@pytest.mark.parametrize("overlap", [False, True])
def test_gradients_that_overlap_the_backward_pass_are_less_exposed(overlap):
    """Small buckets leave while the backward pass goes on; one large bucket leaves at its end."""
    workload = create_workload("training")
    parameters = workload.Parameters(
        model={"layers": 8, "hidden": 256, "heads": 4, "sequence": 512},
        scale=0.2,
        micro_batches=1,
        utilisation=0.01,
        bucket="1 MiB" if overlap else "1 GiB",
    )
    locations = [RankLocation(server=f"server{rank}") for rank in range(2)]
    plan = workload.plan(parameters, world_size=2, seed=1, locations=locations)
    world = World(plan)
    world.run()
    assert world.wrong() == [0, 0]
    timelines = {rank.rank: rank.executor.timeline() for rank in world.ranks}
    times = rank_times(plan, timelines, (0, 1))
    for rank in times:
        computed = sum(op.duration for op in plan.ops[rank.rank] if op.kind is OpKind.COMPUTE)
        assert rank.compute == pytest.approx(computed)
        assert rank.waiting < 1e-6
    exposed = times[0].exposed_communication
    whole = plan.payload_bytes / 2 * 8 / 400e9
    if overlap:
        assert exposed < 0.4 * whole
    else:
        assert exposed > 0.95 * whole
