"""Plays captured rxe traffic against one of our queue pairs, which takes the place of one end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.interop.icrc_check import frames
from traffic import codec
from traffic.memory import AccessFlags, ProtectionDomain
from traffic.opcodes import FIRST, HAS_IMMEDIATE, IS_SEND, LAST, REQUEST_FLAGS, Operation
from traffic.psn import PSN_MASK
from traffic.qp import PathAttributes, QueuePair
from traffic.verbs import CompletionQueue, QpType, RecvWr, SendFlags, SendWr, WrOpcode

ADDRESSES = {1: "10.0.0.1", 2: "10.0.0.2"}
BUFFER = 1 << 16
ACKNOWLEDGE = int(Operation.ACKNOWLEDGE)


@dataclass
class Message:
    """One request message of a capture."""

    opcode: WrOpcode
    virtual_address: int = 0
    rkey: int = 0
    immediate: int | None = None
    solicited: bool = False
    payload: bytearray = field(default_factory=bytearray)


class Capture:
    """A capture of one connection, seen from the host that sends the requests.

    ``packets`` are all frames and packets up to the first operation that we do not implement.
    """

    def __init__(self, path: Path, *, requester: int = 1) -> None:
        self.requester = requester
        self.packets: list[tuple[bytes, codec.Packet]] = []
        for frame, _ in frames(path.read_bytes()):
            packet = codec.parse(frame)
            assert packet is not None
            if not REQUEST_FLAGS[packet.opcode] and packet.opcode != ACKNOWLEDGE:
                break
            self.packets.append((frame, packet))

    def is_request(self, packet: codec.Packet) -> bool:
        """Whether a packet is a request of the chosen requester."""
        ours = packet.source_ip == codec.ipv4_int(ADDRESSES[self.requester])
        return ours and packet.opcode != ACKNOWLEDGE

    def is_response(self, packet: codec.Packet) -> bool:
        """Whether a packet is an answer to the chosen requester."""
        ours = packet.source_ip == codec.ipv4_int(ADDRESSES[self.requester])
        return not ours and packet.opcode == ACKNOWLEDGE

    @property
    def requests(self) -> list[codec.Packet]:
        """All request packets, in order."""
        return [packet for _, packet in self.packets if self.is_request(packet)]

    @property
    def responses(self) -> list[tuple[int, int, int]]:
        """(syndrome, PSN, MSN) of all answers, in order."""
        return [answer(packet) for _, packet in self.packets if self.is_response(packet)]

    @property
    def qp_type(self) -> QpType:
        """The transport service."""
        return QpType(self.requests[0].opcode >> 5)

    def first_psn(self) -> int:
        """The connection's first PSN: the smallest, modulo 2^24."""
        psns = [packet.psn for packet in self.requests]
        return min(psns, key=lambda psn: (psn - psns[0] + 64) & PSN_MASK)

    def messages(self) -> list[Message]:
        """The messages that the requests carry, without repetitions."""
        by_psn = {packet.psn: packet for packet in self.requests}
        found: list[Message] = []
        psn = self.first_psn()
        while psn in by_psn:
            packet = by_psn[psn]
            flags = REQUEST_FLAGS[packet.opcode]
            if flags & FIRST:
                kind = WrOpcode.SEND if flags & IS_SEND else WrOpcode.RDMA_WRITE
                found.append(Message(kind, packet.virtual_address, packet.rkey))
            message = found[-1]
            message.payload += packet.payload
            if flags & HAS_IMMEDIATE:
                message.immediate = packet.immediate
                message.opcode = {
                    WrOpcode.SEND: WrOpcode.SEND_WITH_IMM,
                    WrOpcode.RDMA_WRITE: WrOpcode.RDMA_WRITE_WITH_IMM,
                }[message.opcode]
            if flags & LAST:
                message.solicited = packet.solicited
            psn = (psn + 1) & PSN_MASK
        return found


def answer(packet: codec.Packet) -> tuple[int, int, int]:
    """(syndrome, PSN, MSN) of an acknowledge packet."""
    return packet.syndrome, packet.psn, packet.msn


class CapturedMemory(ProtectionDomain):
    """Takes writes to the addresses and keys of a capture, whatever they are.

    A key in ``refused`` is unknown here.
    """

    def __init__(self, *, refused: frozenset[int] = frozenset()) -> None:
        super().__init__()
        self._refused = refused
        self._pieces: list[tuple[int, bytearray]] = []

    def remote(self, rkey: int, addr: int, length: int, access: AccessFlags) -> memoryview | None:
        """Fresh memory for the range, recorded."""
        if rkey in self._refused:
            return None
        self._pieces.append((addr, bytearray(length)))
        return memoryview(self._pieces[-1][1])

    @property
    def written(self) -> list[tuple[int, bytes]]:
        """(address, contents) of each message, in order."""
        return [(address, bytes(piece)) for address, piece in self._pieces]


