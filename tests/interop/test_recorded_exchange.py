"""What two of our queue pairs say to each other under loss, seen by Wireshark and icrc_check."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.interop import icrc_check
from tests.wireshark import matching, needs_tshark
from traffic import codec
from traffic.memory import AccessFlags, ProtectionDomain
from traffic.qp import PathAttributes, QueuePair
from traffic.recovery import recovery_names
from traffic.verbs import CompletionQueue, QpType, RecvWr, SendWr, WcStatus, WrOpcode

SIZE = 40_001
PATH_MTU = 1024
LOST = (3, 7, 8, 30, 39)
"""Which frames of each message do not arrive, the first time they are sent."""


class Host:
    """One queue pair, its memory, and the frames it sent."""

    def __init__(self, index: int, recovery: str) -> None:
        self.domain = ProtectionDomain()
        access = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE
        content = bytes(range(251)) * (SIZE // 251 + 1) if index == 0 else bytes(SIZE)
        self.memory = bytearray(content[:SIZE])
        self.region = self.domain.reg_mr(self.memory, access)
        self.pair = QueuePair(
            qp_num=0x100 + index,
            qp_type=QpType.RC,
            pd=self.domain,
            send_cq=CompletionQueue(),
            recv_cq=CompletionQueue(),
            recovery=recovery,
        )
        self.pair.to_init()
        path = PathAttributes(
            source_mac=f"02:00:00:00:00:0{index + 1}",
            dest_mac=f"02:00:00:00:00:0{2 - index}",
            source_ip=f"10.0.0.{index + 1}",
            dest_ip=f"10.0.0.{2 - index}",
        )
        self.pair.to_rtr(path=path, path_mtu=PATH_MTU, dest_qp_num=0x101 - index, rq_psn=0xFFFFF0)
        self.pair.to_rts(sq_psn=0xFFFFF0)


def exchange(recovery: str) -> tuple[list[bytes], Host, Host]:
    """Two messages from one host to the other, over a wire that loses some; all frames sent."""
    sender, receiver = Host(0, recovery), Host(1, recovery)
    for index in range(2):
        receiver.pair.post_recv(RecvWr(wr_id=index, sge=receiver.region.sge()))
        sender.pair.post_send(
            SendWr(
                wr_id=index,
                opcode=[WrOpcode.RDMA_WRITE_WITH_IMM, WrOpcode.SEND][index],
                sge=sender.region.sge(),
                remote_addr=receiver.region.virtual_address,
                rkey=receiver.region.rkey,
                imm_data=[7, None][index],
            )
        )
    packets = -(-SIZE // PATH_MTU)
    lost = {0xFFFFF0 + message * packets + place for message in range(2) for place in LOST}
    recorded: list[bytes] = []
    now = 0.0
    while len(sender.pair.send_cq) < 2:
        progress = False
        for source, target in ((sender, receiver), (receiver, sender)):
            if (view := source.pair.next_packet(now)) is None:
                continue
            progress = True
            frame = bytes(view)
            recorded.append(frame)
            packet = codec.parse(frame)
            assert packet is not None
            psn = packet.psn if packet.psn >= 0xFFFFF0 else packet.psn + (1 << 24)
            if source is sender and psn in lost:
                lost.remove(psn)
            else:
                target.pair.receive(packet, now)
        if not progress:
            timeout = sender.pair.next_timeout()
            assert timeout is not None
            now = timeout
            sender.pair.handle_timeout(now)
    return recorded, sender, receiver


def write_pcap(path: Path, recorded: list[bytes]) -> None:
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for number, frame in enumerate(recorded):
            file.write(struct.pack("<IIII", 0, number, len(frame), len(frame)) + frame)


@pytest.fixture(scope="module", params=recovery_names(QpType.RC))
def recorded(request, tmp_path_factory):
    frames, sender, receiver = exchange(request.param)
    path = tmp_path_factory.mktemp(request.param) / "exchange.pcap"
    write_pcap(path, frames)
    return path, frames, sender, receiver


def test_the_exchange_succeeded(recorded):
    _, _, sender, receiver = recorded
    assert [wc.status for wc in sender.pair.send_cq.poll()] == [WcStatus.SUCCESS] * 2
    assert receiver.memory == sender.memory
    assert sender.pair.counters.retransmitted_packets >= 2 * len(LOST)
    assert receiver.pair.counters.naks_sent > 0


def test_independent_icrc(recorded):
    path, frames, _, _ = recorded
    assert icrc_check.check(path.read_bytes()) == (len(frames), [])


@needs_tshark
def test_wireshark_understands_all_of_it(recorded):
    path, frames, _, receiver = recorded
    assert matching(path, "infiniband") == len(frames)
    assert matching(path, "_ws.malformed") == 0
    assert matching(path, "infiniband.aeth.syndrome == 0x60") == receiver.pair.counters.naks_sent
