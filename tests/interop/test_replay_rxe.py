"""Queue pairs do what Linux' software RDMA NIC (rxe, kernel 6.1) did, packet for packet.

The captures under tests/data/replay are of one connection each, with single packets dropped on
purpose; those whose name ends in ``_rx`` were taken at the responder, the others at the requester.
One end of the capture is played to our queue pair, and what that sends is compared with the other.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from scapy.utils import rdpcap

from tests.unit.traffic.qp_link import REMOTE, Endpoint, endpoint, path
from traffic.codec import Packet, ipv4_int, parse
from traffic.opcodes import FIRST, HAS_IMMEDIATE, IS_SEND, LAST, REQUEST_FLAGS
from traffic.verbs import RecvWr, SendWr, WcStatus, WrOpcode

REPLAY = Path(__file__).parents[1] / "data" / "replay"
INITIAL_PSN = {"psn_wrap": (1 << 24) - 4, "mtu4096": 14138711}
REQUESTER_IP = ipv4_int("10.0.0.1")


def packets_of(name: str) -> list[Packet]:
    packets = [parse(bytes(frame)) for frame in rdpcap(str(REPLAY / f"{name}.pcap"))]
    assert None not in packets
    return [packet for packet in packets if packet is not None]


def from_requester(packet: Packet) -> bool:
    return packet.source_ip == REQUESTER_IP


def connected(own: int, peer: int, name: str, mtu: int) -> Endpoint:
    """An endpoint in RTS with the initial PSN of the captured requester, in both directions."""
    psn = INITIAL_PSN.get(name, 4096)
    end = endpoint(0x11)
    end.qp.to_init()
    end.qp.to_rtr(path=path(own, peer), path_mtu=mtu, dest_qp_num=0x12, rq_psn=psn)
    end.qp.to_rts(sq_psn=psn, timeout=14)
    return end


def answers(packet: Packet) -> tuple[int, int, int]:
    return packet.psn, packet.syndrome, packet.msn


@pytest.mark.parametrize(
    ("name", "mtu"),
    [
        ("psn_wrap", 1024),
        ("mtu4096", 4096),
        ("16_writes_coalesced_acks", 1024),
        ("drop_write_middle_rx", 1024),
        ("drop_write_last_rx", 1024),
        ("drop_ack_rx", 1024),
        ("drop_send_first_rx", 1024),
        ("nak_remote_access", 1024),
    ],
)
def test_the_responder_answers_alike(name, mtu):
    captured = packets_of(name)
    end = connected(2, 1, name, mtu)
    firsts = [packet for packet in captured if packet.dma_length]
    base = min((packet.virtual_address for packet in firsts), default=0)
    region = end.pd.reg_mr(bytearray(1 << 17), REMOTE, virtual_address=base)
    end.qp.post_recv(RecvWr(wr_id=1, sge=region.sge()))
    given = []
    for packet in captured:
        if not from_requester(packet):
            continue
        # Our key stands for theirs, save where theirs was wrong on purpose.
        packet.rkey = 0 if name == "nak_remote_access" else region.rkey
        end.qp.receive(packet, 0.0)
        while (frame := end.qp.next_packet(0.0)) is not None:
            answer = parse(bytes(frame))
            assert answer is not None
            given.append(answers(answer))
    expected = [answers(packet) for packet in captured if not from_requester(packet)]
    assert given == expected != []


def post_what_was_sent(end: Endpoint, sent: list[Packet], mtu: int) -> int:
    """Post the messages of the capture, each once; returns how many there are."""
    newest, length, messages = -1, 0, 0
    by_order = {(packet.psn - sent[0].psn) & 0xFFFFFF: packet for packet in sent}
    for order in sorted(by_order):
        packet = by_order[order]
        flags = REQUEST_FLAGS[packet.opcode]
        assert order == newest + 1
        newest = order
        length = len(packet.payload) + (0 if flags & FIRST else length)
        if flags & LAST:
            assert not flags & HAS_IMMEDIATE
            region = end.region(length)
            opcode = WrOpcode.SEND if flags & IS_SEND else WrOpcode.RDMA_WRITE
            end.qp.post_send(SendWr(wr_id=messages, opcode=opcode, sge=region.sge()))
            messages += 1
    return messages


@pytest.mark.parametrize(
    ("name", "mtu"),
    [
        ("psn_wrap", 1024),
        ("mtu4096", 4096),
        ("16_writes_coalesced_acks", 1024),
        ("drop_write_middle", 1024),
        ("drop_write_last", 1024),
        ("drop_ack", 1024),
        ("drop_send_first", 1024),
        ("rnr_nak", 1024),
    ],
)
def test_the_requester_sends_alike(name, mtu):
    """Including what it sends again, and in which order, after NAK, RNR NAK and timeout."""
    captured = packets_of(name)
    if name == "rnr_nak":
        # rxe had its second packet under way when the first was refused; ours would wait.
        captured[1], captured[2] = captured[2], captured[1]
    end = connected(1, 2, name, mtu)
    sent = [packet for packet in captured if from_requester(packet)]
    messages = post_what_was_sent(end, sent, mtu)
    now = 0.0
    for packet in captured:
        if not from_requester(packet):
            end.qp.receive(packet, now)
            continue
        if not end.qp.has_request(now):
            timeout = end.qp.next_timeout()
            assert timeout is not None, "rxe sent a packet for which there is no reason"
            now = timeout
            end.qp.handle_timeout(now)
        frame = end.qp.next_packet(now)
        assert frame is not None
        ours = parse(bytes(frame))
        assert ours is not None
        assert (ours.psn, ours.opcode, len(ours.payload)) == (
            packet.psn,
            packet.opcode,
            len(packet.payload),
        )
        assert ours.ack_request >= packet.ack_request
    assert not end.qp.has_request(now)
    assert end.statuses() == [WcStatus.SUCCESS] * messages
