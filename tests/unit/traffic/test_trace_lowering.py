"""Traces become plans whose numbers are right, in whatever order messages arrive."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lossless import run_lossless

from traffic.collectives.choice import AlgorithmRule
from traffic.collectives.request import Collective, ScheduleError
from traffic.locations import RankLocation
from traffic.lowering import ArrangementVerifier, CollectiveOptions, arrange, lower_trace
from traffic.lowering.regions import RegionPool
from traffic.plan import Op, OpKind, Plan, PlanError, WorkloadParameters
from traffic.plan_builder import PlanBuilder
from traffic.replay.trace import NodeKind, Trace, TraceNode

KINDS = [kind for kind in Collective if kind not in (Collective.SEND_RECV, Collective.ALL_TO_ALLV)]


def lowered(trace, *, servers=None, ranks=None, options=None):
    """The plan of a trace, and what verifies it."""
    world = 1 + max(ranks or range(trace.world_size))
    servers = servers or [f"server{rank}" for rank in range(world)]
    builder = PlanBuilder(
        workload="trace",
        parameters=WorkloadParameters(),
        world_size=world,
        seed=3,
        locations=[RankLocation(server=server) for server in servers],
    )
    options = options or CollectiveOptions()
    builder.dtype = options.dtype
    chosen = tuple(ranks or range(trace.world_size))
    arrangement = arrange(trace, chosen, [servers[rank] for rank in chosen], options)
    lower_trace(arrangement, builder)
    return builder.build(), ArrangementVerifier(arrangement)


def wrong(plan, verifier, *, seed=0):
    memories = run_lossless(plan, seed=seed)
    return sum(verifier.wrong_elements(plan, rank, m) for rank, m in enumerate(memories))


def node(node_id, kind, dependencies=(), **fields):
    return TraceNode(node_id, kind, dependencies=tuple(dependencies), **fields)


def ancestors(plan: Plan, rank: int, op: Op) -> set[int]:
    """What an operation waits for, at its own rank."""
    found: set[int] = set()
    stack = list(op.depends_on)
    while stack:
        current = stack.pop()
        if current not in found:
            found.add(current)
            stack += plan.ops[rank][current].depends_on
    return found


def random_trace(seed, ranks, calls):
    """Calls of random groups in one global order; nodes wait for some of their rank's earlier."""
    chooser = random.Random(seed)
    groups = {}
    for number in range(3):
        members = chooser.sample(range(ranks), chooser.randint(1, ranks))
        groups[f"group{number}"] = tuple(members)
    nodes = [[] for _ in range(ranks)]

    def add(rank, kind, **fields):
        earlier = [n.node_id for n in nodes[rank][-4:] if chooser.random() < 0.7]
        nodes[rank].append(node(len(nodes[rank]), kind, earlier, **fields))

    for _ in range(calls):
        name = chooser.choice([*groups, "message", "compute"])
        if name == "compute":
            add(chooser.randrange(ranks), NodeKind.COMPUTE, duration=0.5)
            continue
        if name == "message":
            source, destination = chooser.sample(range(ranks), 2)
            size = chooser.randint(1, 3000)
            add(source, NodeKind.SEND, peer=destination, size=size)
            add(destination, NodeKind.RECEIVE, peer=source, size=size)
            continue
        kind, size = chooser.choice(KINDS), 0
        if kind is not Collective.BARRIER:
            size = chooser.randint(1, 3000)
        root = chooser.randrange(len(groups[name])) if kind.has_root else 0
        for rank in groups[name]:
            add(rank, NodeKind.COLLECTIVE, collective=kind, size=size, group=name, root=root)
    return Trace("random", tuple(tuple(n) for n in nodes), groups)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), ranks=st.integers(3, 6), calls=st.integers(1, 25))
def test_random_traces_give_the_right_numbers_though_memory_is_used_again(seed, ranks, calls):
    trace = random_trace(seed, ranks, calls)
    servers = [f"server{rank // 2}" for rank in range(ranks)]
    try:
        plan, verifier = lowered(trace, servers=servers)
    except PlanError as error:
        assert "nothing crosses the network" in str(error)
        return
    for order in range(3):
        assert wrong(plan, verifier, seed=order) == 0


