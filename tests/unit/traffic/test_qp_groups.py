"""Several queue pairs per connection: where the messages go, and what that costs."""

from __future__ import annotations

import itertools
import struct
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nic_world import LATENCY, RATE, World, transport

from traffic.faults import LossInjector
from traffic.message_strategies import message_scheduler
from traffic.plan import (
    MessageStrategy,
    Operation,
    PlanError,
    QpScaling,
    SourcePortPolicy,
    WorkloadParameters,
)
from traffic.plan_builder import PlanBuilder
from traffic.source_ports import SourcePortCycle, possible_source_ports
from traffic.workloads import create_workload, workload_class

MTU = 4096
SPLIT, ROUND_ROBIN, LEAST = MessageStrategy


def make_plan(workload="permutation", *, world_size=2, seed=3, scaling=None, **parameters):
    made = workload_class(workload).Parameters(**parameters)
    return create_workload(workload).plan(
        made, world_size=world_size, seed=seed, qp_scaling=scaling
    )


def scaled(strategy, queue_pairs=4, **fields):
    return QpScaling(qps_per_connection=queue_pairs, message_strategy=strategy, **fields)


def one_way(plan, rank=0):
    """Connections that a rank sends on, in order."""
    return [c for c in plan.connections if c.source_rank == rank]


# the plan


def test_a_connection_is_a_group_of_distinct_queue_pairs():
    plan = make_plan(world_size=4, scaling=scaled(ROUND_ROBIN, 3))
    assert len(plan.connections) == 12
    for c in plan.connections:
        assert plan.group(c.index) == tuple(range(c.group, c.group + 3))
        assert c.group == c.index - c.index % 3
    assert {flow.connection for flow in plan.flows} == {0, 3, 6, 9}
    for rank in range(4):
        numbers = [pair.qp_num for pair in plan.queue_pairs(rank)]
        assert len(set(numbers)) == len(numbers) == 6


def test_adjacent_groups_of_the_same_ranks_stay_apart():
    plan = make_plan("ring-all-reduce", world_size=2, channels=3, scaling=scaled(SPLIT, 2))
    assert [plan.group(c.index) for c in plan.connections[:4]] == [(0, 1), (0, 1), (2, 3), (2, 3)]


@pytest.mark.parametrize("operation", ["send", "send-with-imm"])
def test_least_outstanding_refuses_messages_whose_receiver_must_know(operation):
    with pytest.raises(PlanError, match=f"operation: {operation} .*allowed: write, write-with-imm"):
        make_plan(operation=operation, scaling=scaled(LEAST))


# the schedulers


