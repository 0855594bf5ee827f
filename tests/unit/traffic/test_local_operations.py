"""Computations, NVLink and rendezvous in plans: lowered, carried out, in the order they say."""

from __future__ import annotations

import math

import pytest
from lossless import run_lossless
from nic_world import LATENCY, RATE, World

from traffic.bounds import lower_bound
from traffic.collectives.cost import CostModel, estimate
from traffic.collectives.symbolic import races
from traffic.executor import KINDS
from traffic.locations import RankLocation
from traffic.nvlink import NvlinkSettings
from traffic.plan import Operation, OpKind, PlanError, WorkloadParameters
from traffic.plan_builder import PlanBuilder
from traffic.workloads import create_workload, verify_rank
from traffic.workloads.collective import schedule_of

NVLINK = NvlinkSettings()


def servers(count, gpus):
    return [RankLocation(server=f"server{index // gpus + 1}") for index in range(count * gpus)]


def builder(locations, memory=1 << 20):
    made = PlanBuilder(
        workload="flows",
        parameters=WorkloadParameters(),
        world_size=len(locations),
        seed=4,
        locations=locations,
    )
    for rank in range(len(locations)):
        made.memory(rank, initialised=memory // 2, total=memory)
    return made


def collective(count=2, gpus=4, **parameters):
    chosen = create_workload("collective")
    return chosen.plan(
        chosen.Parameters(gpus_per_server=gpus, **parameters),
        world_size=count * gpus,
        seed=5,
        locations=servers(count, gpus),
    )


def count(plan, *kinds):
    return sum(op.kind in kinds for ops in plan.ops for op in ops)


def network_message(made, source, destination, length=1024, **fields):
    flow = made.flow(made.connect(source, destination))
    return made.message(
        flow, operation=Operation.WRITE_WITH_IMM, length=length, offset=0,
        remote_offset=1 << 19, **fields,
    )  # fmt: skip


# plans


@pytest.mark.parametrize(
    ("locations", "ends", "words"),
    [
        (servers(2, 2), (1, 2), "rank 1 to 2, which are on server1 and server2; allowed: two GPUs"),
        (servers(2, 2), (1, 1), "rank 1 to 1"),
        ([RankLocation()] * 2, (0, 1), "no server and no server"),
    ],
)
def test_nvlink_joins_gpus_of_one_server_only(locations, ends, words):
    with pytest.raises(PlanError, match=words):
        builder(locations).local_message(*ends, length=8, offset=0, remote_offset=0)


def test_local_messages_stay_in_memory():
    made = builder(servers(1, 2), memory=64)
    made.local_message(0, 1, length=16, offset=0, remote_offset=56)
    with pytest.raises(PlanError, match="leaves the memory of rank 1"):
        made.build()
    with pytest.raises(PlanError, match="0 bytes; allowed: 1 or more"):
        made.local_message(0, 1, length=0, offset=0, remote_offset=0)


@pytest.mark.parametrize("duration", [-1e-6, math.inf, math.nan])
def test_durations_that_make_no_sense(duration):
    with pytest.raises(PlanError, match="s of rank 1; allowed: 0 or more"):
        builder(servers(1, 2)).compute(1, duration=duration)


def test_they_count_in_the_hash():
    def hash_of(**fields):
        made = builder(servers(1, 2))
        made.compute(0, **{"duration": 1e-6, **fields})
        return made.build().plan_hash()

    hashes = [hash_of(), hash_of(duration=2e-6), hash_of(name="forward"), hash_of(start=1e-6)]
    assert len(set(hashes)) == len(hashes)


# carried out


def test_computations_take_their_time_and_hold_what_depends_on_them():
    made = builder(servers(2, 1))
    first = made.compute(0, duration=0.05, name="forward")
    second = made.compute(0, duration=0.03, depends_on=[first])
    beside = made.compute(0, duration=0.01, start=0.02)
    send, receive = network_message(made, 0, 1, depends_on=[second])
    last = made.compute(1, duration=0.0, depends_on=[receive])
    world = World(made.build())
    world.run()
    finished = world.ranks[0].executor.finished
    assert [finished[op] for op in (first, second, beside)] == pytest.approx([0.05, 0.08, 0.03])
    assert world.ranks[0].executor.started[send] == pytest.approx(0.08)
    arrival = world.ranks[1].executor.finished[receive]
    assert 0.08 + LATENCY <= arrival == world.ranks[1].executor.finished[last]
    assert all(rank.done for rank in world.ranks)
    assert list(world.ranks[0].timer_lateness) == pytest.approx([0.0] * 3)


def test_a_chain_over_nvlink_and_network():
    """GPU 0 to its neighbour 1 over NVLink, from there to GPU 3 of the other server, and 2."""
    made = builder(servers(2, 2))
    size = 4 * 4096
    _, there = made.local_message(0, 1, length=size, offset=0, remote_offset=0)
    flow = made.flow(made.connect(1, 3))
    _, across = made.message(
        flow, operation=Operation.WRITE_WITH_IMM, length=size, offset=0, remote_offset=0,
        depends_on=[there],
    )  # fmt: skip
    _, end = made.local_message(3, 2, length=size, offset=0, remote_offset=0, depends_on=[across])
    plan = made.build()
    world = World(plan)
    data = bytes(world.ranks[0].memory[:size])
    world.run()
    assert bytes(world.ranks[2].memory[:size]) == data != bytes(size)
    local = NVLINK.latency + size * 8 / NVLINK.rate
    assert world.ranks[1].executor.finished[there] == pytest.approx(local)
    bound = lower_bound(plan, link_rate=RATE, latency=LATENCY)
    assert bound > 2 * local + LATENCY
    assert world.ranks[2].executor.finished[end] == pytest.approx(bound, rel=1e-3)
    sent = [nics[0].counts.sent_data.packets for nics in world.nics]
    assert sent == [0, 4, 0, 0]
    assert [link.carried_bytes for link in world.nvlinks.values()] == [size, size]


def test_bounds_with_and_without_computations():
    made = builder(servers(2, 1))
    network_message(made, 0, 1, depends_on=[made.compute(0, duration=0.5)])
    plan = made.build()
    without = lower_bound(plan, link_rate=RATE, compute=False)
    assert without < 1e-6
    assert lower_bound(plan, link_rate=RATE) == pytest.approx(0.5 + without)


def test_the_timeline_has_every_operation():
    made = builder(servers(2, 2))
    made.compute(0, duration=1e-3)
    made.local_message(0, 1, length=64, offset=0, remote_offset=0, start=2e-3)
    network_message(made, 0, 2, start=math.nextafter(61.0, 99))
    world = World(made.build())
    with pytest.raises(AssertionError, match="still busy"):
        world.run(limit=60.0)
    timeline = world.ranks[0].executor.timeline()
    assert [KINDS[number] for number in timeline.kind] == [
        OpKind.COMPUTE, OpKind.LOCAL_SEND, OpKind.SEND
    ]  # fmt: skip
    assert list(timeline.started[:2]) == pytest.approx([0.0, 2e-3])
    assert timeline.finished[0] == pytest.approx(1e-3)
    assert math.isnan(timeline.started[2]) and math.isnan(timeline.finished[2])


# collectives


@pytest.mark.parametrize(
    ("what", "algorithm"),
    [("all-reduce", "hierarchical"), ("all-to-all", "pxn"), ("all-reduce", "ring"),
     ("all-reduce", "double-binary-tree")],
)  # fmt: skip
def test_what_stays_in_a_server_takes_nvlink(what, algorithm):
    plan = collective(collective=what, algorithm=algorithm, size="64 KiB", chunk="4 KiB")
    for connection in plan.connections:
        ends = connection.source_rank, connection.destination_rank
        assert ends[0] // 4 != ends[1] // 4
    assert count(plan, OpKind.LOCAL_SEND) == count(plan, OpKind.LOCAL_RECEIVE) > 0
    assert races(plan) == []
    memories = run_lossless(plan)
    assert [verify_rank(plan, rank, memory) for rank, memory in enumerate(memories)] == [0] * 8
    world = World(plan)
    world.run()
    assert world.wrong() == [0] * 8
    schedule = schedule_of(plan.parameters, 8, plan.seed)
    carried = sum(link.carried_bytes for link in world.nvlinks.values())
    sent = sum(sum(schedule.sent_elements(rank).values()) for rank in range(8)) * 4
    assert carried + plan.payload_bytes == sent


def test_ranks_that_share_no_server_use_the_network():
    chosen = create_workload("collective")
    parameters = chosen.Parameters(algorithm="hierarchical", gpus_per_server=4, size="64 KiB")
    plan = chosen.plan(parameters, world_size=8, seed=5)
    assert count(plan, OpKind.LOCAL_SEND) == 0
    assert [verify_rank(plan, r, m) for r, m in enumerate(run_lossless(plan))] == [0] * 8


def test_a_hierarchical_all_reduce_takes_the_time_of_the_model():
    plan = collective(algorithm="hierarchical", size="4 MiB")
    world = World(plan)
    world.run()
    model = CostModel(latency=LATENCY, rate=RATE)
    expected = estimate(schedule_of(plan.parameters, 8, plan.seed), model)
    finish = max(max(rank.executor.finished) for rank in world.ranks)
    assert finish == pytest.approx(expected, rel=0.05)


# rendezvous


@pytest.mark.parametrize("algorithm", ["ring", "direct", "double-binary-tree", "hierarchical"])
def test_rendezvous_changes_no_number(algorithm):
    plain = collective(algorithm=algorithm, size="64 KiB", chunk="2 KiB", in_flight=2)
    plan = collective(
        algorithm=algorithm, size="64 KiB", chunk="2 KiB", in_flight=2, rendezvous="cts"
    )
    data = count(plain, OpKind.SEND)
    assert count(plan, OpKind.SEND) == 2 * data
    assert plan.payload_bytes == plain.payload_bytes + 64 * data
    memories = run_lossless(plan)
    assert [verify_rank(plan, rank, memory) for rank, memory in enumerate(memories)] == [0] * 8
    world = World(plan)
    world.run()
    assert world.wrong() == [0] * 8 and all(rank.done for rank in world.ranks)


def test_nothing_is_sent_before_its_clear_to_send():
    plan = collective(
        2, 1, collective="send-recv", size=4096, chunk=256, in_flight=3, rendezvous="cts"
    )
    world = World(plan)
    world.run()
    sender, receiver = (rank.executor for rank in world.ranks)
    data = [op for op in sender.ops if op.kind is OpKind.SEND and op.length == 256]
    cleared = [op for op in sender.ops if op.kind is OpKind.RECEIVE and op.length == 64]
    cts = [op for op in receiver.ops if op.kind is OpKind.SEND and op.length == 64]
    received = [op for op in receiver.ops if op.kind is OpKind.RECEIVE and op.length == 256]
    assert len(data) == len(cleared) == len(cts) == len(received) >= 16
    for index, op in enumerate(data):
        assert sender.started[op.op_id] >= sender.finished[cleared[index].op_id] >= LATENCY
    for op, earlier in zip(cts[3:], received, strict=False):
        assert receiver.started[op.op_id] >= receiver.finished[earlier.op_id]
    assert [receiver.started[op.op_id] for op in cts[:3]] == [0.0] * 3
