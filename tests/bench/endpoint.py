"""The NIC against scapy: what one CPU needs to send and to receive a 4 KiB packet over a veth.

Both sides of both ends run in one process, one after the other in batches, so that each gets its
own time: CPU seconds, the kernel's share included.

Ours, sending: post_send, scheduling and pacing, stamping, ICRC, socket, and handling the ACKs;
receiving: socket, delay line, parsing, ICRC, responder, the copy into registered memory, ACKs.
scapy's, sending: building the packet (its own BTH, which computes the ICRC) and sending it through
its layer 2 socket; receiving: its socket with dissection, and checking the ICRC.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from pyroute2 import IPRoute
from scapy.config import conf
from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from testbed.clock import EmulatedClock
from testbed.topology.base import ROCE_MTU
from tests.bench.table import Row
from traffic.memory import AccessFlags, MemoryRegion, ProtectionDomain
from traffic.nic import Nic
from traffic.opcodes import RC, Operation
from traffic.packet_socket import PacketSocket
from traffic.qp import PathAttributes, QueuePair
from traffic.verbs import CompletionQueue, QpType, SendWr, WcStatus, WrOpcode

PAYLOAD = 4096
MESSAGE_PACKETS = 256
BATCH = 64
MESSAGES = 120
ROUNDS = 3
SCAPY_PACKETS = 320
SCAPY_BATCH = 8
"""As many as fit into the receive buffer that scapy's socket has by default."""
TARGET = 50.0

