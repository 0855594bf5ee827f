"""Unreliable connections: no answers, and a gap costs one message."""

from __future__ import annotations

import pytest
from qp_link import (
    Link,
    drop_data,
    only,
    pair,
    payload,
    send,
    write,
)

from traffic.memory import Sge
from traffic.verbs import (
    QpState,
    QpType,
    RecvWr,
    SendWr,
    WcOpcode,
    WcStatus,
    WrOpcode,
)


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
