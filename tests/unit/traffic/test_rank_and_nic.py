"""Ranks, NICs and queue pairs together: every workload, recovery and loss on a perfect wire."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from nic_world import LATENCY, RATE, TRANSPORT, World

from testbed.topology import RankRole
from traffic.bounds import lower_bound
from traffic.faults import LossInjector, PacketDrop
from traffic.locations import RankLocation
from traffic.nic import INITIAL_TTL, Nic
from traffic.plan import Plan
from traffic.workloads import create_workload, workload_class, workload_names

FRAME_TIME = (4096 + 58 + 24) * 8 / RATE


def make_plan(name: str, *, world_size: int = 4, seed: int = 3, **parameters: object) -> Plan:
    workload = workload_class(name)
    has_storage = name == "storage-interference"
    return create_workload(name).plan(
        workload.Parameters(**parameters),
        world_size=world_size,
        seed=seed,
        locations=[RankLocation(role) for role in ROLES] if has_storage else None,
    )


PARAMETERS = {
    "incast": {"senders": 3, "receiver": 0, "message_size": "100 KiB", "messages": 2},
    "permutation": {"message_size": "100 KiB", "messages": 2},
    "all-to-all": {"message_size": "60 KiB"},
    "ring-all-reduce": {"size": "200 KiB"},
    "collective": {"size": "200 KiB"},
    "flows": {"flows": [{"source": 3, "destination": 1, "size": "300 KiB", "messages": 2}]},
    "storage-interference": {
        "size": "200 KiB", "read_size": "100 KiB", "write_size": "40 KiB", "period": "5 us"
    },
    "poisson-flows": {"sizes": "fb-hadoop", "duration": "10 us", "size_scale": 0.1},
    "training": {"preset": "llama3-8b", "rank_bytes": "400 KiB"},
}  # fmt: skip
ROLES = [RankRole.GPU] * 3 + [RankRole.STORAGE]
"""Of four ranks, where storage takes part."""


def test_every_workload_is_covered():
    assert set(PARAMETERS) | {"replay"} == set(workload_names())  # that one needs a file


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_workload_completes_with_the_right_memory(name):
    world = World(make_plan(name, **PARAMETERS[name]))
    world.run()
    assert all(rank.done for rank in world.ranks)
    assert world.wrong() == [0, 0, 0, 0]


@pytest.mark.parametrize("recovery", ["go-back-n", "selective-repeat"])
@pytest.mark.parametrize("name", PARAMETERS)
def test_random_loss_changes_nothing_but_the_time(name, recovery):
    world = World(
        make_plan(name, **PARAMETERS[name]),
        replace(TRANSPORT, recovery=recovery),
        losses=lambda rank: LossInjector(seed=f"7/{rank}", probability=0.05),
    )
    world.run()
    assert sum(nics[0].counts.injected_loss.packets for nics in world.nics) > 0
    assert all(rank.done for rank in world.ranks)
    assert world.wrong() == [0, 0, 0, 0]


def test_one_flow_runs_at_line_rate():
    plan = make_plan("permutation", world_size=2, message_size="4 MiB", messages=1)
    world = World(plan)
    world.run()
    finish = max(p.finish for rank in world.ranks for p in rank.flows.values())
    bound = lower_bound(plan, link_rate=RATE, latency=LATENCY)
    # the last ACK's way back is all that comes on top
    assert bound <= finish <= bound + LATENCY + 3 * FRAME_TIME


def test_frames_of_one_nic_never_overlap_on_the_wire():
    world = World(make_plan("all-to-all", message_size="40 KiB"))
    world.run()
    for rank in range(4):
        mine = [(time, len(frame)) for time, sender, frame in world.sent if sender == rank]
        assert len(mine) >= 3 * 10  # a message of 10 packets for each of the others
        for (time, size), (following, _) in itertools.pairwise(mine):
            assert following >= time + (size + 24) * 8 / RATE - 1e-15


def test_queue_pairs_take_turns_packet_by_packet():
    world = World(make_plan("all-to-all", message_size="400 KiB"))
    world.run()
    first = [
        int.from_bytes(frame[47:50], "big")
        for _, sender, frame in world.sent
        if sender == 0 and frame[42] & 0x1F <= 0x0B
    ][:30]
    assert len(set(first)) == 3
    assert all(first[i] == first[i + 3] for i in range(27))


def test_exactly_the_named_packet_is_lost():
    plan = make_plan("permutation", world_size=2, message_size="1 MiB", messages=1)
    connection = plan.connections[0]
    drop = PacketDrop(connection.destination_qp_num, connection.source_psn + 100, 1)

    def losses(rank: int) -> LossInjector | None:
        return LossInjector(seed="", drops=[drop]) if rank == connection.source_rank else None

    results = {}
    for recovery in ("go-back-n", "selective-repeat"):
        world = World(plan, replace(TRANSPORT, recovery=recovery), losses=losses)
        world.run()
        assert world.wrong() == [0, 0]
        counters = world.counters(0, connection.source_rank)
        assert counters["timeouts"] == 0
        results[recovery] = counters["retransmitted_packets"]
    assert results["selective-repeat"] == 1
    # the lost packet, and what was sent until its NAK arrived: one round trip and two frames
    in_flight = 1 + (2 * LATENCY + 2 * FRAME_TIME) / FRAME_TIME
    assert abs(results["go-back-n"] - in_flight) <= 2


def test_lost_last_packet_waits_for_the_real_timeout():
    plan = make_plan("permutation", world_size=2, message_size="64 KiB", messages=1)
    connection = plan.connections[0]
    drop = PacketDrop(connection.destination_qp_num, connection.source_psn + 15, 1)
    world = World(
        plan,
        losses=lambda rank: (
            LossInjector(seed="", drops=[drop]) if rank == connection.source_rank else None
        ),
    )
    world.run()
    finish = world.ranks[connection.source_rank].flows[0].finish
    assert 4.096e-6 * 2**14 < finish < 4.096e-6 * 2**14 + 20e-6
    assert world.counters(0, connection.source_rank)["timeouts"] == 1


def test_a_dead_path_ends_in_retry_exceeded():
    plan = make_plan("permutation", world_size=2, message_size="64 KiB", messages=1)
    transport = replace(TRANSPORT, timeout=4, retry_cnt=2)
    world = World(
        plan, transport, losses=lambda rank: LossInjector(seed="x", probability=0.9999999)
    )
    world.run()
    statuses = {p.status for rank in world.ranks for p in rank.flows.values()}
    assert statuses == {"IBV_WC_RETRY_EXC_ERR"}
    assert {rank.failed for rank in world.ranks} == {"IBV_WC_RETRY_EXC_ERR"}


def test_latency_depends_on_the_ttl():
    nic = Nic(rate=RATE, latency=lambda hops: hops * 1e-6, lead=0.0)
    frame = bytearray(80)
    frame[22] = INITIAL_TTL - 3
    nic.arrive(bytes(frame), 5.0)
    on_wire = (80 + 24) * 8 / RATE
    assert nic.next_event() == pytest.approx(5.0 + on_wire + 3e-6, abs=1e-15)
    nic.advance(5.0 + 2.9e-6)
    assert len(nic.held) == 1
    nic.advance(5.0 + 3.1e-6)
    assert nic.held == []


def test_a_frame_is_delivered_when_its_last_bit_is_there_and_in_order():
    nic = Nic(rate=RATE, latency=lambda hops: 1e-6, lead=0.0)
    frames = [bytes(4000), bytes(80)]  # their TTL of 0 counts as 64 hops
    for frame in frames:
        nic.arrive(frame, 5.0)
    last_bit = 5.0 + (4000 + 24) * 8 / RATE
    assert nic.next_event() == pytest.approx(last_bit + 1e-6, abs=1e-15)
    assert nic.held == frames


def test_damaged_and_foreign_frames_are_counted_not_delivered():
    plan = make_plan("permutation", world_size=2, message_size="8 KiB", messages=1)
    world = World(plan)
    world.run()
    good = next(f for _, s, f in world.sent if s == 0 and f[42] & 0x1F <= 0x0B)
    nic = world.nics[1][0]
    before = nic.counts.delivered_data.packets
    damaged = bytearray(good)
    damaged[-6] ^= 1
    foreign = World(make_plan("permutation", world_size=2, seed=99, message_size="8 KiB"))
    foreign.run()
    stranger = next(f for _, s, f in foreign.sent if s == 0)
    for frame in (bytes(damaged), stranger, good[:50] + bytes(10)):
        nic.arrive(frame, world.now)
    nic.advance(world.now + 1)
    counts = nic.counts
    assert (counts.icrc_errors.packets, counts.unknown_qp.packets) == (1, 1)
    assert counts.malformed.packets == 1
    assert counts.delivered_data.packets == before


def test_injected_losses_repeat_with_the_seed():
    def decisions(seed: str) -> list[bool]:
        injector = LossInjector(seed=seed, probability=0.3)
        return [injector.loses(1, psn) for psn in range(200)]

    assert decisions("1/0") == decisions("1/0")
    assert decisions("1/0") != decisions("1/1")
    assert 30 < sum(decisions("1/0")) < 90
