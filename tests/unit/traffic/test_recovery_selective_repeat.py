"""Selective repeat: what is resent, what is held, and what goes over the wire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from qp_link import DELAY, Link, drop_control, drop_data, is_data, pair, payload, write

from traffic.codec import Packet, parse
from traffic.recovery.ranges import RangeSet
from traffic.recovery.selective_repeat import (
    REORDER_WINDOW,
    SelectiveRepeatRequester,
    SelectiveRepeatResponder,
    pack_block,
    unpack_block,
)
from traffic.verbs import WcStatus

NAME = "selective-repeat"
NONE = memoryview(b"")


def transfer(fate, packets=256, **kwargs):
    a, b = pair(NAME, **kwargs)
    target = b.region(packets * 256)
    write(a, a.region(payload(packets * 256)), target)
    end = Link(a, b, fate).run()
    assert bytes(target.view) == payload(packets * 256)
    assert a.statuses() == [WcStatus.SUCCESS]
    return a.qp.counters, b.qp.counters, end


@pytest.mark.parametrize("lost", [0, 1, 63, 64, 100, 254])
def test_one_lost_packet_costs_one_retransmission(lost):
    sender, receiver, _ = transfer(drop_data(lost))
    assert sender.retransmitted_packets == 1
    assert sender.timeouts == 0
    assert receiver.duplicate_packets == receiver.discarded_packets == 0


def test_a_lost_last_packet_costs_one_retransmission_and_one_timeout():
    sender, _, end = transfer(drop_data(255))
    assert (sender.retransmitted_packets, sender.timeouts) == (1, 1)
    assert end == pytest.approx(4.096e-6 * 2**14, rel=0.01)


def test_scattered_losses_cost_one_retransmission_each():
    lost = (3, 4, 5, 40, 90, 91, 200)
    sender, receiver, _ = transfer(drop_data(*lost))
    assert sender.retransmitted_packets == len(lost)
    assert sender.timeouts == 0
    assert receiver.duplicate_packets == 0


def test_a_lost_tail_is_recovered_after_one_timeout():
    sender, _, _ = transfer(drop_data(*range(240, 256)))
    assert sender.timeouts == 1
    # The packets up to the one before the tail may have been received without an ACK of theirs.
    assert sender.retransmitted_packets == 16


def test_a_lost_retransmission_is_noticed_without_a_timeout():
    # Data packets are numbered as they are sent; the first retransmission follows one RTT later.
    resent = {"count": 0}

    def fate(_, packet: Packet) -> list[float]:
        if is_data(packet) and packet.psn == 50 and resent["count"] < 3:
            resent["count"] += 1
            return []
        return [0.0]

    sender, receiver, _ = transfer(fate)
    assert sender.timeouts == 0
    assert sender.retransmitted_packets == 3
    assert receiver.duplicate_packets == 0


def test_a_lost_nak_costs_nothing():
    def lose_50_and_three_naks() -> object:
        naks = 0

        def fate(_, packet: Packet) -> list[float]:
            nonlocal naks
            if is_data(packet):
                return [] if packet.psn == 50 and naks == 0 else [0.0]
            naks += 1
            return [] if naks <= 3 else [0.0]

        return fate

    sender, _, _ = transfer(lose_50_and_three_naks())
    assert (sender.retransmitted_packets, sender.timeouts) == (1, 0)


def test_a_lost_ack_is_repeated_for_the_probe():
    sender, receiver, _ = transfer(drop_control(0), packets=20)
    assert (sender.timeouts, sender.retransmitted_packets) == (1, 1)
    assert receiver.duplicate_packets == 1


def test_a_nak_overtaken_by_a_later_ack_changes_nothing():
    late = 20 * DELAY
    naks = 0

    def fate(_, packet: Packet) -> list[float]:
        nonlocal naks
        if is_data(packet):
            return [5 * DELAY] if packet.psn == 10 else [0.0]
        if packet.syndrome == 0x60:
            naks += 1
            return [late]
        return [0.0]

    sender, _, _ = transfer(fate, packets=64)
    assert naks > 0
    assert sender.retransmitted_packets <= 1


def test_reordering_without_loss_holds_and_resends_at_most_the_late_packet():
    def fate(_, packet: Packet) -> list[float]:
        return [DELAY] if is_data(packet) and packet.psn == 100 else [0.0]

    sender, receiver, _ = transfer(fate)
    assert sender.retransmitted_packets <= 1
    assert receiver.out_of_sequence_packets > 0
    assert receiver.discarded_packets == 0


# the requester alone, in numbers


def sent_again(requester, high):
    psns = []
    while requester.pending:
        psns.append(requester.next_retransmission(high))
    return psns


def nak(requester, una, high, first, last):
    requester.on_sequence_nak(una, high, memoryview(pack_block(first, last)))


def test_holes_are_resent_oldest_first_and_only_below_a_received_packet():
    requester = SelectiveRepeatRequester()
    nak(requester, 10, 100, 12, 12)
    nak(requester, 10, 100, 15, 16)
    assert sent_again(requester, 100) == [10, 11, 13, 14]
    nak(requester, 10, 100, 18, 18)
    assert sent_again(requester, 100) == [17]


def test_nothing_before_the_first_packet_is_resent():
    """A connection begins at any PSN; its first packet may be lost before any ACK came."""
    requester = SelectiveRepeatRequester()
    nak(requester, 1 << 23, (1 << 23) + 9, (1 << 23) + 1, (1 << 23) + 8)
    assert sent_again(requester, (1 << 23) + 9) == [1 << 23]


def test_each_hole_is_resent_once_however_many_naks_come():
    requester = SelectiveRepeatRequester()
    for last in range(11, 60):
        nak(requester, 10, 60, 11, last)
    assert sent_again(requester, 60) == [10]
    nak(requester, 10, 60, 11, 59)
    assert sent_again(requester, 60) == []


def test_a_packet_sent_after_the_retransmission_proves_it_lost():
    requester = SelectiveRepeatRequester()
    nak(requester, 10, 60, 11, 20)
    assert sent_again(requester, 60) == [10]
    nak(requester, 10, 80, 11, 59)
    assert sent_again(requester, 80) == []
    nak(requester, 10, 80, 11, 60)
    assert sent_again(requester, 80) == [10]


def test_a_stale_nak_for_packets_never_sent_is_a_plain_nak():
    requester = SelectiveRepeatRequester()
    nak(requester, 10, 20, 15, 25)
    assert sent_again(requester, 20) == [10]


def test_a_plain_nak_resends_the_expected_packet_only():
    requester = SelectiveRepeatRequester()
    requester.on_sequence_nak(10, 20, NONE)
    assert sent_again(requester, 20) == [10]
    requester.on_sequence_nak(10, 20, NONE)
    assert sent_again(requester, 20) == [], "sent again already"
    requester.on_timeout(10, 20)
    assert sent_again(requester, 20) == [19]
    requester.on_sequence_nak(10, 20, NONE)
    assert sent_again(requester, 20) == [10], "a timeout makes it a candidate again"


def test_timeout_resends_holes_and_probes_the_last_packet():
    requester = SelectiveRepeatRequester()
    nak(requester, 10, 60, 11, 20)
    assert sent_again(requester, 60) == [10]
    requester.on_timeout(10, 60)
    assert sent_again(requester, 60) == [10, 59]


def test_a_second_timeout_without_progress_resends_the_oldest_packet_too():
    requester = SelectiveRepeatRequester()
    requester.on_timeout(10, 60)
    assert sent_again(requester, 60) == [59]
    requester.on_timeout(10, 60)
    assert sent_again(requester, 60) == [10, 59]
    requester.on_acknowledged(59, 60)
    requester.on_timeout(59, 60)
    requester.on_timeout(59, 60)
    assert sent_again(requester, 60) == [59]


def test_a_packet_that_was_held_and_then_refused_is_not_taken_for_received():
    requester = SelectiveRepeatRequester()
    nak(requester, 10, 13, 11, 12)
    assert sent_again(requester, 13) == [10]
    requester.on_acknowledged(12, 13)
    requester.on_rnr_expired(12, 13)
    assert sent_again(requester, 13) == [12]
    requester.on_timeout(12, 13)
    assert sent_again(requester, 13) == [12]


# the responder alone


def held_packet(number):
    packet = Packet()
    packet.payload = memoryview(bytes([number]))
    return packet


def test_every_early_arrival_is_answered_with_its_block():
    responder = SelectiveRepeatResponder()
    blocks = [
        unpack_block(responder.on_out_of_order(10, psn, held_packet(psn)).nak, 10)
        for psn in (12, 13, 16, 15, 14)
    ]
    assert blocks == [(12, 12), (12, 13), (16, 16), (15, 16), (12, 16)]
    assert responder.held == 5


def test_an_early_duplicate_is_answered_but_not_held_twice():
    responder = SelectiveRepeatResponder()
    responder.on_out_of_order(10, 12, held_packet(12))
    outcome = responder.on_out_of_order(10, 12, held_packet(12))
    assert (outcome.held, outcome.duplicate) == (False, True)
    assert unpack_block(outcome.nak, 10) == (12, 12)


def test_release_in_order_then_report_the_next_gap():
    responder = SelectiveRepeatResponder()
    for psn in (11, 13, 14):
        responder.on_out_of_order(10, psn, held_packet(psn))
    first = responder.release(11)
    assert first is not None
    assert bytes(first.payload) == b"\x0b"
    assert responder.release(12) is None
    assert responder.waiting
    assert unpack_block(responder.report(), 12) == (13, 14)
    assert responder.release(13) is not None
    assert responder.release(14) is not None
    assert not responder.waiting


def test_held_packets_do_not_depend_on_the_frame_buffer():
    responder = SelectiveRepeatResponder()
    buffer = bytearray(b"payload")
    packet = Packet()
    packet.payload = memoryview(buffer)
    responder.on_out_of_order(10, 11, packet)
    buffer[:] = b"another"
    released = responder.release(11)
    assert released is not None
    assert bytes(released.payload) == b"payload"


def test_a_gap_that_closes_before_another_is_answered_by_a_selective_nak():
    a, b = pair(NAME)
    write(a, a.region(payload(6 * 256)), b.region(6 * 256))
    packets = [parse(bytes(a.qp.next_packet(0.0))) for _ in range(6)]
    for index in (0, 2, 4):
        b.qp.receive(packets[index], 0.0)
    while b.qp.has_response:
        b.qp.next_packet(0.0)
    b.qp.receive(packets[1], 0.0)
    nak = parse(bytes(b.qp.next_packet(0.0)))
    assert (nak.syndrome, nak.psn) == (0x60, 3)
    assert unpack_block(nak.payload, 3) == (4, 4)
    b.qp.receive(packets[3], 0.0)
    ack = parse(bytes(b.qp.next_packet(0.0)))
    assert (ack.syndrome, ack.psn) == (0x1F, 4)


def test_beyond_the_reorder_window_nothing_is_held():
    responder = SelectiveRepeatResponder()
    outcome = responder.on_out_of_order(0, REORDER_WINDOW, held_packet(1))
    assert (outcome.held, outcome.nak) == (False, b"")
    assert responder.on_out_of_order(0, REORDER_WINDOW - 1, held_packet(1)).held


def test_the_requester_stays_within_the_reorder_window():
    assert SelectiveRepeatRequester.max_in_flight == REORDER_WINDOW


def test_block_on_the_wire():
    assert pack_block(0x1000001, 0x1000002).hex() == "0000000100000002"
    assert unpack_block(pack_block(0x1000001, 0x1000002), 0xFFFFFE) == (0x1000001, 0x1000002)
    assert unpack_block(b"", 5) is None


# ranges


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 8))), st.integers(0, 70))
def test_range_set_is_a_set(additions, bound):
    ranges, model = RangeSet(), set()
    for start, length in additions:
        low, high = ranges.add(start, start + length)
        model |= set(range(start, start + length))
        assert set(range(low, high)) <= model
        assert low - 1 not in model
        assert high not in model
    assert {value for value in range(80) if value in ranges} == model
    assert ranges.end == (max(model) + 1 if model else None)
    assert ranges.next_missing(bound) == min(set(range(bound, 80)) - model)
    ranges.discard_before(bound)
    model = {value for value in model if value >= bound}
    assert {value for value in range(80) if value in ranges} == model
    assert bool(ranges) == bool(model)
    if model:
        assert ranges.first()[0] == min(model)
