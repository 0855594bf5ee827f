"""Messages over a faithful network: segmentation, opcodes, completions, acknowledgements."""

from __future__ import annotations

import pytest
from qp_link import DELAY, RECOVERIES, Link, only, pair, payload, write

from traffic.codec import Packet, parse
from traffic.opcodes import Operation
from traffic.verbs import (
    QpType,
    RecvWr,
    SendFlags,
    SendWr,
    WcOpcode,
    WcStatus,
    WrOpcode,
)


def record(link: Link) -> list[Packet]:
    """All packets that cross the link, in the order they are sent."""
    packets: list[Packet] = []
    fate = link.fate

    def recording(number: int, packet: Packet) -> list[float]:
        packets.append(packet)
        return fate(number, packet)

    link.fate = recording
    return packets


@pytest.mark.parametrize("recovery", RECOVERIES)
@pytest.mark.parametrize("length", [0, 1, 3, 255, 256, 257, 512, 5000])
def test_write_of_any_length_arrives(recovery, length):
    a, b = pair(recovery)
    source, target = a.region(payload(length)), b.region(length + 8)
    write(a, source, target)
    Link(a, b).run()
    assert bytes(target.view) == payload(length) + bytes(8)
    completion = only(a.send_cq.poll())
    assert completion.status is WcStatus.SUCCESS
    assert completion.opcode is WcOpcode.RDMA_WRITE
    assert b.recv_cq.poll() == []
    assert a.qp.counters.retransmitted_packets == 0
    assert a.qp.counters.sent_bytes == b.qp.counters.delivered_bytes == length


@pytest.mark.parametrize("length", [0, 100, 256, 700])
def test_send_with_immediate_fills_the_posted_buffer(length):
    a, b = pair()
    source, target = a.region(payload(length)), b.region(1000)
    b.qp.post_recv(RecvWr(wr_id=7, sge=target.sge()))
    a.qp.post_send(
        SendWr(
            wr_id=1,
            opcode=WrOpcode.SEND_WITH_IMM,
            sge=source.sge(),
            imm_data=0xDEADBEEF,
            send_flags=SendFlags.SIGNALED | SendFlags.SOLICITED,
        )
    )
    Link(a, b).run()
    received = only(b.recv_cq.poll())
    assert (received.wr_id, received.status, received.opcode) == (
        7,
        WcStatus.SUCCESS,
        WcOpcode.RECV,
    )
    assert (received.byte_len, received.imm_data) == (length, 0xDEADBEEF)
    assert received.solicited
    assert bytes(target.view[:length]) == payload(length)


def test_write_with_immediate_takes_a_receive_request():
    a, b = pair()
    source, target = a.region(payload(600)), b.region(600)
    b.qp.post_recv(RecvWr(wr_id=9))
    write(a, source, target, opcode=WrOpcode.RDMA_WRITE_WITH_IMM, imm_data=5)
    Link(a, b).run()
    received = only(b.recv_cq.poll())
    assert (received.opcode, received.byte_len) == (WcOpcode.RECV_RDMA_WITH_IMM, 600)
    assert received.imm_data == 5
    assert bytes(target.view) == payload(600)


def test_opcodes_and_headers_of_a_segmented_write():
    a, b = pair(path_mtu=256, psn=10)
    source, target = a.region(payload(600)), b.region(600)
    write(a, source, target)
    link = Link(a, b)
    packets = record(link)
    link.run()
    data, acks = packets[:3], packets[3:]
    assert [p.opcode for p in data] == [
        Operation.RDMA_WRITE_FIRST,
        Operation.RDMA_WRITE_MIDDLE,
        Operation.RDMA_WRITE_LAST,
    ]
    assert [p.psn for p in data] == [10, 11, 12]
    assert [len(p.payload) for p in data] == [256, 256, 88]
    assert [p.ack_request for p in data] == [False, False, True]
    assert (data[0].virtual_address, data[0].rkey) == (target.virtual_address, target.rkey)
    assert data[0].dma_length == 600
    assert [(p.opcode, p.psn, p.msn) for p in acks] == [(Operation.ACKNOWLEDGE, 12, 1)]


@pytest.mark.parametrize(("interval", "acks"), [(1, 200), (64, 4), (1000, 1)])
def test_ack_interval(interval, acks):
    a, b = pair(ack_interval=interval)
    write(a, a.region(payload(200 * 256)), b.region(200 * 256))
    # So slow that no ACK waits for another.
    Link(a, b, gap=4 * DELAY).run()
    assert b.qp.counters.acks_sent == a.qp.counters.acks_received == acks