def test_a_wrong_element_is_found_in_results_and_messages():
    trace = Trace(
        "two",
        (
            (
                node(0, NodeKind.COLLECTIVE, collective=Collective.ALL_REDUCE, size=64),
                node(1, NodeKind.SEND, peer=1, size=40),
            ),
            (
                node(0, NodeKind.COLLECTIVE, collective=Collective.ALL_REDUCE, size=64),
                node(1, NodeKind.RECEIVE, peer=0, size=40),
            ),
        ),
    )
    plan, verifier = lowered(trace)
    memories = run_lossless(plan)
    assert [verifier.wrong_elements(plan, r, m) for r, m in enumerate(memories)] == [0, 0]
    memory = memories[1]
    initialised = plan.memory[1].initialised
    memory[initialised] ^= 1  # the message's landing
    assert verifier.wrong_elements(plan, 1, memory) == 1
    for offset in range(initialised + 64, plan.memory[1].total, 4):
        memory[offset] ^= 1  # output and scratch
    assert verifier.wrong_elements(plan, 1, memory) == 1 + 64 // 4


def test_what_depends_on_a_collective_begins_after_it_on_its_own_rank():
    reduce = {"collective": Collective.ALL_REDUCE, "size": 4096}
    trace = Trace(
        "chain",
        tuple(
            (
                node(0, NodeKind.COMPUTE, duration=1.0),
                node(1, NodeKind.COLLECTIVE, (0,), **reduce),
                node(2, NodeKind.COMPUTE, (1,), duration=2.0),
            )
            for _ in range(3)
        ),
    )
    plan, _ = lowered(trace)
    for rank, ops in enumerate(plan.ops):
        first, last = (
            next(op for op in ops if op.kind is OpKind.COMPUTE and op.duration == seconds)
            for seconds in (1.0, 2.0)
        )
        between = [op for op in ops if op.kind is not OpKind.COMPUTE]
        assert {op.op_id for op in between} <= ancestors(plan, rank, last)
        starts = [op for op in between if op.kind is not OpKind.RECEIVE]
        assert starts
        assert all(first.op_id in ancestors(plan, rank, op) for op in starts)


def test_a_root_that_only_receives_still_waits_for_its_own_work():
    trace = Trace(
        "gather",
        tuple(
            (
                node(0, NodeKind.COMPUTE, duration=1.0),
                node(1, NodeKind.COLLECTIVE, (0,), collective=Collective.SCATTER, size=300),
                node(2, NodeKind.COMPUTE, (1,), duration=2.0),
            )
            for _ in range(3)
        ),
    )
    plan, _ = lowered(trace)
    for rank, ops in enumerate(plan.ops):
        first, last = (op for op in ops if op.kind is OpKind.COMPUTE)
        assert first.op_id in ancestors(plan, rank, last)


def test_transfers_within_a_server_take_nvlink():
    trace = Trace(
        "four",
        tuple(
            (
                node(0, NodeKind.COLLECTIVE, collective=Collective.ALL_REDUCE, size=8192),
                node(1, NodeKind.SEND, (0,), peer=rank ^ 1, size=100),
                node(2, NodeKind.RECEIVE, (0,), peer=rank ^ 1, size=100),
            )
            for rank in range(4)
        ),
    )
    servers = ["a", "a", "b", "b"]
    plan, verifier = lowered(trace, servers=servers)
    assert wrong(plan, verifier) == 0
    for connection in plan.connections:
        assert servers[connection.source_rank] != servers[connection.destination_rank]
    local = [op for ops in plan.ops for op in ops if op.kind is OpKind.LOCAL_SEND]
    assert {(op.rank, op.peer) for op in local} >= {(0, 1), (1, 0), (2, 3), (3, 2)}


def test_members_of_a_server_are_neighbours_whatever_the_placement():
    trace = Trace(
        "four",
        ((node(0, NodeKind.COLLECTIVE, collective=Collective.ALL_REDUCE, size=8192),),) * 4,
    )
    plan, verifier = lowered(trace, servers=["a", "b", "a", "b"], options=_ring())
    assert wrong(plan, verifier) == 0
    crossing = {(c.source_rank % 2, c.destination_rank % 2) for c in plan.connections}
    assert crossing == {(0, 1), (1, 0)}
    assert len(plan.connections) == 2  # one way out of each server and one way in