@given(st.integers(1, 16), st.integers(0, 1000), st.integers(1, 100 * MTU))
def test_split_covers_the_message_in_whole_packets(queue_pairs, tag, length):
    scheduler = message_scheduler(SPLIT, queue_pairs=queue_pairs, path_mtu=MTU)
    parts = scheduler.parts(tag, length)
    packets = -(-length // MTU)
    assert len(parts) == min(queue_pairs, packets)
    assert len({part.position for part in parts}) == len(parts)
    offset = 0
    for part in parts:
        assert 0 <= part.position < queue_pairs
        assert part.offset == offset
        assert part.length > 0
        assert part.offset % MTU == 0
        offset += part.length
    assert offset == length
    sizes = [-(-part.length // MTU) for part in parts]
    assert sum(sizes) == packets
    assert max(sizes) - min(sizes) <= 1
    assert message_scheduler(SPLIT, queue_pairs=queue_pairs, path_mtu=MTU).parts(tag, length) == (
        parts
    )


def test_short_split_messages_take_turns():
    scheduler = message_scheduler(SPLIT, queue_pairs=4, path_mtu=MTU)
    positions = [[p.position for p in scheduler.parts(tag, 2 * MTU)] for tag in range(4)]
    assert positions == [[0, 1], [2, 3], [0, 1], [2, 3]]
    assert [scheduler.parts(tag, 1)[0].position for tag in range(5)] == [0, 1, 2, 3, 0]


@given(st.lists(st.tuples(st.integers(1, 5000), st.booleans()), max_size=60))
def test_least_outstanding_always_takes_a_least_one(messages):
    scheduler = message_scheduler(LEAST, queue_pairs=3, path_mtu=MTU)
    model = [0, 0, 0]
    posted = []
    for tag, (length, complete) in enumerate(messages):
        (part,) = scheduler.parts(tag, length)
        assert model[part.position] == min(model)
        assert (part.offset, part.length) == (0, length)
        model[part.position] += length
        posted.append(part)
        if complete:
            done = posted.pop(0)
            scheduler.completed(done.position, done.length)
            model[done.position] -= done.length


def test_least_outstanding_takes_turns_when_all_are_idle():
    scheduler = message_scheduler(LEAST, queue_pairs=3, path_mtu=MTU)
    seen = []
    for tag in range(6):
        (part,) = scheduler.parts(tag, 100)
        scheduler.completed(part.position, 100)
        seen.append(part.position)
    assert seen == [0, 1, 2, 0, 1, 2]


# in a world


@pytest.mark.parametrize("strategy", list(MessageStrategy))
@pytest.mark.parametrize("recovery", ["go-back-n", "selective-repeat"])
@pytest.mark.parametrize(
    ("workload", "parameters"),
    [
        ("ring-all-reduce", {"size": "200 KiB", "channels": 2}),
        ("all-to-all", {"message_size": "50001"}),
        ("incast", {"message_size": 3 * MTU + 5, "messages": 5}),
        ("permutation", {"message_size": "64 KiB", "messages": 6, "operation": "write"}),
    ],
)
def test_every_strategy_delivers_everything_under_loss(workload, parameters, recovery, strategy):
    plan = make_plan(workload, world_size=4, scaling=scaled(strategy), **parameters)
    world = World(
        plan,
        transport(recovery=recovery),
        losses=lambda rank: LossInjector(seed=f"5/{rank}", probability=0.03),
    )
    world.run()
    assert all(rank.done for rank in world.ranks)
    assert world.wrong() == [0] * 4


@pytest.mark.parametrize("operation", [Operation.SEND, Operation.SEND_WITH_IMM])
@pytest.mark.parametrize("strategy", [SPLIT, ROUND_ROBIN])
def test_sends_find_their_buffers(strategy, operation):
    plan = make_plan(
        message_size=10 * MTU + 3, messages=7, operation=operation, scaling=scaled(strategy, 3)
    )
    world = World(plan)
    world.run()
    assert all(rank.done for rank in world.ranks)
    assert world.wrong() == [0, 0]


def reversed_plan(operation, strategy, queue_pairs):
    """Three messages on one connection; the last may begin first. Each depends on its RECEIVE."""
    made = PlanBuilder(
        workload="permutation",
        parameters=WorkloadParameters(),
        world_size=2,
        seed=1,
        qp_scaling=scaled(strategy, queue_pairs),
    )
    size = 2 * MTU
    made.memory(0, initialised=3 * size, total=3 * size)
    made.memory(1, initialised=0, total=6 * size)
    flow = made.flow(made.connect(0, 1))
    for number in range(3):
        _, receive = made.message(
            flow,
            operation=operation,
            length=size,
            offset=number * size,
            remote_offset=number * size,
            start=(2 - number) * 5e-6,
        )
        made.copy(
            1,
            offset=(3 + number) * size,
            source_offset=number * size,
            length=size,
            depends_on=[receive],
        )
    return made.build()


@pytest.mark.parametrize("queue_pairs", [1, 2])
@pytest.mark.parametrize("strategy", list(MessageStrategy))
@pytest.mark.parametrize("operation", [op for op in Operation if op.notifies_receiver])
def test_messages_are_told_apart_in_whatever_order_they_are_ready(operation, strategy, queue_pairs):
    """A copy made on the arrival of a message must find that message, not another."""
    if strategy is LEAST and not operation.is_write:
        return
    plan = reversed_plan(operation, strategy, queue_pairs)
    world = World(plan)
    world.run()
    assert all(rank.done for rank in world.ranks)
    received = bytes(world.ranks[1].memory)
    half = len(received) // 2
    assert received[:half] == received[half:] == bytes(world.ranks[0].memory)
    times = [world.ranks[1].executor.finished[op] for op in (0, 2, 4)]
    assert times == sorted(times, reverse=operation.is_write)


def test_a_connection_carries_one_verb():
    made = PlanBuilder(
        workload="permutation", parameters=WorkloadParameters(), world_size=2, seed=1
    )
    flow = made.flow(made.connect(0, 1))
    made.message(flow, operation=Operation.SEND, length=8, offset=0, remote_offset=0)
    with pytest.raises(PlanError, match="operation: write on a connection that carries send"):
        made.message(flow, operation=Operation.WRITE, length=8, offset=0, remote_offset=0)


def sent_by_connection(world, plan, name="sent_packets"):
    return [world.counters(c.index, 0)[name] for c in one_way(plan)]


def test_round_robin_sends_whole_messages_in_turn():
    plan = make_plan(message_size=8 * MTU, messages=6, scaling=scaled(ROUND_ROBIN))
    world = World(plan)
    world.run()
    assert sent_by_connection(world, plan) == [16, 16, 8, 8]


def test_split_gives_every_queue_pair_its_share_of_every_message():
    plan = make_plan(message_size=8 * MTU, messages=6, scaling=scaled(SPLIT))
    world = World(plan)
    world.run()
    assert sent_by_connection(world, plan) == [12] * 4


def test_split_means_more_and_shorter_messages_and_more_acks():
    """As Meta says of its first strategy; every part is a message that is acknowledged."""
    acks, firsts = {}, {}
    for strategy in (SPLIT, ROUND_ROBIN):
        plan = make_plan(message_size=16 * MTU, messages=8, scaling=scaled(strategy, 8))
        world = World(plan)
        world.run()
        acks[strategy] = sum(sent_by_connection(world, plan, "acks_received"))
        # RDMA WRITE FIRST or ONLY carry the RETH: length of the message
        lengths = Counter(
            struct.unpack_from(">I", frame, 54 + 12)[0]
            for _, rank, frame in world.sent
            if rank == 0 and frame[42] in (0x06, 0x0A, 0x0B)
        )
        firsts[strategy] = dict(lengths)
    assert firsts == {SPLIT: {2 * MTU: 64}, ROUND_ROBIN: {16 * MTU: 8}}
    assert acks[ROUND_ROBIN] == 8
    assert acks[SPLIT] == 64


def windowed_plan(strategy, messages=60, window=4):
    """Messages of 64 packets, each posted when the one ``window`` before it has completed."""
    made = PlanBuilder(
        workload="permutation",
        parameters=WorkloadParameters(),
        world_size=2,
        seed=1,
        qp_scaling=scaled(strategy, 2),
    )
    size = 64 * MTU
    made.memory(0, initialised=size, total=size)
    made.memory(1, initialised=0, total=size)
    flow = made.flow(made.connect(0, 1))
    sends: list[int] = []
    for _ in range(messages):
        send, _receive = made.message(
            flow,
            operation=Operation.WRITE_WITH_IMM,
            length=size,
            offset=0,
            remote_offset=0,
            depends_on=sends[-window:][:1] if len(sends) >= window else [],
        )
        sends.append(send)
    return made.build()


def test_least_outstanding_sends_less_on_a_slow_path():
    """One queue pair's packets lose time in the fabric; HPN's counter notices, turns do not."""
    share, finish = {}, {}
    for strategy in (ROUND_ROBIN, LEAST):
        plan = windowed_plan(strategy)
        slow = one_way(plan)[0].destination_qp_num.to_bytes(3, "big")

        def fate(rank, port, frame, slow=slow):
            return 60e-6 if frame[47:50] == slow else 0.0

        world = World(plan, fate=fate)
        world.run()
        assert world.wrong() == [0, 0]
        sent = sent_by_connection(world, plan)
        share[strategy], finish[strategy] = sent[0] / sum(sent), world.finish()
    assert share[ROUND_ROBIN] == 0.5
    # a message takes 5 us to send, and 4 us or 64 us to be acknowledged
    assert share[LEAST] < 0.35
    assert finish[LEAST] < 0.8 * finish[ROUND_ROBIN]


def test_a_group_fails_when_one_of_its_queue_pairs_does():
    plan = make_plan(message_size=8 * MTU, messages=4, scaling=scaled(ROUND_ROBIN))
    dead = one_way(plan)[2].destination_qp_num.to_bytes(3, "big")
    world = World(
        plan,
        transport(timeout=4, retry_cnt=1),
        fate=lambda rank, port, frame: None if frame[47:50] == dead else 0.0,
    )
    world.run()
    progress = world.ranks[0].flows[plan.flows[0].index]
    assert progress.status == "IBV_WC_RETRY_EXC_ERR"
    assert progress.completed == 3


# source ports


def test_possible_source_ports_are_distinct_and_begin_with_the_connections():
    scaling = QpScaling(source_port_policy=SourcePortPolicy.PER_PACKET, source_ports=64)
    plan = make_plan(world_size=4, scaling=scaling)
    for c in plan.connections:
        ports = possible_source_ports(plan, c)
        assert ports[0] == c.source_port
        assert len(set(ports)) == len(ports) == 64
        assert all(49152 <= port <= 65535 for port in ports)
        assert possible_source_ports(plan, c, reverse=True) == (c.reverse_source_port,)
    assert possible_source_ports(plan, plan.connections[0]) != (
        possible_source_ports(plan, plan.connections[1])
    )


@pytest.mark.parametrize("policy", [SourcePortPolicy.PER_QP, SourcePortPolicy.PER_PAIR])
def test_other_policies_have_one_port(policy):
    plan = make_plan(scaling=QpScaling(4, source_port_policy=policy))
    ports = [possible_source_ports(plan, c) for c in one_way(plan)]
    assert all(len(of_one) == 1 for of_one in ports)
    assert len(set(ports)) == (1 if policy is SourcePortPolicy.PER_PAIR else 4)


def test_a_flowlet_ends_with_an_idle_gap():
    cycle = SourcePortCycle([7, 8, 9], gap=1e-6)
    times = [0.0, 0.5e-6, 1.4e-6, 2.4e-6, 2.5e-6, 9e-6, 20e-6]
    assert [cycle.next(time) for time in times] == [7, 7, 7, 8, 8, 9, 7]


def requests(world, rank=0):
    """Time and UDP source port of every request of a rank."""
    return [
        (time, struct.unpack_from(">H", frame, 34)[0])
        for time, sender, frame in world.sent
        if sender == rank and frame[42] & 0x1F <= 0x0B
    ]


def test_per_packet_cycles_through_the_ports_and_every_frame_is_valid():
    scaling = QpScaling(source_port_policy=SourcePortPolicy.PER_PACKET, source_ports=5)
    plan = make_plan(message_size=23 * MTU + 77, messages=3, scaling=scaling)
    world = World(plan)
    world.run()
    assert world.wrong() == [0, 0]
    ports = possible_source_ports(plan, one_way(plan)[0])
    assert [port for _, port in requests(world)] == [ports[i % 5] for i in range(72)]
    for nics in world.nics:
        assert nics[0].counts.icrc_errors.packets == nics[0].counts.malformed.packets == 0


def test_acknowledgements_keep_their_port():
    scaling = QpScaling(source_port_policy=SourcePortPolicy.PER_PACKET)
    plan = make_plan(message_size=64 * MTU, messages=2, scaling=scaling)
    world = World(plan)
    world.run()
    acks = {
        struct.unpack_from(">H", frame, 34)[0]
        for _, sender, frame in world.sent
        if sender == 1 and frame[42] == 0x11
    }
    assert acks == {one_way(plan)[0].reverse_source_port}


def test_per_flowlet_changes_the_port_only_after_the_gap():
    gap = 1e-6
    scaling = QpScaling(source_port_policy=SourcePortPolicy.PER_FLOWLET, flowlet_gap=gap)
    plan = make_plan(
        "ring-all-reduce", size="128 KiB", scaling=scaling, world_size=2
    )  # every step waits for the other rank: a pause of a round trip
    world = World(plan)
    world.run()
    sent = requests(world)
    assert len({port for _, port in sent}) == 2
    for (earlier, before), (later, after) in itertools.pairwise(sent):
        assert (before != after) == (later - earlier >= gap)
    assert gap < LATENCY
    assert gap > (MTU + 100) * 8 / RATE
