"""Local ACK timeout and retries, receiver not ready and its retries."""

from __future__ import annotations

import pytest
from qp_link import (
    RECOVERIES,
    Link,
    forged_answer,
    is_data,
    only,
    pair,
    payload,
    send,
    write,
)

from traffic.codec import Packet, parse
from traffic.qp.timers import ack_timeout_seconds, rnr_timer_seconds
from traffic.verbs import (
    QpState,
    RecvWr,
    WcStatus,
    WrOpcode,
)

T14 = 4.096e-6 * 2**14


def lose_all(_: int, packet: Packet) -> list[float]:
    return []


# the local ACK timeout


def test_timer_values():
    assert ack_timeout_seconds(14) == pytest.approx(0.067108864)
    assert ack_timeout_seconds(0) is None
    assert rnr_timer_seconds(12) == pytest.approx(0.64e-3)
    assert rnr_timer_seconds(0) == pytest.approx(0.65536)
    assert rnr_timer_seconds(31) == pytest.approx(0.49152)


@pytest.mark.parametrize("recovery", RECOVERIES)
@pytest.mark.parametrize("retry_cnt", [0, 3, 7])
def test_retries_run_out(recovery, retry_cnt):
    a, b = pair(recovery, retry_cnt=retry_cnt)
    source, target = a.region(payload(600)), b.region(600)
    for wr_id in (1, 2, 3):
        write(a, source, target, wr_id=wr_id)
    a.qp.post_recv(RecvWr(wr_id=9))
    end = Link(a, b, lose_all).run()
    assert [(c.wr_id, c.status) for c in a.send_cq.poll()] == [
        (1, WcStatus.RETRY_EXC_ERR),
        (2, WcStatus.WR_FLUSH_ERR),
        (3, WcStatus.WR_FLUSH_ERR),
    ]
    assert only(a.recv_cq.poll()).status is WcStatus.WR_FLUSH_ERR
    assert a.qp.state is QpState.ERR
    assert (a.qp.counters.timeouts, a.qp.counters.retries) == (retry_cnt + 1, retry_cnt)
    assert end == pytest.approx((retry_cnt + 1) * T14, rel=0.001)
    assert not a.qp.has_request(end)


def test_progress_gives_all_retries_back():
    a, b = pair("go-back-n", retry_cnt=1, ack_interval=1)
    write(a, a.region(payload(4 * 256)), b.region(4 * 256))
    seen = {}

    def every_first_copy_lost_and_no_nak(_, packet: Packet) -> list[float]:
        if not is_data(packet):
            return [0.0] if packet.syndrome == 0x1F else []
        seen[packet.psn] = seen.get(packet.psn, 0) + 1
        return [] if seen[packet.psn] <= packet.psn + 1 else [0.0]

    Link(a, b, every_first_copy_lost_and_no_nak).run()
    assert a.statuses() == [WcStatus.SUCCESS]
    assert a.qp.counters.timeouts == 4


def test_timeout_0_never_fires():
    a, b = pair(timeout=0)
    write(a, a.region(payload(100)), b.region(100))
    Link(a, b, lose_all).run()
    assert a.qp.next_timeout() is None
    assert a.statuses() == []


def test_the_timer_restarts_with_progress_and_stops_when_all_is_acknowledged():
    a, b = pair(ack_interval=1)
    write(a, a.region(payload(512)), b.region(512))
    packets = [parse(bytes(a.qp.next_packet(when))) for when in (1.0, 2.0)]
    assert a.qp.next_timeout() == 1.0 + T14
    for packet in packets:
        b.qp.receive(packet, 2.0)
        a.qp.receive(parse(bytes(b.qp.next_packet(2.0))), 3.0 + packet.psn)
        if packet.psn == 0:
            assert a.qp.next_timeout() == 3.0 + T14
    assert a.qp.next_timeout() is None


def test_a_retransmission_that_waits_for_the_port_is_not_timed():
    a, b = pair()
    write(a, a.region(payload(100)), b.region(100))
    assert a.qp.next_packet(0.0) is not None
    a.qp.handle_timeout(T14)
    assert a.qp.next_timeout() is None
    assert a.qp.next_packet(10.0) is not None
    assert a.qp.next_timeout() == 10.0 + T14


def test_resending_the_oldest_packet_restarts_the_timer():
    a, b = pair("go-back-n")
    write(a, a.region(payload(512)), b.region(512))
    packets = [parse(bytes(a.qp.next_packet(0.0))) for _ in range(2)]
    b.qp.receive(packets[1], 0.0)
    a.qp.receive(parse(bytes(b.qp.next_packet(0.0))), 0.5 * T14)
    assert a.qp.next_timeout() == T14
    assert a.qp.next_packet(0.5 * T14) is not None
    assert a.qp.next_timeout() == 1.5 * T14


