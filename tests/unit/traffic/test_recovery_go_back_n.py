"""Go-back-N: one NAK per gap, and the whole tail again."""

from __future__ import annotations

import pytest
from qp_link import DELAY, Link, drop_control, drop_data, is_data, pair, payload, write

from traffic.codec import Packet, parse
from traffic.recovery.go_back_n import GoBackNRequester, GoBackNResponder
from traffic.verbs import WcStatus

NAME = "go-back-n"
NONE = memoryview(b"")


def transfer(fate, packets=256, gap=DELAY / 8, **kwargs):
    a, b = pair(NAME, **kwargs)
    target = b.region(packets * 256)
    write(a, a.region(payload(packets * 256)), target)
    end = Link(a, b, fate, gap=gap).run()
    assert bytes(target.view) == payload(packets * 256)
    assert a.statuses() == [WcStatus.SUCCESS]
    return a.qp.counters, b.qp.counters, end


@pytest.mark.parametrize("lost", [0, 1, 63, 64, 100, 254])
def test_one_lost_packet_costs_what_was_in_flight(lost):
    packets, per_delay = 256, 8
    sender, receiver, _ = transfer(drop_data(lost), packets, gap=DELAY / per_delay)
    # The next packet reveals the loss; the NAK is back a round trip after that one was sent.
    in_flight = min(lost + 1 + 2 * per_delay, packets) - lost
    assert abs(sender.retransmitted_packets - in_flight) <= 1
    assert sender.timeouts == 0
    assert receiver.naks_sent == 1
    # All that was in flight behind the gap was dropped.
    assert receiver.discarded_packets == sender.retransmitted_packets - 1


def test_a_lost_last_packet_costs_a_timeout_and_the_unacknowledged_tail():
    sender, _, end = transfer(drop_data(255))
    assert sender.timeouts == 1
    assert 1 <= sender.retransmitted_packets <= 64
    assert end == pytest.approx(4.096e-6 * 2**14, rel=0.01)


def test_duplicates_are_acknowledged_again():
    """A lost ACK must not keep both sides repeating themselves for ever."""
    sender, receiver, _ = transfer(drop_control(0), packets=4)
    assert (sender.timeouts, sender.retries) == (1, 1)
    assert sender.retransmitted_packets == receiver.duplicate_packets == 4


def test_a_nak_overtaken_by_a_later_ack_changes_nothing():
    """PSN 10 comes late, so PSN 11 is dropped and missed as well: two NAKs, both of them stale."""
    naks = 0

    def fate(_, packet: Packet) -> list[float]:
        nonlocal naks
        if is_data(packet):
            return [DELAY] if packet.psn == 10 else [0.0]
        if packet.syndrome == 0x60:
            naks += 1
            return [1.0]
        return [0.0]

    sender, _, end = transfer(fate, packets=64)
    assert naks == sender.naks_received == 2
    assert sender.timeouts == 1
    assert end >= 1.0


def test_one_nak_per_gap_then_silence_then_another():
    a, b = pair(NAME)
    write(a, a.region(payload(10 * 256)), b.region(10 * 256))
    packets = []
    while a.qp.has_request(0.0):
        packets.append(parse(bytes(a.qp.next_packet(0.0))))
    for index in (0, 2, 3, 4):
        b.qp.receive(packets[index], 0.0)
    nak = parse(bytes(b.qp.next_packet(0.0)))
    assert (nak.syndrome, nak.psn, len(nak.payload)) == (0x60, 1, 0)
    assert b.qp.next_packet(0.0) is None
    b.qp.receive(packets[1], 0.0)
    assert b.qp.next_packet(0.0) is None, "no AckReq, no gap: nothing to say"
    b.qp.receive(packets[5], 0.0)
    assert parse(bytes(b.qp.next_packet(0.0))).psn == 2


def test_requester_rewinds_to_the_nak_and_skips_what_is_acknowledged_meanwhile():
    requester = GoBackNRequester()
    requester.on_sequence_nak(10, 15, NONE)
    assert [requester.next_retransmission(15) for _ in range(2)] == [10, 11]
    requester.on_acknowledged(14, 15)
    assert requester.next_retransmission(15) == 14
    assert not requester.pending


def test_nothing_is_resent_once_all_is_acknowledged():
    requester = GoBackNRequester()
    requester.on_timeout(10, 15)
    requester.on_acknowledged(15, 15)
    assert not requester.pending


def test_responder_holds_nothing():
    responder = GoBackNResponder()
    outcome = responder.on_out_of_order(5, 7, Packet())
    assert (outcome.held, outcome.nak) == (False, b"")
    assert responder.on_out_of_order(5, 8, Packet()).nak is None
    assert responder.release(6) is None
    assert not responder.waiting
    assert responder.held == 0