def test_a_trace_runs_on_the_ranks_that_it_is_given():
    trace = Trace(
        "two", ((node(0, NodeKind.COLLECTIVE, collective=Collective.ALL_REDUCE, size=80),),) * 2
    )
    plan, verifier = lowered(trace, ranks=(4, 1))
    assert {c.source_rank for c in plan.connections} == {1, 4}
    assert [m.total > 0 for m in plan.memory] == [False, True, False, False, True]
    assert wrong(plan, verifier) == 0


def test_calls_of_a_communicator_share_connections():
    calls = tuple(
        node(i, NodeKind.COLLECTIVE, range(i), collective=Collective.ALL_REDUCE, size=4000)
        for i in range(5)
    )
    plan, _ = lowered(Trace("five", (calls,) * 3), options=_ring())
    assert len(plan.connections) == 3
    # 2 (n - 1) / n of the bytes of each call, over all three edges of the ring
    assert plan.payload_bytes == 5 * 2 * 2 * 4000


def test_memory_does_not_grow_with_the_length_of_a_chain():
    def total(calls):
        chain = tuple(
            node(
                i, NodeKind.COLLECTIVE, range(max(0, i - 1), i),
                collective=Collective.ALL_REDUCE, size=40_000,
            )
            for i in range(calls)
        )  # fmt: skip
        plan, _ = lowered(Trace("chain", (chain,) * 4), options=_ring())
        return plan.memory[0].total

    # the input's stagger ends after 16 calls
    assert total(40) == total(20)


def test_calls_that_nothing_orders_do_not_share_memory():
    calls = tuple(
        node(i, NodeKind.COLLECTIVE, collective=Collective.ALL_REDUCE, size=4000) for i in range(4)
    )
    plan, verifier = lowered(Trace("free", (calls,) * 3), options=_ring())
    assert verifier.verified_share == 1
    assert wrong(plan, verifier) == 0


def test_collectives_that_move_nothing_pass_on_what_they_wait_for():
    trace = Trace(
        "alone",
        (
            (
                node(0, NodeKind.COMPUTE, duration=1.0),
                node(1, NodeKind.COLLECTIVE, (0,), collective=Collective.ALL_REDUCE, size=8,
                     group="own"),
                node(2, NodeKind.SEND, (1,), peer=1, size=8),
            ),
            (node(0, NodeKind.RECEIVE, peer=0, size=8),),
        ),
        {"own": (0,)},
    )  # fmt: skip
    plan, _ = lowered(trace)
    (send,) = (op for op in plan.ops[0] if op.kind is OpKind.SEND)
    assert [plan.ops[0][needed].duration for needed in send.depends_on] == [1.0]


def test_starts_hold_for_every_kind_of_node():
    trace = Trace(
        "starts",
        tuple(
            (
                node(0, NodeKind.COMPUTE, duration=1.0, start=3.0),
                node(1, NodeKind.COLLECTIVE, collective=Collective.ALL_REDUCE, size=8, start=4.0),
            )
            for _ in range(2)
        ),
    )
    plan, _ = lowered(trace)
    for rank, ops in enumerate(plan.ops):
        assert sorted(op.start for op in ops if op.kind is OpKind.COMPUTE) == [3.0, 4.0]
        gate = next(op.op_id for op in ops if op.start == 4.0)
        sends = [op for op in ops if op.kind is OpKind.SEND]
        assert sends
        assert all(gate in ancestors(plan, rank, op) for op in sends)


def test_a_trace_without_network_traffic_is_refused():
    trace = Trace("still", ((node(0, NodeKind.COMPUTE, duration=1.0),),) * 2)
    with pytest.raises(PlanError, match="nothing crosses the network"):
        lowered(trace)


def test_rules_are_checked():
    with pytest.raises(ScheduleError, match="ring cannot do all-to-all; allowed: direct"):
        CollectiveOptions((AlgorithmRule(Collective.ALL_TO_ALL, "ring"),))


def test_regions_are_shared_only_when_complete():
    pool = RegionPool(100)
    assert pool.take(10, user=0, complete=0) == 128
    assert pool.take(10, user=1, complete=0) == 192
    assert pool.take(11, user=2, complete=0b01) == 128
    assert pool.take(65, user=3, complete=0b110) == 256
    assert pool.last_users() == [2, 1, 3]
    assert pool.end == 384


def _ring():
    return CollectiveOptions((AlgorithmRule(Collective.ALL_REDUCE, "ring"),))
