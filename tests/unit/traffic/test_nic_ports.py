"""NICs with two ports: both are used, and one lives on when the other, or a path, is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nic_world import World, transport

from traffic.codec import parse
from traffic.locations import RankLocation
from traffic.plan import MessageStrategy, Plan, QpScaling
from traffic.workloads import create_workload, workload_class

MTU = 4096
TIMEOUT = 4.096e-6 * 2**6


def make_plan(
    workload: str = "permutation",
    *,
    world_size: int = 2,
    queue_pairs: int = 1,
    **parameters: object,
) -> Plan:
    return create_workload(workload).plan(
        workload_class(workload).Parameters(**parameters),
        world_size=world_size,
        seed=3,
        qp_scaling=QpScaling(queue_pairs, MessageStrategy.SPLIT),
        locations=[RankLocation(leaves=("leaf1", "leaf2"))] * world_size,
    )


def one_flow(packets: int, messages: int = 1) -> Plan:
    """Rank 0 sends to rank 1."""
    return make_plan("incast", receiver=1, senders=1, message_size=packets * MTU, messages=messages)


def data_ports(world: World, rank: int = 0) -> list[int]:
    """By request of a rank, in order: the port that it left by."""
    return [
        port
        for (sender, port), (_, _, frame) in zip(world.sent_from, world.sent, strict=True)
        if sender == rank and frame[42] & 0x1F <= 0x0B
    ]


def migrations(world: World) -> int:
    return sum(
        report.counters["path_migrations"]
        for rank in world.ranks
        for report in rank.connection_reports()
    )


def assert_complete(world: World) -> None:
    assert all(rank.done for rank in world.ranks)
    assert world.wrong() == [0] * len(world.ranks)


# the plan


def test_queue_pairs_of_a_group_alternate_between_the_ports():
    plan = make_plan(world_size=4, queue_pairs=4)
    for flow in plan.flows:
        ports = [plan.connections[c].source_nic_port for c in plan.group(flow.connection)]
        assert ports in ([0, 1, 0, 1], [1, 0, 1, 0])


def test_single_queue_pairs_use_both_ports_too():
    plan = make_plan(world_size=40)
    firsts = [c.source_nic_port for c in plan.connections]
    assert 8 < sum(firsts) < 32
    assert 8 < sum(c.destination_nic_port for c in plan.connections) < 32


def test_one_port_is_always_port_0():
    plan = create_workload("permutation").plan(
        workload_class("permutation").Parameters(), world_size=4, seed=3
    )
    assert {(c.source_nic_port, c.destination_nic_port) for c in plan.connections} == {(0, 0)}


# at run time


@pytest.mark.parametrize("workload", ["permutation", "ring-all-reduce", "all-to-all"])
def test_both_ports_carry_traffic_and_everything_arrives(workload):
    plan = make_plan(workload, world_size=4, queue_pairs=2)
    world = World(plan, ports=2)
    world.run()
    assert_complete(world)
    assert migrations(world) == 0
    for nics in world.nics:
        assert all(nic.counts.sent_data.packets > 0 for nic in nics)
        assert all(nic.counts.delivered_data.packets > 0 for nic in nics)


def test_two_ports_together_are_twice_as_fast():
    finish = {}
    for ports in (1, 2):
        locations = [RankLocation(leaves=("a", "b")[:ports])] * 2
        plan = create_workload("permutation").plan(
            workload_class("permutation").Parameters(message_size="1 MiB", messages=4),
            world_size=2,
            seed=3,
            qp_scaling=QpScaling(2),
            locations=locations,
        )
        world = World(plan, ports=ports)
        world.run()
        finish[ports] = world.finish()
    assert finish[1] / finish[2] == pytest.approx(2, rel=0.1)


def test_each_packet_leaves_by_the_port_of_its_queue_pair():
    plan = make_plan(queue_pairs=2, message_size=8 * MTU, messages=4)
    world = World(plan, ports=2)
    world.run()
    port_of = {c.destination_qp_num: c.source_nic_port for c in plan.connections}
    reverse = {c.source_qp_num: c.destination_nic_port for c in plan.connections}
    assert {port for _, port in world.sent_from} == {0, 1}
    for (_, port), (_, _, frame) in zip(world.sent_from, world.sent, strict=True):
        packet = parse(frame)
        assert packet is not None
        expected = reverse if packet.opcode == 0x11 else port_of
        assert port == expected[packet.dest_qp]
        assert frame[5] == port + 1, "MAC address of that port's leaf"


@pytest.mark.parametrize("recovery", ["go-back-n", "selective-repeat"])
def test_a_lost_link_costs_no_timeout_at_the_side_that_sees_it(recovery):
    """The sender's port goes down mid-message: what is unsent leaves by the other at once."""
    plan = one_flow(256)
    port = plan.connections[0].source_nic_port
    world = World(plan, transport(recovery=recovery), ports=2)
    world.at(5e-6, lambda: world.set_link(0, port, up=False))
    world.run()
    assert_complete(world)
    used = data_ports(world)
    switch = used.index(1 - port)
    assert set(used[:switch]) == {port}
    assert set(used[switch:]) == {1 - port}
    assert world.counters(0, 0)["path_migrations"] == 1
    # what was in flight on the dead link was lost, and the first packets behind it say so
    assert world.counters(0, 0)["timeouts"] == 0
    assert world.finish() < 80e-6