def create_queue_pair(
    capture: Capture, *, rank: int, path_mtu: int, domain: ProtectionDomain
) -> QueuePair:
    """A go-back-N queue pair with the numbers that host ``rank`` had in the capture, in RTS."""
    frame, sample = capture.packets[0]
    macs = frame[6:12], frame[0:6]
    dest_qp = sample.dest_qp
    if sample.source_ip != codec.ipv4_int(ADDRESSES[rank]):
        macs = macs[::-1]
        # both ends have the same number in these captures, each host counting from the same one
        assert all(packet.dest_qp == dest_qp for _, packet in capture.packets)
    completions = CompletionQueue()
    pair = QueuePair(
        qp_num=dest_qp,
        qp_type=capture.qp_type,
        pd=domain,
        send_cq=completions,
        recv_cq=completions,
    )
    pair.to_init()
    path = PathAttributes(
        source_mac=macs[0].hex(":"),
        dest_mac=macs[1].hex(":"),
        source_ip=ADDRESSES[rank],
        dest_ip=ADDRESSES[3 - rank],
        udp_source_port=sample.source_port,
        tos=frame[15],
        control_tos=frame[15],
        ttl=sample.ttl,
    )
    first = capture.first_psn()
    pair.to_rtr(path=path, path_mtu=path_mtu, dest_qp_num=dest_qp, rq_psn=first)
    pair.to_rts(sq_psn=first, timeout=14, retry_cnt=7, rnr_retry=7)
    return pair


def comparable(frame: bytes, *, resent: bool = False) -> str:
    """A frame in hex, with zeros for the IPv4 identification and the checksums that cover it.

    Linux counts the identification up; ours is constant, which RFC 6864 allows. In a retransmission
    the AckReq bit is left out too.
    """
    copy = bytearray(frame)
    copy[18:20] = copy[24:26] = bytes(2)
    copy[-4:] = bytes(4)
    if resent:
        copy[50] &= 0x7F
    return copy.hex()


def drain(pair: QueuePair, now: float) -> Iterator[codec.Packet]:
    """Everything a queue pair wants to send now."""
    while (frame := pair.next_packet(now)) is not None:
        packet = codec.parse(bytes(frame))
        assert packet is not None
        yield packet


def play_to_responder(
    capture: Capture, pair: QueuePair, *, post_after_rnr_naks: int = 0
) -> list[tuple[int, int, int]]:
    """Give our responder the captured requests; returns its answers as (syndrome, PSN, MSN).

    Receive work requests are posted at the start, or once it has sent that many RNR NAKs.
    """
    region = pair.pd.reg_mr(bytearray(BUFFER))
    posted = False
    answers: list[tuple[int, int, int]] = []
    for request in capture.requests:
        if not posted and pair.counters.rnr_naks_sent >= post_after_rnr_naks:
            posted = True
            for index in range(256):
                pair.post_recv(RecvWr(wr_id=index, sge=region.sge()))
        pair.receive(request, 0.0)
        answers += [answer(packet) for packet in drain(pair, 0.0)]
    return answers


def play_to_requester(capture: Capture, pair: QueuePair) -> Iterator[tuple[bytes, bytes, bool]]:
    """Make our requester send the captured messages, answered by the captured responses.

    Yields (captured frame, our frame, whether ours is a retransmission) for every captured request.
    When it has nothing to send where the capture has a frame, its next timer is let expire.
    """
    for index, message in enumerate(capture.messages()):
        region = pair.pd.reg_mr(message.payload) if message.payload else None
        pair.post_send(
            SendWr(
                wr_id=index,
                opcode=message.opcode,
                sge=None if region is None else region.sge(),
                remote_addr=message.virtual_address,
                rkey=message.rkey,
                imm_data=message.immediate,
                send_flags=SendFlags.SIGNALED
                | (SendFlags.SOLICITED if message.solicited else SendFlags.NONE),
            )
        )
    now = 0.0
    for frame, packet in capture.packets:
        if capture.is_response(packet):
            pair.receive(packet, now)
        elif capture.is_request(packet):
            resent = pair.counters.retransmitted_packets
            ours = pair.next_packet(now)
            if ours is None:
                timeout = pair.next_timeout()
                assert timeout is not None, f"neither frame nor timer for PSN {packet.psn}"
                now = max(now, timeout)
                pair.handle_timeout(now)
                ours = pair.next_packet(now)
            assert ours is not None, f"no frame where the capture has PSN {packet.psn}"
            yield frame, bytes(ours), pair.counters.retransmitted_packets > resent
