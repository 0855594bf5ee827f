"""What the peer or the consumer does wrong, and how that is reported."""

from __future__ import annotations

import pytest
from qp_link import (
    DELAY,
    RECOVERIES,
    REMOTE,
    Link,
    forged,
    forged_answer,
    only,
    pair,
    payload,
    send,
    write,
)

from traffic.codec import parse
from traffic.memory import AccessFlags, Sge
from traffic.opcodes import Operation
from traffic.verbs import (
    AsyncEvent,
    QpState,
    RecvWr,
    SendWr,
    WcStatus,
    WrOpcode,
)

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
    a.qp.receive(forged_answer(0, 0x7F), 0.0)
    assert a.statuses() == [WcStatus.BAD_RESP_ERR]


@pytest.mark.parametrize("syndrome", [0x1F, 0x60, 0x2C, 0x62, 0x7F, 0x40])
@pytest.mark.parametrize("psn", [5, (1 << 24) - 1, 1 << 23])
def test_answers_to_packets_not_in_flight_change_nothing(syndrome, psn):
    a, b = pair(psn=2)
    write(a, a.region(payload(3 * 256)), b.region(3 * 256))
    for _ in range(3):
        a.qp.next_packet(0.0)
    a.qp.receive(forged_answer(psn, syndrome), 0.0)
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