def test_the_receiver_answers_from_its_other_port():
    plan = one_flow(256)
    port = plan.connections[0].destination_nic_port
    world = World(plan, transport(timeout=6), ports=2)
    world.at(5e-6, lambda: world.set_link(1, port, up=False))
    world.run()
    assert_complete(world)
    answers = [
        p
        for (rank, p), (time, _, frame) in zip(world.sent_from, world.sent, strict=True)
        if rank == 1 and frame[42] == 0x11 and time > 6e-6
    ]
    assert answers
    assert set(answers) == {1 - port}


def test_an_ack_timeout_moves_the_path_and_the_answers_follow():
    """A path dies far away: no port is down, only time tells (automatic path migration)."""
    plan = one_flow(64)
    first = plan.connections[0].source_nic_port
    world = World(
        plan, transport(timeout=6), ports=2, fate=lambda rank, port, _: None if port == first else 0
    )
    world.run()
    assert_complete(world)
    sender, receiver = world.counters(0, 0), world.counters(0, 1)
    assert sender["timeouts"] == sender["path_migrations"] == 1
    assert receiver["path_migrations"] == (plan.connections[0].destination_nic_port == first)
    assert TIMEOUT < world.finish() < 2 * TIMEOUT
    migrated = [f for _, rank, f in world.sent if rank == 0 and f[43] & 0x40]
    assert len(migrated) == world.counters(0, 0)["retransmitted_packets"]


@pytest.mark.parametrize("noticed", [True, False])
def test_answers_leave_a_plane_in_which_the_sender_has_no_port(noticed):
    """The sender's other port goes down, over whose plane it had been answered.

    Its own path is sound, so it stays; the answers move when it asks for it, at once if it has
    noticed and else after a timeout.
    """
    plan = one_flow(256)
    (connection,) = plan.connections
    port = connection.source_nic_port
    plan = replace(plan, connections=(replace(connection, destination_nic_port=1 - port),))
    world = World(plan, transport(timeout=6), ports=2)
    world.at(5e-6, lambda: world.set_link(0, 1 - port, up=False, noticed=noticed))
    if not noticed:
        world.at(TIMEOUT, lambda: world.ranks[0].nic.set_down(1 - port, True))
    world.run()
    assert_complete(world)
    assert set(data_ports(world)) == {port}
    assert world.counters(0, 0)["path_migrations"] == 0
    assert world.counters(0, 1)["path_migrations"] == 1
    assert world.counters(0, 0)["timeouts"] == (0 if noticed else 1)


def test_nothing_moves_back_when_the_link_does():
    plan = one_flow(256, 2)
    port = plan.connections[0].source_nic_port
    world = World(plan, ports=2)
    world.at(5e-6, lambda: world.set_link(0, port, up=False))
    world.at(15e-6, lambda: world.set_link(0, port, up=True))
    world.run()
    assert_complete(world)
    used = data_ports(world)
    assert set(used[used.index(1 - port) :]) == {1 - port}
    assert world.counters(0, 0)["path_migrations"] == 1


def test_with_both_links_lost_the_first_to_come_back_is_taken():
    plan = one_flow(64)
    port = plan.connections[0].source_nic_port
    world = World(plan, transport(timeout=6), ports=2)
    for gone in (port, 1 - port):
        world.at(3e-6, lambda gone=gone: world.set_link(0, gone, up=False))
    world.at(100e-6, lambda: world.set_link(0, port, up=True))
    world.run()
    assert_complete(world)
    assert data_ports(world)[-1] == port


def test_one_dead_port_alone_ends_in_retry_exceeded():
    """Single-ToR: there is nowhere to go."""
    plan = create_workload("permutation").plan(
        workload_class("permutation").Parameters(message_size=64 * MTU), world_size=2, seed=3
    )
    world = World(plan, transport(timeout=4, retry_cnt=3))
    world.at(3e-6, lambda: world.set_link(0, 0, up=False))
    world.run()
    assert {p.status for p in world.ranks[0].flows.values()} == {"IBV_WC_RETRY_EXC_ERR"}
    assert world.counters(0, 0)["timeouts"] == 4
    assert world.counters(0, 0)["path_migrations"] == 0


def test_two_dead_ports_end_in_retry_exceeded():
    plan = make_plan(message_size=64 * MTU)
    world = World(plan, transport(timeout=4, retry_cnt=3), ports=2)
    for port in (0, 1):
        world.at(3e-6, lambda port=port: world.set_link(0, port, up=False))
    world.run()
    assert {p.status for p in world.ranks[0].flows.values()} == {"IBV_WC_RETRY_EXC_ERR"}


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0, 60e-6), st.integers(0, 3), st.integers(0, 1), st.booleans(), st.booleans()
        ),
        max_size=8,
    ),
    st.sampled_from(["go-back-n", "selective-repeat"]),
)
def test_a_ring_survives_any_flapping_of_single_links(events, recovery):
    """Links go and come; in the end all are there, and every number is right."""
    plan = make_plan("ring-all-reduce", world_size=4, queue_pairs=2, size="256 KiB")
    world = World(plan, transport(recovery=recovery, timeout=5), ports=2)
    for time, rank, port, up, noticed in events:

        def change(rank=rank, port=port, up=up, noticed=noticed):
            world.set_link(rank, port, up=up, noticed=noticed)

        world.at(time, change)
    for rank in range(4):
        for port in range(2):
            world.at(80e-6, lambda rank=rank, port=port: world.set_link(rank, port, up=True))
    world.run()
    assert_complete(world)