def test_handling_a_timeout_early_does_nothing():
    a, b = pair()
    write(a, a.region(payload(100)), b.region(100))
    a.qp.next_packet(0.0)
    a.qp.handle_timeout(T14 * 0.999)
    assert a.qp.counters.timeouts == 0
    assert a.qp.next_timeout() == T14


# receiver not ready


@pytest.mark.parametrize("recovery", RECOVERIES)
@pytest.mark.parametrize("opcode", [WrOpcode.SEND, WrOpcode.RDMA_WRITE_WITH_IMM])
def test_rnr_waits_as_told_and_then_completes(recovery, opcode):
    # The wait is longer than the ACK timeout of 1.05 ms, which must not run meanwhile.
    a, b = pair(recovery, min_rnr_timer=14, timeout=8)
    source, target = a.region(payload(1000)), b.region(1000)
    if opcode is WrOpcode.SEND:
        send(a, source)
    else:
        write(a, source, target, opcode=opcode, imm_data=1)
    link = Link(a, b)
    naks = 0

    def post_at_the_third(_, packet: Packet) -> list[float]:
        nonlocal naks
        if not is_data(packet) and packet.syndrome == 0x20 | 14:
            naks += 1
            if naks == 3:
                b.qp.post_recv(RecvWr(wr_id=5, sge=target.sge()))
        return [0.0]

    link.fate = post_at_the_third
    end = link.run()
    assert a.statuses() == [WcStatus.SUCCESS]
    assert bytes(target.view) == payload(1000)
    assert only(b.recv_cq.poll()).wr_id == 5
    assert a.qp.counters.rnr_naks_received == b.qp.counters.rnr_naks_sent == 3
    assert a.qp.counters.timeouts == 0
    assert end == pytest.approx(3 * 1.28e-3, rel=0.02)


@pytest.mark.parametrize("recovery", RECOVERIES)
@pytest.mark.parametrize("rnr_retry", [0, 2, 6])
def test_rnr_retries_run_out(recovery, rnr_retry):
    a, b = pair(recovery, rnr_retry=rnr_retry)
    send(a, a.region(payload(1000)))
    Link(a, b).run()
    assert a.statuses() == [WcStatus.RNR_RETRY_EXC_ERR]
    assert a.qp.counters.rnr_naks_received == rnr_retry + 1
    assert a.qp.state is QpState.ERR
    assert b.qp.state is QpState.RTS


def test_rnr_retry_7_never_runs_out():
    a, b = pair(rnr_retry=7)
    send(a, a.region(payload(10)))
    link = Link(a, b)
    with pytest.raises(AssertionError, match="no end"):
        link.run(max_steps=500)
    assert a.qp.counters.rnr_naks_received > 50
    assert a.qp.state is QpState.RTS


def test_an_rnr_nak_gives_the_timeouts_back():
    """The peer has answered, so it is not gone."""
    a, b = pair(retry_cnt=1)
    write(a, a.region(payload(100)), b.region(100))
    now = 0.0
    for _ in range(5):
        a.qp.next_packet(now)
        now += T14
        a.qp.handle_timeout(now)
        a.qp.next_packet(now)
        a.qp.receive(forged_answer(0, 0x20 | 12), now)
        now += 0.64e-3
        a.qp.handle_timeout(now)
    assert a.qp.counters.timeouts == 5
    assert a.qp.state is QpState.RTS


@pytest.mark.parametrize("recovery", RECOVERIES)
def test_no_sequence_nak_hurries_a_requester_that_waits(recovery):
    a, b = pair(recovery)
    send(a, a.region(payload(2000)))
    packets = [parse(bytes(a.qp.next_packet(0.0))) for _ in range(8)]
    for packet in packets:
        b.qp.receive(packet, 0.0)
    response = parse(bytes(b.qp.next_packet(0.0)))
    assert response.syndrome == 0x20 | 12
    assert not b.qp.has_response
    a.qp.receive(response, 0.0)
    assert not a.qp.has_request(0.0)
    assert a.qp.next_packet(0.0) is None
    assert a.qp.next_timeout() == pytest.approx(0.64e-3)


def test_an_ack_ends_the_wait_that_a_late_rnr_nak_began():
    a, b = pair()
    write(a, a.region(payload(600)), b.region(600))
    packets = [parse(bytes(a.qp.next_packet(0.0))) for _ in range(3)]
    a.qp.receive(forged_answer(0, 0x20 | 12), 0.0)
    for packet in packets:
        b.qp.receive(packet, 0.0)
    a.qp.receive(parse(bytes(b.qp.next_packet(0.0))), 1e-6)
    assert a.statuses() == [WcStatus.SUCCESS]
    assert a.qp.next_timeout() is None
