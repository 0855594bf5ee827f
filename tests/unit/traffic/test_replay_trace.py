"""The neutral trace: scaling, and the check that it can run to its end."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traffic.collectives.request import Collective
from traffic.replay import (
    NodeKind,
    Trace,
    TraceError,
    TraceNode,
    check,
    largest_buffer,
    rank_totals,
    scaled,
    traffic_matrix,
)


def compute(number, *deps, duration=1.0):
    return TraceNode(number, NodeKind.COMPUTE, duration=duration, dependencies=deps)


def send(number, peer, *deps, size=10, tag=0):
    return TraceNode(number, NodeKind.SEND, peer=peer, size=size, tag=tag, dependencies=deps)


def receive(number, peer, *deps, size=10, tag=0):
    return TraceNode(number, NodeKind.RECEIVE, peer=peer, size=size, tag=tag, dependencies=deps)


def collective(number, *deps, size=10, group="world", kind=Collective.ALL_REDUCE, **fields):
    return TraceNode(
        number, NodeKind.COLLECTIVE, size=size, group=group, collective=kind, dependencies=deps,
        **fields,
    )  # fmt: skip


def trace(*ranks, groups=None):
    return Trace("test", tuple(tuple(nodes) for nodes in ranks), groups or {})


def test_scaling_rounds_sizes_up_and_remembers_the_factors():
    made = trace([compute(0), send(1, 1, size=3)], [receive(0, 0, size=3)])
    small = scaled(scaled(made, size=0.5, time=0.1), size=0.5)
    assert small.ranks[0][0].duration == pytest.approx(0.1)
    assert small.ranks[0][1].size == small.ranks[1][0].size == 1
    assert (small.size_scale, small.time_scale) == (0.25, 0.1)
    check(small)
    assert scaled(made) == made


def test_scaling_keeps_the_sum_of_an_all_to_allv():
    node = collective(0, size=7, kind=Collective.ALL_TO_ALLV, sizes=(0, 7))
    made = scaled(trace([node], [node]), size=0.3)
    assert made.ranks[0][0].sizes == (0, 3)
    assert made.ranks[0][0].size == 3


@pytest.mark.parametrize("factor", [0, -1, float("nan"), float("inf")])
def test_impossible_factors_are_refused(factor):
    with pytest.raises(TraceError, match="scale of size"):
        scaled(trace([compute(0)]), size=factor)
    with pytest.raises(TraceError, match="scale of time"):
        scaled(trace([compute(0)]), time=factor)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (trace([compute(0, duration=-1.0)]), "duration -1.0"),
        (trace([send(0, 0)]), "send with rank 0; allowed: another of the 1 ranks"),
        (trace([send(0, 1, size=0)], [receive(0, 0, size=0)]), "send of 0 bytes"),
        (trace([send(0, 1, size=1)], [receive(0, 0, size=2)]), "sends 1 bytes .* expects 2"),
        (trace([collective(0, group="x")]), "members of group 'x' are not given"),
        (trace([collective(0, group="x")], groups={"x": (1,)}), "rank 0 is no member"),
        (trace([collective(0, size=0)]), "all-reduce of 0 bytes"),
        (trace([collective(0, kind=None)]), "a collective without its type"),
        (trace([collective(0, kind=Collective.ALL_TO_ALLV)]), "0 sizes for 1 members"),
        (trace([collective(0)], [collective(0, kind=Collective.BROADCAST)]), "rank 1, node 0"),
        (trace([collective(0)], []), "rank 1: 0 collectives of group 'world'"),
        (trace([receive(0, 1), send(1, 1, 0)], [receive(0, 0), send(1, 0, 0)]), "waits for itself"),
        (trace([collective(0), receive(1, 1, 0)], [send(0, 0, 1), collective(1)]), None),
        (trace([receive(0, 1), collective(1, 0)], [collective(0), send(1, 0, 0)]), "waits for it"),
        (trace([collective(0, size=0, kind=Collective.BARRIER)]), None),
    ],
)
def test_only_what_can_end_passes(made, message):
    if message is None:
        check(made)
        return
    with pytest.raises(TraceError, match=message):
        check(made)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_traces_recorded_from_an_execution_pass(data):
    """Whatever was executed in some order, waiting only for what is over, can be replayed."""
    ranks = [[] for _ in range(3)]

    def deps(rank):
        done = range(len(ranks[rank]))
        return tuple(data.draw(st.sets(st.sampled_from(done), max_size=3))) if done else ()

    for _ in range(data.draw(st.integers(1, 12))):
        source, destination = data.draw(st.permutations(range(3)))[:2]
        event = data.draw(st.sampled_from(["compute", "message", "collective"]))
        if event == "compute":
            ranks[source].append(compute(len(ranks[source]), *deps(source)))
        elif event == "message":
            tag = data.draw(st.integers(0, 1))
            ranks[source].append(send(len(ranks[source]), destination, *deps(source), tag=tag))
            number = len(ranks[destination])
            ranks[destination].append(receive(number, source, *deps(destination), tag=tag))
        else:
            for rank in range(3):
                ranks[rank].append(collective(len(ranks[rank]), *deps(rank)))
    made = trace(*ranks)
    check(made)
    first = next((r for r in range(3) if ranks[r]), 0)
    broken = dataclasses.replace(ranks[first][0], dependencies=(len(ranks[first]),))
    ranks[first][0] = broken
    with pytest.raises(TraceError, match="depends on node"):
        check(trace(*ranks))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Collective.ALL_REDUCE, {(0, 2): 80, (2, 1): 80, (1, 0): 80}),
        (Collective.REDUCE_SCATTER, {(0, 2): 40, (2, 1): 40, (1, 0): 40}),
        (Collective.ALL_GATHER, {(0, 2): 120, (2, 1): 120, (1, 0): 120}),
        (Collective.ALL_TO_ALL, {(a, b): 20 for a in range(3) for b in range(3) if a != b}),
        (Collective.BROADCAST, {(2, 1): 60, (1, 0): 60}),
        (Collective.REDUCE, {(0, 2): 60, (1, 0): 60}),
        (Collective.GATHER, {(0, 2): 60, (1, 2): 60}),
        (Collective.SCATTER, {(2, 0): 20, (2, 1): 20}),
        (Collective.BARRIER, {}),
    ],
)
def test_the_traffic_of_a_collective(kind, expected):
    """A group in the order 0, 2, 1 whose root is rank 2; 60 bytes of input."""
    node = collective(0, size=60, group="g", kind=kind, root=1)
    made = trace([node], [node], [node], groups={"g": (0, 2, 1)})
    assert traffic_matrix(made) == pytest.approx(expected)


def test_the_traffic_of_messages_and_all_to_allv_adds_up():
    node = collective(0, size=7, kind=Collective.ALL_TO_ALLV, sizes=(3, 4))
    made = trace([node, send(1, 1)], [node, receive(1, 0)])
    assert traffic_matrix(made) == {(0, 1): 14, (1, 0): 3}
    assert rank_totals(made) == [14, 3]


def test_sizes_as_nccl_tests_counts_them():
    assert largest_buffer(collective(0, size=5, kind=Collective.ALL_GATHER), 4) == 20
    assert largest_buffer(collective(0, size=5, kind=Collective.REDUCE_SCATTER), 4) == 5
