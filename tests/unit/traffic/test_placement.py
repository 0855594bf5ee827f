"""Placement strategies: their rules, their cut against brute force, and bad input."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.topology.base import create_topology
from traffic.placement import (
    Job,
    PlacementError,
    RankSlot,
    cut,
    groups_spanned,
    place,
    placement_names,
    rank_slots,
    total_cut,
)
from traffic.replay import traffic_matrix
from traffic.training import ModelShape, Parallelism, RankOrder, TrainingJob, training_trace


def fabric(groups, servers_per_group, gpus):
    servers = groups * servers_per_group
    return [
        RankSlot(s * gpus + g, f"server{s + 1}", g, f"segment{s // servers_per_group + 1}")
        for s in range(servers)
        for g in range(gpus)
    ]


def least_cut(jobs, slots):
    """The least possible total cut, by trying every assignment of ranks to groups."""
    room = {}
    for slot in slots:
        room[slot.group] = room.get(slot.group, 0) + 1
    edges, first = [], 0
    for job in jobs:
        edges += [(first + a, first + b, weight) for a, b, weight in job.edges()]
        first += job.size
    return min(
        sum(weight for a, b, weight in edges if groups[a] != groups[b])
        for groups in itertools.product(room, repeat=first)
        if all(groups.count(group) <= free for group, free in room.items())
    )


def test_all_strategies_are_registered():
    assert placement_names() == ["explicit", "fragmented", "packed", "topology-aware"]


def test_packed_fills_in_rank_order():
    slots = fabric(2, 2, 2)
    assert place("packed", [Job("a", 3), Job("b", 2)], slots) == [(0, 1, 2), (3, 4)]


def test_fragmented_alternates_between_groups_and_keeps_servers_whole():
    slots = fabric(2, 2, 2)
    (order,) = place("fragmented", [Job("a", 8)], slots)
    assert order == (0, 1, 4, 5, 2, 3, 6, 7)
    # every step from server to server, and only these, leaves the segment
    assert cut(Job("a", 8), order, slots) == 4
    assert cut(Job("a", 8), place("packed", [Job("a", 8)], slots)[0], slots) == 2


def test_topology_aware_leaves_the_group_only_if_it_must():
    slots = fabric(4, 2, 2)
    jobs = [Job("a", 3), Job("b", 4), Job("c", 2), Job("d", 6)]
    orders = place("topology-aware", jobs, slots)
    assert [groups_spanned(order, slots) for order in orders] == [1, 1, 1, 2]
    assert total_cut(jobs, orders, slots) == 2


def test_topology_aware_uses_the_traffic_not_the_rank_order():
    # even ranks talk to even ones, odd to odd
    traffic = {(a, b): 1.0 for a in range(8) for b in range(a) if (a - b) % 2 == 0}
    job = Job("strided", 8, traffic=traffic)
    slots = fabric(2, 2, 2)
    (order,) = place("topology-aware", [job], slots)
    assert cut(job, order, slots) == 0
    assert {order[::2], order[1::2]} == {(0, 1, 2, 3), (4, 5, 6, 7)}


def test_topology_aware_fills_servers_in_rank_order_within_a_group():
    slots = fabric(2, 2, 4)
    (order,) = place("topology-aware", [Job("a", 8)], slots)
    assert order == tuple(range(8))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=2, max_size=3), st.integers(1, 6))
def test_one_ring_is_placed_as_well_as_brute_force_can(group_sizes, size):
    slots, number = [], 0
    for index, count in enumerate(group_sizes):
        for _ in range(count):
            slots.append(RankSlot(number, f"server{number}", 0, f"segment{index}"))
            number += 1
    job = Job("ring", min(size, number))
    (order,) = place("topology-aware", [job], slots)
    assert cut(job, order, slots) == least_cut([job], slots)


def test_weighted_traffic_of_two_jobs_is_close_to_brute_force():
    choice = random.Random(4)
    ratios = []
    for _ in range(12):
        jobs = []
        for name, size in (("a", 4), ("b", 3)):
            pairs = [(a, b) for a in range(size) for b in range(a)]
            jobs.append(Job(name, size, traffic={pair: choice.randint(1, 9) for pair in pairs}))
        slots = [RankSlot(i, f"server{i}", 0, f"segment{i % 3}") for i in range(8)]
        found = total_cut(jobs, place("topology-aware", jobs, slots), slots)
        packed = total_cut(jobs, place("packed", jobs, slots), slots)
        least = least_cut(jobs, slots)
        assert least <= found <= packed
        ratios.append(found / least)
    assert max(ratios) <= 1.15
    assert sum(ratios) / len(ratios) <= 1.03


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_every_rank_gets_a_slot_of_its_own(data):
    slots = fabric(data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3)), 2)
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    jobs = [Job(f"job{i}", size) for i, size in enumerate(sizes)]
    name = data.draw(st.sampled_from(["packed", "fragmented", "topology-aware"]))
    if sum(sizes) > len(slots):
        with pytest.raises(PlacementError, match=f"{len(slots)} free GPUs"):
            place(name, jobs, slots)
        return
    orders = place(name, jobs, slots)
    used = [slot for order in orders for slot in order]
    assert [len(order) for order in orders] == sizes
    assert len(set(used)) == len(used) and set(used) <= {slot.slot for slot in slots}
    assert orders == place(name, jobs, slots)


def test_explicit_takes_the_users_slots():
    jobs = [Job("a", 2, slots=(5, 0)), Job("b", 1, slots=(3,))]
    assert place("explicit", jobs, fabric(2, 2, 2)) == [(5, 0), (3,)]


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ([Job("a", 2, slots=(1,))], "job a: 1 slots for 2 ranks"),
        ([Job("a", 1, slots=(9,))], "job a: slot 9 is none of the 8 free GPUs"),
        ([Job("a", 1, slots=(1,)), Job("b", 1, slots=(1,))], "job b: slot 1 already .* job a"),
        ([Job("a", 0)], "job a: size 0; at least 1"),
        ([Job("a", 1), Job("a", 1)], "two jobs have this name"),
        ([Job("a", 2, traffic={(0, 2): 1.0})], "ranks 0 and 2; allowed: 0 to 1"),
    ],
)
def test_bad_jobs_are_refused(jobs, message):
    with pytest.raises(PlacementError, match=message):
        place("explicit", jobs, fabric(2, 2, 2))


def test_slots_of_a_fabric_are_its_gpus_with_their_leaf():
    topology = create_topology("leaf-spine")
    slots = rank_slots(topology)
    assert [slot.slot for slot in slots] == [rank.rank for rank in topology.gpu_ranks]
    for slot in slots:
        leaf = topology.nodes[topology.leaf_of(slot.slot)]
        assert slot.group == (leaf.group or leaf.name)
        assert slot.server == topology.ranks[slot.slot].server


def test_unknown_strategies_are_refused():
    with pytest.raises(ValueError, match="unknown placement 'dense'; allowed: explicit, fragm"):
        place("dense", [], [])


def test_a_training_job_is_placed_by_what_its_ranks_send():
    """Data parallel rings are heavier than transfers between stages: replicas stay together."""
    shape = ModelShape(
        layers=4, hidden=48, feed_forward=192, heads=6, kv_heads=6, vocabulary=0, sequence=16
    )
    p = Parallelism(tp=1, pp=2, dp=4, order=RankOrder.TP_PP_DP)
    trace = training_trace(TrainingJob(shape, p))
    job = Job("training", p.world_size, traffic=traffic_matrix(trace))
    slots = fabric(2, 4, 1)
    (order,) = place("topology-aware", [job], slots)
    group = {slot.slot: slot.group for slot in slots}
    for name, members in p.groups().items():
        if name.startswith("dp-"):
            assert len({group[order[rank]] for rank in members}) == 1
    (packed,) = place("packed", [job], slots)
    assert cut(job, order, slots) < cut(job, packed, slots)