_NAMES = ("veth-a", "veth-b")
_MACS = ("02:00:00:00:00:0a", "02:00:00:00:00:0b")
_ADDRESSES = ("10.0.0.1", "10.0.0.2")


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU seconds per packet."""

    send: float
    receive: float

    @property
    def both(self) -> float:
        return self.send + self.receive


class _End:
    """One NIC with one queue pair and the memory that it sends from or receives into."""

    def __init__(self, end: int) -> None:
        self.socket = PacketSocket(_NAMES[end])
        self.nic = Nic(rate=math.inf, latency=lambda hops: 0.0, lead=math.inf)
        self.completions = CompletionQueue()
        self.qp = QueuePair(
            qp_num=end + 1,
            qp_type=QpType.RC,
            pd=ProtectionDomain(),
            send_cq=self.completions,
            recv_cq=self.completions,
        )
        self.memory: MemoryRegion = self.qp.pd.reg_mr(
            bytearray(MESSAGE_PACKETS * PAYLOAD),
            AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE,
        )
        self.nic.add_queue_pair(self.qp)
        self.qp.to_init()
        self.qp.to_rtr(
            path=PathAttributes(
                source_mac=_MACS[end],
                dest_mac=_MACS[1 - end],
                source_ip=_ADDRESSES[end],
                dest_ip=_ADDRESSES[1 - end],
            ),
            path_mtu=PAYLOAD,
            dest_qp_num=2 - end,
            rq_psn=0,
        )
        self.qp.to_rts(sq_psn=0)

    def receive(self, clock: EmulatedClock) -> int:
        """Take in what has arrived, and return the number of frames."""
        frames = self.socket.receive(BATCH)
        now = clock.now()
        for frame in frames:
            self.nic.arrive(frame, now)
        self.nic.advance(clock.now())
        return len(frames)

    def send(self, clock: EmulatedClock, most: int = BATCH) -> int:
        """Send up to ``most`` frames, and return their number."""
        for sent in range(most):
            frame = self.nic.next_frame(clock.now())
            if frame is None:
                return sent
            self.socket.send(frame)
        return most


def make_veth() -> None:
    """The pair of interfaces that everything here runs over."""
    with IPRoute() as ip:
        ip.link("add", ifname=_NAMES[0], kind="veth", peer=_NAMES[1])
        for name, mac in zip(_NAMES, _MACS, strict=True):
            index = ip.link_lookup(ifname=name)[0]
            ip.link("set", index=index, address=mac, mtu=ROCE_MTU, state="up")


def measure_ours() -> Costs:
    """WRITE messages of 1 MiB; every byte is compared at the end."""
    clock = EmulatedClock.shared(1.0)
    sender, receiver = _End(0), _End(1)
    sender.memory.view[:] = bytes(i * 7 & 255 for i in range(PAYLOAD)) * MESSAGE_PACKETS
    cpu = time.process_time
    sending = receiving = 0.0
    for wr_id in range(MESSAGES):
        start = cpu()
        sender.qp.post_send(
            SendWr(
                wr_id=wr_id,
                opcode=WrOpcode.RDMA_WRITE,
                sge=sender.memory.sge(),
                remote_addr=receiver.memory.virtual_address,
                rkey=receiver.memory.rkey,
            )
        )
        sender.nic.activate(sender.qp)
        arrived = 0
        while arrived < MESSAGE_PACKETS:
            sender.send(clock)
            middle = cpu()
            sending += middle - start
            arrived += receiver.receive(clock)
            receiver.send(clock)
            start = cpu()
            receiving += start - middle
            sender.receive(clock)
        (completion,) = sender.completions.poll()
        sending += cpu() - start
        assert completion.status is WcStatus.SUCCESS
    assert bytes(receiver.memory.view) == bytes(sender.memory.view)
    packets = MESSAGES * MESSAGE_PACKETS
    assert receiver.nic.counts.delivered_data.packets == packets
    for end in (sender, receiver):
        end.socket.close()
    return Costs(sending / packets, receiving / packets)


def _scapy_packet(psn: int, payload: bytes) -> Packet:
    return (
        Ether(src=_MACS[0], dst=_MACS[1])
        / IP(src=_ADDRESSES[0], dst=_ADDRESSES[1], flags="DF", ttl=64, id=0)
        / UDP(sport=49152, dport=4791, chksum=0)
        / BTH(opcode=RC | Operation.RDMA_WRITE_MIDDLE, dqpn=2, psn=psn, migreq=0)
        / Raw(payload)
    )


def measure_scapy() -> Costs:
    """The middle packets of such a message; every one is checked."""
    payload = bytes(i * 7 & 255 for i in range(PAYLOAD))
    sender = conf.L2socket(iface=_NAMES[0])
    receiver = conf.L2socket(iface=_NAMES[1])
    receiver.ins.settimeout(5.0)  # a lost packet ends the benchmark, not the patience
    cpu = time.process_time
    sending = receiving = 0.0
    for first in range(0, SCAPY_PACKETS, SCAPY_BATCH):
        start = cpu()
        for psn in range(first, first + SCAPY_BATCH):
            sender.send(_scapy_packet(psn, payload))
        sending += cpu() - start
        for psn in range(first, first + SCAPY_BATCH):
            start = cpu()
            packet = receiver.recv()
            valid = packet[BTH].icrc == int.from_bytes(packet[BTH].compute_icrc(b""), "big")
            receiving += cpu() - start
            assert valid
            assert packet[BTH].psn == psn
    sender.close()
    receiver.close()
    return Costs(sending / SCAPY_PACKETS, receiving / SCAPY_PACKETS)


def run() -> list[Row]:
    """Measure both, in turns, and take the best of each. Must run in isolated namespaces."""
    make_veth()
    ours, scapys = [], []
    for _ in range(ROUNDS):
        ours.append(measure_ours())
        scapys.append(measure_scapy())
    return [
        _row("send 4 KiB", min(c.send for c in ours), min(c.send for c in scapys)),
        _row("receive 4 KiB", min(c.receive for c in ours), min(c.receive for c in scapys)),
        _row("send and receive", min(c.both for c in ours), min(c.both for c in scapys)),
    ]


def _row(name: str, ours: float, scapys: float) -> Row:
    return Row(name, f"{ours * 1e6:.1f} us", f"{scapys * 1e6:.0f} us", scapys / ours, TARGET)