def test_acks_that_wait_are_merged():
    a, b = pair(ack_interval=1)
    write(a, a.region(payload(3 * 256)), b.region(3 * 256))
    for _ in range(3):
        b.qp.receive(parse(bytes(a.qp.next_packet(0.0))), 0.0)
    ack = parse(bytes(b.qp.next_packet(0.0)))
    assert (ack.psn, ack.msn) == (2, 1)
    assert not b.qp.has_response
    assert b.qp.counters.acks_sent == 1


def test_send_window_limits_the_packets_in_flight():
    a, b = pair(send_window=10)
    write(a, a.region(payload(100 * 256)), b.region(100 * 256))
    sent = 0
    while a.qp.has_request(0.0):
        frame = a.qp.next_packet(0.0)
        assert frame is not None
        last = parse(bytes(frame))
        sent += 1
    assert sent == 10
    assert last is not None
    assert last.ack_request, "without an ACK the window would never open"
    assert a.qp.next_packet(0.0) is None


def test_window_transfer_completes():
    a, b = pair(send_window=10)
    target = b.region(100 * 256)
    write(a, a.region(payload(100 * 256)), target)
    Link(a, b).run()
    assert bytes(target.view) == payload(100 * 256)
    assert a.qp.counters.sent_packets == 100


@pytest.mark.parametrize("recovery", RECOVERIES)
@pytest.mark.parametrize("distance", [1, 3, 50])
def test_psn_wraps_in_the_middle_of_a_message(recovery, distance):
    a, b = pair(recovery, psn=(1 << 24) - distance)
    target = b.region(100 * 256)
    write(a, a.region(payload(100 * 256)), target)
    link = Link(a, b)
    packets = record(link)
    link.run()
    assert bytes(target.view) == payload(100 * 256)
    assert packets[distance].psn == 0
    assert a.statuses() == [WcStatus.SUCCESS]


def test_unsignaled_requests_complete_silently_and_free_their_slots():
    a, b = pair()
    target = b.region(8)
    source = a.region(b"abcdefgh")
    for wr_id in range(3000):
        flags = SendFlags.SIGNALED if wr_id % 1000 == 999 else SendFlags.NONE
        write(a, source, target, wr_id=wr_id, send_flags=flags)
        if wr_id % 500 == 499:
            Link(a, b).run()
    assert [c.wr_id for c in a.send_cq.poll()] == [999, 1999, 2999]


def test_both_directions_at_once():
    a, b = pair()
    to_b, to_a = b.region(5000), a.region(7000)
    write(a, a.region(payload(5000, 1)), to_b)
    write(b, b.region(payload(7000, 2)), to_a)
    Link(a, b).run()
    assert bytes(to_b.view) == payload(5000, 1)
    assert bytes(to_a.view) == payload(7000, 2)


def test_responses_leave_before_requests():
    a, b = pair(ack_interval=1)
    write(a, a.region(payload(256)), b.region(256))
    write(b, b.region(payload(5000)), a.region(5000))
    request = parse(bytes(a.qp.next_packet(0.0)))
    assert request is not None
    assert not b.qp.has_response
    b.qp.receive(request, 0.0)
    assert b.qp.has_response
    assert b.qp.has_request(0.0)
    first = parse(bytes(b.qp.next_packet(0.0)))
    assert first is not None
    assert first.opcode == Operation.ACKNOWLEDGE


def test_uc_completes_when_the_last_packet_is_sent_and_gets_no_ack():
    a, b = pair(qp_type=QpType.UC)
    target = b.region(1000)
    write(a, a.region(payload(1000)), target)
    Link(a, b).run()
    assert only(a.send_cq.poll()).status is WcStatus.SUCCESS
    assert bytes(target.view) == payload(1000)
    assert b.qp.counters.acks_sent == 0
    assert a.qp.next_timeout() is None


def test_data_and_control_have_their_own_tos_and_the_peer_sees_ttl_and_ports():
    a, b = pair()
    write(a, a.region(b"12345678"), b.region(8))
    data = bytes(a.qp.next_packet(0.0))
    packet = parse(data)
    assert packet is not None
    b.qp.receive(packet, 0.0)
    ack = bytes(b.qp.next_packet(0.0))
    assert (data[15], ack[15]) == (0x6A, 0xC0)
    assert (packet.ttl, packet.ecn, packet.source_port) == (64, 2, 49152)
    a.qp.udp_source_port = 50000
    write(a, a.region(b"12345678"), b.region(8))
    moved = parse(bytes(a.qp.next_packet(0.0)))
    assert moved is not None
    assert moved.source_port == 50000
