"""What goes wrong and how it is reported: timers, RNR, access, lengths, flushes, UC gaps."""

from __future__ import annotations

import pytest
from qp_link import (
    DELAY,
    RECOVERIES,
    REMOTE,
    Link,
    drop_data,
    is_data,
    only,
    pair,
    payload,
    write,
)

from traffic.codec import FrameTemplate, Packet, parse
from traffic.memory import AccessFlags, Sge
from traffic.opcodes import Operation
from traffic.qp.timers import ack_timeout_seconds, rnr_timer_seconds
from traffic.verbs import (
    AsyncEvent,
    QpState,
    QpType,
    RecvWr,
    SendWr,
    WcOpcode,
    WcStatus,
    WrOpcode,
)

T14 = 4.096e-6 * 2**14


def lose_all(_: int, packet: Packet) -> list[float]:
    return []


def send(a, source, wr_id=1, **kwargs):
    a.qp.post_send(SendWr(wr_id=wr_id, opcode=WrOpcode.SEND, sge=source.sge(), **kwargs))


# timers


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
    a, b = pair(recovery, min_rnr_timer=14)
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


# errors of the peer


@pytest.mark.parametrize("recovery", RECOVERIES)
@pytest.mark.parametrize("fault", ["rkey", "below", "beyond", "right"])
def test_remote_access_error(recovery, fault):
    a, b = pair(recovery)
    source = a.region(payload(1000))
    target = b.region(1000, AccessFlags.LOCAL_WRITE if fault == "right" else REMOTE)
    address, rkey = target.virtual_address, target.rkey
    if fault == "rkey":
        rkey += 2
    elif fault == "below":
        address -= 1
    elif fault == "beyond":
        address += 1
    good = b.region(1000)
    write(a, source, good, wr_id=1)
    for wr_id in (2, 3):
        a.qp.post_send(
            SendWr(
                wr_id=wr_id,
                opcode=WrOpcode.RDMA_WRITE,
                sge=source.sge(),
                remote_addr=address,
                rkey=rkey,
            )
        )
    Link(a, b).run()
    assert [(c.wr_id, c.status) for c in a.send_cq.poll()] == [
        (1, WcStatus.SUCCESS),
        (2, WcStatus.REM_ACCESS_ERR),
        (3, WcStatus.WR_FLUSH_ERR),
    ]
    assert (a.qp.state, b.qp.state) == (QpState.ERR, QpState.ERR)
    assert list(b.qp.async_events) == [AsyncEvent.QP_ACCESS_ERR]
    assert bytes(target.view) == bytes(1000)
    assert b.qp.counters.error_naks_sent == a.qp.counters.error_naks_received == 1


def test_queue_pair_without_remote_write():
    a, b = pair()
    b.qp.modify(QpState.RTS, qp_access_flags=AccessFlags.LOCAL_WRITE)
    write(a, a.region(payload(10)), b.region(10))
    Link(a, b).run()
    assert a.statuses() == [WcStatus.REM_ACCESS_ERR]


def test_a_write_of_nothing_needs_no_key():
    a, b = pair()
    a.qp.post_send(SendWr(wr_id=1, opcode=WrOpcode.RDMA_WRITE, remote_addr=1, rkey=1))
    Link(a, b).run()
    assert a.statuses() == [WcStatus.SUCCESS]


@pytest.mark.parametrize("length", [101, 256, 1000])
def test_send_longer_than_the_receive_buffer(length):
    a, b = pair()
    buffer = b.region(100)
    b.qp.post_recv(RecvWr(wr_id=5, sge=buffer.sge()))
    b.qp.post_recv(RecvWr(wr_id=6, sge=buffer.sge()))
    send(a, a.region(payload(length)))
    Link(a, b).run()
    assert a.statuses() == [WcStatus.REM_INV_REQ_ERR]
    assert [(c.wr_id, c.status) for c in b.recv_cq.poll()] == [
        (5, WcStatus.LOC_LEN_ERR),
        (6, WcStatus.WR_FLUSH_ERR),
    ]
    assert list(b.qp.async_events) == [AsyncEvent.QP_REQ_ERR]


def test_receive_buffer_with_a_bad_key():
    a, b = pair()
    b.qp.post_recv(RecvWr(wr_id=5, sge=Sge(0, 100, 12345)))
    send(a, a.region(payload(10)))
    Link(a, b).run()
    assert a.statuses() == [WcStatus.REM_OP_ERR]
    assert only(b.recv_cq.poll()).status is WcStatus.LOC_PROT_ERR


def forged(opcode, psn, extension=b"", content=b""):
    template = FrameTemplate(
        source_mac="02:00:00:00:00:01",
        dest_mac="02:00:00:00:00:02",
        source_ip="10.0.0.1",
        dest_ip="10.0.0.2",
        source_port=49152,
        dest_qp=0x12,
        tos=0,
        max_body=5000,
    )
    return parse(bytes(template.stamp(opcode, psn, extension, content)))


