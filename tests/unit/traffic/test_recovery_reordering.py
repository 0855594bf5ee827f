"""Selective repeat on paths that reorder: late packets are waited for, lost ones are not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nic_world import RATE, World, transport
from qp_link import DELAY, RECOVERIES, Link, is_data, pair, payload, write

from traffic.codec import Packet
from traffic.plan import QpScaling, SourcePortPolicy
from traffic.qp.attributes import Reordering
from traffic.recovery.selective_repeat import SelectiveRepeatRequester, pack_block
from traffic.source_ports import possible_source_ports
from traffic.verbs import WcStatus
from traffic.workloads import create_workload, workload_class

NAME = "selective-repeat"
GAP = DELAY / 16
"""Time between two frames on the link."""
NEVER = 1.0
PATIENCE = 200 * DELAY


def transfer(fate, packets, reordering, *, recovery=NAME, **kwargs):
    a, b = pair(recovery, reordering=reordering, timeout=14, **kwargs)
    target = b.region(packets * 256)
    write(a, a.region(payload(packets * 256)), target)
    link = Link(a, b, fate)
    link.gap = GAP
    end = link.run()
    assert bytes(target.view) == payload(packets * 256)
    assert a.statuses() == [WcStatus.SUCCESS]
    assert a.qp.next_timeout() is None
    return a.qp.counters, b.qp.counters, end


def late(delays, lost=()):
    """Delay data packets by so many gaps, by PSN; lose the first transmission of some."""
    gone = set(lost)

    def fate(_: int, packet: Packet) -> list[float]:
        if not is_data(packet):
            return [0.0]
        if packet.psn in gone:
            gone.discard(packet.psn)
            return []
        return [GAP * delays[packet.psn % len(delays)]]

    return fate


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_displacement_below_the_threshold_costs_nothing(data):
    threshold = data.draw(st.integers(2, 24))
    delays = data.draw(st.lists(st.integers(0, threshold - 1), min_size=1, max_size=40))
    sender, receiver, _ = transfer(late(delays), 200, Reordering(threshold, NEVER))
    assert (sender.retransmitted_packets, sender.timeouts) == (0, 0)
    assert receiver.duplicate_packets == receiver.discarded_packets == 0


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_under_loss_and_reordering_only_what_was_lost_is_sent_again(data):
    """The last packet arrives, so that there is something to tell what is missing before it."""
    threshold = data.draw(st.integers(2, 24))
    delays = data.draw(st.lists(st.integers(0, threshold - 1), min_size=1, max_size=40))
    lost = data.draw(st.sets(st.integers(0, 198), max_size=12))
    sender, receiver, end = transfer(late(delays, lost), 200, Reordering(threshold, PATIENCE))
    assert sender.retransmitted_packets == len(lost)
    assert sender.timeouts == 0
    assert receiver.duplicate_packets == 0
    assert end < 200 * GAP + 2 * PATIENCE + 20 * DELAY


@pytest.mark.parametrize("recovery", RECOVERIES)
@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 64),
    st.dictionaries(
        st.integers(0, 150), st.sampled_from([[], [], [3 * DELAY], [40 * DELAY], [0.0, 7 * DELAY]])
    ),
    st.sampled_from([DELAY, 30 * DELAY, NEVER]),
)
def test_any_threshold_survives_any_disturbance(recovery, threshold, fates, timeout):
    sender, receiver, _ = transfer(
        lambda number, _: fates.get(number, [0.0]),
        100,
        Reordering(threshold, timeout),
        recovery=recovery,
    )
    assert sender.sent_packets - sender.retransmitted_packets == 100
    assert receiver.delivered_packets == 100


def test_a_loss_with_few_packets_behind_it_waits_for_the_timer_not_for_the_ack_timeout():
    sender, _, end = transfer(late([0], lost=[95]), 100, Reordering(16, PATIENCE))
    assert (sender.retransmitted_packets, sender.timeouts) == (1, 0)
    assert PATIENCE < end < PATIENCE + 20 * DELAY


def test_a_loss_with_many_packets_behind_it_waits_for_nothing():
    sender, _, end = transfer(late([0], lost=[10]), 100, Reordering(16, NEVER))
    assert (sender.retransmitted_packets, sender.timeouts) == (1, 0)
    assert end < 100 * GAP + 10 * DELAY


@pytest.mark.parametrize("threshold", [1, 3, 8])
def test_beyond_the_threshold_the_late_packet_is_sent_again_once(threshold):
    delays = [0] * 100
    delays[50] = threshold + 30
    sender, receiver, _ = transfer(late(delays), 100, Reordering(threshold, NEVER))
    assert sender.retransmitted_packets == receiver.duplicate_packets == 1


def test_out_of_order_packets_are_those_that_overtook():
    delays = [0] * 100
    delays[50] = 7.5
    _, receiver, _ = transfer(late(delays), 100, Reordering(32, NEVER))
    assert receiver.out_of_order_packets == receiver.out_of_sequence_packets == 7


# the requester alone, in numbers


def requester(threshold):
    made = SelectiveRepeatRequester()
    made.reordering_threshold = threshold
    return made


def nak(made, una, high, first, last):
    made.on_sequence_nak(una, high, memoryview(pack_block(first, last)))


def sent_again(made, high):
    psns = []
    while made.pending:
        psns.append(made.next_retransmission(high))
    return psns


def test_the_threshold_counts_from_the_hole():
    made = requester(3)
    nak(made, 10, 100, 11, 12)
    assert sent_again(made, 100) == []
    assert made.suspects
    nak(made, 10, 100, 11, 13)
    assert sent_again(made, 100) == [10]
    assert not made.suspects
    nak(made, 10, 100, 16, 16)
    assert sent_again(made, 100) == []
    nak(made, 10, 100, 16, 17)
    assert sent_again(made, 100) == [14]
    nak(made, 10, 100, 16, 18)
    assert sent_again(made, 100) == [15]


def test_the_timer_takes_only_what_was_missing_when_it_started():
    made = requester(50)
    nak(made, 10, 100, 12, 12)
    nak(made, 10, 100, 20, 20)
    made.on_reordering_timeout(10, 100)
    assert sent_again(made, 100) == [10, 11]
    assert made.suspects, "13 to 19 wait for the next round"
    made.on_reordering_timeout(10, 100)
    assert sent_again(made, 100) == list(range(13, 20))
    assert not made.suspects


def test_a_retransmission_may_be_late_too():
    made = requester(4)
    nak(made, 10, 60, 11, 20)
    assert sent_again(made, 60) == [10]
    nak(made, 10, 80, 11, 62)
    assert sent_again(made, 80) == []
    assert made.suspects
    nak(made, 10, 80, 11, 63)
    assert sent_again(made, 80) == [10]


def test_a_lost_retransmission_with_few_packets_behind_it_is_repeated_by_the_timer():
    made = requester(4)
    nak(made, 10, 60, 11, 20)
    assert sent_again(made, 60) == [10]
    nak(made, 10, 61, 11, 60)
    made.on_reordering_timeout(10, 61)
    assert sent_again(made, 61) == [10]
    made.on_acknowledged(61, 61)
    assert not made.suspects


def test_nothing_is_suspected_once_the_late_packet_has_come():
    made = requester(8)
    nak(made, 10, 60, 11, 14)
    assert made.suspects
    made.on_acknowledged(15, 60)
    assert not made.suspects
    assert not made.pending


@pytest.mark.parametrize("bad", [{"threshold": 0}, {"threshold": 1 << 16}, {"timeout": 0.0}])
def test_impossible_reordering_is_refused(bad):
    with pytest.raises(ValueError, match="reordering"):
        Reordering(**bad)


# spraying by source ports, in a world whose paths differ


@pytest.mark.parametrize(("recovery", "threshold"), [("go-back-n", 1), (NAME, 1), (NAME, 64)])
def test_spraying_collapses_go_back_n_and_not_tolerant_selective_repeat(recovery, threshold):
    frame_time = (4096 + 82) * 8 / RATE
    scaling = QpScaling(source_port_policy=SourcePortPolicy.PER_PACKET, source_ports=4)
    made = workload_class("incast").Parameters(senders=1, receiver=1, message_size="4 MiB")
    plan = create_workload("incast").plan(made, world_size=2, seed=3, qp_scaling=scaling)
    ports = possible_source_ports(plan, plan.connections[0])
    delays = {port: 5 * index * frame_time for index, port in enumerate(ports)}
    world = World(
        plan,
        transport(recovery=recovery, reordering=Reordering(threshold)),
        fate=lambda rank, port, frame: delays.get(int.from_bytes(frame[34:36], "big"), 0.0),
    )
    world.run()
    assert world.wrong() == [0, 0]
    counters = world.counters(0, 0)
    resent = counters["retransmitted_packets"]
    if threshold == 64:
        assert resent == 0
        assert world.counters(0, 1)["out_of_order_packets"] > 500
        assert world.finish() < 1.1 * (1024 * frame_time + 4e-6)
    elif recovery == NAME:
        assert resent > 100
    else:
        assert resent > 2000
