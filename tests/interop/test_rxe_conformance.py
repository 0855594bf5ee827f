"""Our queue pair in the place of Linux' rxe: given the same packets, it does the same.

Differences that are meant, each tested as such:

* After an RNR NAK, rxe also answers the packets behind the refused one, with a NAK (PSN sequence
  error) for the refused packet. Ours stays silent: the requester waits for the RNR timer anyway.
* The first packet of a retransmission asks for an ACK, so that the requester learns at once that it
  got through; rxe asks with the last packet only.
* A SEND that exceeds the receive buffer: rxe answers "remote operational error", ours "invalid
  request", the code that the IBTA specification has for a length error.
"""

from __future__ import annotations

import pytest

from tests.interop.captures import capture as path_of
from tests.interop.replay import (
    Capture,
    CapturedMemory,
    comparable,
    create_queue_pair,
    drain,
    play_to_requester,
    play_to_responder,
)
from traffic.memory import ProtectionDomain
from traffic.opcodes import IS_SEND, REQUEST_FLAGS
from traffic.verbs import QpState, RecvWr, WcStatus, WrOpcode

# name of the capture, requesting host, path MTU
CONNECTIONS = [
    ("rxe_send", 1, 1024),
    ("rxe_write", 1, 1024),
    ("rxe_rc_pingpong", 1, 1024),
    ("rxe_rc_pingpong", 2, 1024),
    ("verbs_all_ops", 1, 1024),
    ("verbs_16_writes_coalesced_acks", 1, 1024),
    ("verbs_mtu4096", 1, 4096),
    ("verbs_psn_wrap", 1, 1024),
    ("verbs_tclass_0x6a", 1, 1024),
]
# captured at the responder, behind the loss
LOSSES_AT_RESPONDER = [
    ("verbs_drop_ack_rx", 1, 1024),
    ("verbs_drop_send_first_rx", 1, 1024),
    ("verbs_drop_write_last_rx", 1, 1024),
    ("verbs_drop_write_middle_rx", 1, 1024),
]
# captured at the requester, before the loss
LOSSES_AT_REQUESTER = [
    ("verbs_drop_ack", 1, 1024),
    ("verbs_drop_send_first", 1, 1024),
    ("verbs_drop_write_last", 1, 1024),
    ("verbs_drop_write_middle", 1, 1024),
]

WRITES = (WrOpcode.RDMA_WRITE, WrOpcode.RDMA_WRITE_WITH_IMM)


def responder(capture, mtu, **fields):
    memory = CapturedMemory(**fields)
    pair = create_queue_pair(capture, rank=3 - capture.requester, path_mtu=mtu, domain=memory)
    return pair, memory


@pytest.mark.parametrize(("name", "requester", "mtu"), CONNECTIONS + LOSSES_AT_RESPONDER)
def test_responder_answers_as_rxe_did(name, requester, mtu):
    capture = Capture(path_of(name), requester=requester)
    pair, _ = responder(capture, mtu)
    assert capture.responses
    assert play_to_responder(capture, pair) == capture.responses


@pytest.mark.parametrize(("name", "requester", "mtu"), CONNECTIONS + LOSSES_AT_RESPONDER)
def test_responder_delivers_every_message_once(name, requester, mtu):
    capture = Capture(path_of(name), requester=requester)
    pair, memory = responder(capture, mtu)
    play_to_responder(capture, pair)
    messages = capture.messages()
    assert memory.written == [
        (message.virtual_address, bytes(message.payload))
        for message in messages
        if message.opcode in WRITES and message.payload
    ]
    consuming = [message for message in messages if message.opcode is not WrOpcode.RDMA_WRITE]
    completions = pair.recv_cq.poll()
    for completion, message in zip(completions, consuming, strict=True):
        assert completion.status is WcStatus.SUCCESS
        assert completion.byte_len == len(message.payload)
        assert completion.imm_data == message.immediate


@pytest.mark.parametrize(("name", "requester", "mtu"), CONNECTIONS + LOSSES_AT_REQUESTER)
def test_requester_sends_as_rxe_did(name, requester, mtu):
    """The same frames in the same order, retransmissions included, the same bytes."""
    capture = Capture(path_of(name), requester=requester)
    pair = create_queue_pair(capture, rank=requester, path_mtu=mtu, domain=ProtectionDomain())
    compared = 0
    for theirs, ours, resent in play_to_requester(capture, pair):
        assert comparable(ours, resent=resent) == comparable(theirs, resent=resent)
        compared += 1
    assert compared == len(capture.requests)
    assert len(list(drain(pair, 1.0))) == 0
    completions = pair.send_cq.poll()
    assert [completion.status for completion in completions] == [WcStatus.SUCCESS] * len(
        capture.messages()
    )


def test_uc_writes():
    capture = Capture(path_of("rxe_write_uc"))
    pair, memory = responder(capture, 1024)
    assert play_to_responder(capture, pair) == []
    assert memory.written == [
        (message.virtual_address, bytes(message.payload)) for message in capture.messages()
    ]
    pair = create_queue_pair(capture, rank=1, path_mtu=1024, domain=ProtectionDomain())
    for theirs, ours, _ in play_to_requester(capture, pair):
        assert comparable(ours) == comparable(theirs)


def test_remote_access_error():
    capture = Capture(path_of("verbs_nak_remote_access"))
    pair, _ = responder(capture, 1024, refused=frozenset({capture.requests[0].rkey}))
    assert play_to_responder(capture, pair) == capture.responses == [(0x62, 4096, 0)]
    assert pair.state is QpState.ERR


def test_receiver_not_ready():
    capture = Capture(path_of("verbs_rnr_nak"))
    pair, _ = responder(capture, 1024)
    refusals = sum(syndrome == 0x2C for syndrome, _, _ in capture.responses)
    answers = play_to_responder(capture, pair, post_after_rnr_naks=refusals)
    assert answers == [answer for answer in capture.responses if answer[0] != 0x60]
    assert answers != capture.responses


def test_requester_waits_when_the_receiver_is_not_ready():
    capture = Capture(path_of("verbs_rnr_nak"))
    # rxe had handed its second packet to the device when the first NAK came; ours would wait
    capture.packets[1:3] = reversed(capture.packets[1:3])
    pair = create_queue_pair(capture, rank=1, path_mtu=1024, domain=ProtectionDomain())
    for theirs, ours, resent in play_to_requester(capture, pair):
        assert comparable(ours, resent=resent) == comparable(theirs, resent=resent)
    assert pair.counters.rnr_naks_received == 6
    assert pair.counters.timeouts == 0
    assert [completion.status for completion in pair.send_cq.poll()] == [WcStatus.SUCCESS]


def test_send_longer_than_the_buffer():
    capture = Capture(path_of("verbs_nak_send_too_long"))
    assert capture.responses == [(0x63, 4096, 0)]
    pair, memory = responder(capture, 1024)
    pair.post_recv(RecvWr(wr_id=0, sge=memory.reg_mr(bytearray(64)).sge()))
    assert play_to_responder(capture, pair) == [(0x61, 4096, 0)]
    assert pair.state is QpState.ERR


def test_the_captures_contain_what_they_are_for():
    sends = [
        REQUEST_FLAGS[packet.opcode] & IS_SEND
        for packet in Capture(path_of("verbs_all_ops")).requests
    ]
    assert 0 < sum(map(bool, sends)) < len(sends)
    psns = [packet.psn for packet in Capture(path_of("verbs_psn_wrap")).requests]
    assert psns == sorted(psns, key=lambda psn: (psn + 4) & 0xFFFFFF)
    assert 0 in psns