@pytest.mark.parametrize(
    "packets",
    [
        [(Operation.SEND_MIDDLE, bytes(256))],
        [(Operation.RDMA_WRITE_LAST, bytes(10))],
        [(Operation.SEND_FIRST, bytes(256)), (Operation.SEND_FIRST, bytes(256))],
        [(Operation.SEND_FIRST, bytes(256)), (Operation.RDMA_WRITE_MIDDLE, bytes(256))],
        [(Operation.SEND_FIRST, bytes(255))],
        [(Operation.SEND_FIRST, bytes(260))],
        [(Operation.SEND_FIRST, bytes(256)), (Operation.SEND_LAST, b"")],
        [(Operation.SEND_ONLY, bytes(260))],
        [(Operation.SEND_FIRST, bytes(256)), (Operation.SEND_MIDDLE, bytes(4))],
    ],
    ids=[
        "middle first",
        "last first",
        "first twice",
        "send then write",
        "short first",
        "long first",
        "empty last",
        "long only",
        "short middle",
    ],
)
def test_invalid_request(packets):
    _, b = pair()
    b.qp.post_recv(RecvWr(wr_id=5, sge=b.region(5000).sge()))
    b.qp.post_recv(RecvWr(wr_id=6, sge=b.region(5000).sge()))
    for psn, (opcode, content) in enumerate(packets):
        b.qp.receive(forged(opcode, psn, b"", content), 0.0)
    response = parse(bytes(b.qp.next_packet(0.0)))
    assert (response.syndrome, response.psn) == (0x61, len(packets) - 1)
    assert b.qp.state is QpState.ERR
    assert AsyncEvent.QP_REQ_ERR in b.qp.async_events


@pytest.mark.parametrize("dma_length", [255, 257, 511, 513, 1 << 31])
def test_write_whose_length_contradicts_the_reth(dma_length):
    _, b = pair()
    target = b.region(1 << 12)
    reth = target.virtual_address.to_bytes(8, "big") + target.rkey.to_bytes(4, "big")
    first = forged(Operation.RDMA_WRITE_FIRST, 0, reth + dma_length.to_bytes(4, "big"), bytes(256))
    b.qp.receive(first, 0.0)
    b.qp.receive(forged(Operation.RDMA_WRITE_LAST, 1, b"", bytes(256)), 0.0)
    response = parse(bytes(b.qp.next_packet(0.0)))
    assert response.syndrome == (0x62 if dma_length == 1 << 31 else 0x61)
    assert b.qp.state is QpState.ERR


def test_unknown_nak_code_is_a_bad_response():
    a, b = pair()
    write(a, a.region(payload(10)), b.region(10))
    a.qp.next_packet(0.0)
    nak = forged(Operation.ACKNOWLEDGE, 0, b"\x7f\x00\x00\x00")
    nak.source_ip = 0x0A000002
    a.qp.receive(nak, 0.0)
    assert a.statuses() == [WcStatus.BAD_RESP_ERR]


@pytest.mark.parametrize("syndrome", [0x1F, 0x60, 0x2C, 0x62, 0x7F, 0x40])
@pytest.mark.parametrize("psn", [5, (1 << 24) - 1, 1 << 23])
def test_answers_to_packets_not_in_flight_change_nothing(syndrome, psn):
    a, b = pair(psn=2)
    write(a, a.region(payload(3 * 256)), b.region(3 * 256))
    for _ in range(3):
        a.qp.next_packet(0.0)
    answer = forged(Operation.ACKNOWLEDGE, psn, bytes([syndrome, 0, 0, 0]))
    answer.source_ip = 0x0A000002
    a.qp.receive(answer, 0.0)
    assert a.statuses() == []
    assert not a.qp.has_request(0.0)
    assert a.qp.state is QpState.RTS


# errors of one's own


def test_bad_lkey_fails_in_its_turn_and_flushes_the_rest():
    a, b = pair()
    source, target = a.region(payload(1000)), b.region(1000)
    write(a, source, target, wr_id=1)
    a.qp.post_send(SendWr(wr_id=2, opcode=WrOpcode.SEND, sge=Sge(0, 10, 999)))
    write(a, source, target, wr_id=3)
    Link(a, b).run()
    assert [(c.wr_id, c.status) for c in a.send_cq.poll()] == [
        (1, WcStatus.SUCCESS),
        (2, WcStatus.LOC_PROT_ERR),
        (3, WcStatus.WR_FLUSH_ERR),
    ]
    assert a.qp.state is QpState.ERR


def test_message_beyond_2_gib(monkeypatch):
    monkeypatch.setattr("traffic.qp.wqe._MAX_MESSAGE", 999)
    a, _ = pair()
    send(a, a.region(payload(1000)))
    assert a.statuses() == [WcStatus.LOC_LEN_ERR]


def test_uc_send_error_stops_the_send_queue_only():
    a, b = pair(qp_type=QpType.UC)
    source, target = a.region(payload(300)), b.region(300)
    a.qp.post_send(SendWr(wr_id=1, opcode=WrOpcode.SEND, sge=Sge(0, 10, 999)))
    assert a.statuses() == [WcStatus.LOC_PROT_ERR]
    assert a.qp.state is QpState.SQE
    write(a, source, target, wr_id=2)
    assert a.statuses() == [WcStatus.WR_FLUSH_ERR]
    back = a.region(300)
    write(b, b.region(payload(300, 3)), back)
    Link(a, b).run()
    assert bytes(back.view) == payload(300, 3)
    a.qp.modify(QpState.RTS)
    write(a, source, target, wr_id=3)
    Link(a, b).run()
    assert a.statuses() == [WcStatus.SUCCESS]
    assert bytes(target.view) == payload(300)


# unreliable connections


def uc_messages(a, b, fate, *, count=3, packets=4):
    """Write ``count`` messages and tell which arrived whole."""
    targets = [b.region(packets * 256) for _ in range(count)]
    for index, target in enumerate(targets):
        b.qp.post_recv(RecvWr(wr_id=index))
        write(
            a,
            a.region(payload(packets * 256, index)),
            target,
            opcode=WrOpcode.RDMA_WRITE_WITH_IMM,
            imm_data=index,
        )
    Link(a, b, fate).run()
    whole = [bytes(t.view) == payload(packets * 256, i) for i, t in enumerate(targets)]
    return whole, [c.imm_data for c in b.recv_cq.poll()]


@pytest.mark.parametrize("lost", [4, 5, 6, 7])
def test_uc_gap_costs_the_rest_of_its_message_only(lost):
    a, b = pair(qp_type=QpType.UC)
    whole, reported = uc_messages(a, b, drop_data(lost))
    assert whole == [True, False, True]
    assert reported == [0, 2]
    counters = b.qp.counters
    assert counters.received_packets == 11
    assert counters.received_bytes == 11 * 256
    assert counters.discarded_packets == 7 - lost
    assert counters.delivered_packets + counters.discarded_packets == 11
    assert counters.naks_sent == counters.acks_sent == 0


def test_uc_receive_request_of_a_broken_send_serves_the_next():
    a, b = pair(qp_type=QpType.UC)
    target = b.region(1000)
    b.qp.post_recv(RecvWr(wr_id=8, sge=target.sge()))
    send(a, a.region(payload(1000, 1)), wr_id=1)
    send(a, a.region(payload(1000, 2)), wr_id=2)
    Link(a, b, drop_data(2)).run()
    received = only(b.recv_cq.poll())
    assert (received.wr_id, received.opcode, received.byte_len) == (8, WcOpcode.RECV, 1000)
    assert bytes(target.view) == payload(1000, 2)


def test_uc_without_receive_request_drops_the_message():
    a, b = pair(qp_type=QpType.UC)
    send(a, a.region(payload(1000)))
    Link(a, b).run()
    assert a.statuses() == [WcStatus.SUCCESS]
    assert b.recv_cq.poll() == []
    assert b.qp.counters.discarded_packets == 4
    assert b.qp.state is QpState.RTS


def test_uc_bad_key_is_silent():
    a, b = pair(qp_type=QpType.UC)
    target = b.region(100)
    a.qp.post_send(SendWr(wr_id=1, opcode=WrOpcode.RDMA_WRITE, sge=a.region(100).sge(), rkey=12345))
    write(a, a.region(payload(100)), target)
    Link(a, b).run()
    assert b.qp.state is QpState.RTS
    assert bytes(target.view) == payload(100)


# what is not for this queue pair


def test_packets_of_another_peer_service_or_state_are_ignored():
    _, b = pair()
    b.qp.post_recv(RecvWr(wr_id=5))
    stranger = forged(Operation.SEND_ONLY, 0)
    stranger.source_ip = 0x0A000003
    b.qp.receive(stranger, 0.0)
    b.qp.receive(forged(0x20 | Operation.SEND_ONLY, 0), 0.0)
    b.qp.modify(QpState.ERR)
    b.qp.receive(forged(Operation.SEND_ONLY, 0), 0.0)
    assert b.qp.counters.received_packets == 0
    assert not b.qp.has_response
    assert only(b.recv_cq.poll()).status is WcStatus.WR_FLUSH_ERR


def test_a_nak_is_still_sent_after_the_error_it_reports():
    _, b = pair()
    b.qp.receive(forged(Operation.SEND_MIDDLE, 0, b"", bytes(256)), 0.0)
    assert b.qp.state is QpState.ERR
    assert b.qp.has_response
    assert b.qp.next_packet(DELAY) is not None
    assert b.qp.next_packet(DELAY) is None
