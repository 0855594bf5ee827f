"""Cost of the transport in us per 4 KiB packet: two queue pairs back to back, without sockets.

    python -m tests.bench.transport [--packets N] [--mtu BYTES] [--recovery NAME]

Prints one line per side and per step; the requester's side includes handling the ACKs, the
responder's includes parsing, the ICRC, the copy into memory and the ACKs.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

from traffic.codec import Packet, parse
from traffic.memory import AccessFlags, ProtectionDomain
from traffic.qp import PathAttributes, QueuePair
from traffic.recovery import recovery_names
from traffic.verbs import CompletionQueue, QpType, SendWr, WcStatus, WrOpcode

MESSAGE_PACKETS = 256
BATCH = 64


@dataclass
class Costs:
    """Microseconds per data packet."""

    send: float
    parse: float
    receive: float
    acknowledge: float

    @property
    def sender(self) -> float:
        return self.send + self.acknowledge

    @property
    def receiver(self) -> float:
        return self.parse + self.receive


def connected_pair(recovery: str, mtu: int) -> tuple[QueuePair, QueuePair, CompletionQueue]:
    """Two RC queue pairs in RTS and the sender's completion queue."""
    pairs = []
    send_cq = CompletionQueue()
    for qp_num in (1, 2):
        pairs.append(
            QueuePair(
                qp_num=qp_num,
                qp_type=QpType.RC,
                pd=ProtectionDomain(),
                send_cq=send_cq,
                recv_cq=CompletionQueue(),
                recovery=recovery,
            )
        )
    for own, peer in ((0, 1), (1, 0)):
        qp = pairs[own]
        qp.to_init()
        qp.to_rtr(
            path=PathAttributes(
                source_mac=f"02:00:00:00:00:0{own}",
                dest_mac=f"02:00:00:00:00:0{peer}",
                source_ip=f"10.0.0.{own + 1}",
                dest_ip=f"10.0.0.{peer + 1}",
            ),
            path_mtu=mtu,
            dest_qp_num=pairs[peer].qp_num,
            rq_psn=0,
        )
        qp.to_rts(sq_psn=0)
    return pairs[0], pairs[1], send_cq


def timed_send(sender: QueuePair) -> tuple[list[bytes], float]:
    """Up to a batch of frames, and seconds, without the copy that takes the place of a socket."""
    clock = time.perf_counter
    frames: list[bytes] = []
    copying = 0.0
    start = clock()
    while len(frames) < BATCH and (frame := sender.next_packet(0.0)) is not None:
        before = clock()
        frames.append(bytes(frame))
        copying += clock() - before
    return frames, clock() - start - copying


def timed_parse(frames: list[bytes]) -> tuple[list[Packet], float]:
    """The packets of the frames, and seconds."""
    start = time.perf_counter()
    packets = [parse(frame) for frame in frames]
    elapsed = time.perf_counter() - start
    assert None not in packets
    return [packet for packet in packets if packet is not None], elapsed


def timed_receive(qp: QueuePair, packets: list[Packet]) -> tuple[list[bytes], float]:
    """The responses to packets, and seconds."""
    start = time.perf_counter()
    responses = []
    for packet in packets:
        qp.receive(packet, 0.0)
    while qp.has_response:
        response = qp.next_packet(0.0)
        assert response is not None
        responses.append(bytes(response))
    return responses, time.perf_counter() - start


def measure(*, packets: int, mtu: int, recovery: str) -> Costs:
    """Write messages of 256 packets until at least ``packets`` have been sent."""
    sender, receiver, send_cq = connected_pair(recovery, mtu)
    size = MESSAGE_PACKETS * mtu
    source = sender.pd.reg_mr(bytearray(size))
    target = receiver.pd.reg_mr(bytearray(size), AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE)
    costs = Costs(0.0, 0.0, 0.0, 0.0)
    messages = -(-packets // MESSAGE_PACKETS)
    for wr_id in range(messages):
        sender.post_send(
            SendWr(
                wr_id=wr_id,
                opcode=WrOpcode.RDMA_WRITE,
                sge=source.sge(),
                remote_addr=target.virtual_address,
                rkey=target.rkey,
            )
        )
        while sender.has_request(0.0):
            frames, seconds = timed_send(sender)
            costs.send += seconds
            arrived, seconds = timed_parse(frames)
            costs.parse += seconds
            responses, seconds = timed_receive(receiver, arrived)
            costs.receive += seconds
            acks, seconds = timed_parse(responses)
            costs.acknowledge += seconds + timed_receive(sender, acks)[1]
        (completion,) = send_cq.poll()
        assert completion.status is WcStatus.SUCCESS
    scale = 1e6 / (messages * MESSAGE_PACKETS)
    return Costs(*(value * scale for value in vars(costs).values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packets", type=int, default=51_200)
    parser.add_argument("--mtu", type=int, default=4096)
    parser.add_argument("--recovery", choices=recovery_names(QpType.RC), default="go-back-n")
    arguments = parser.parse_args()
    costs = measure(packets=arguments.packets, mtu=arguments.mtu, recovery=arguments.recovery)
    print(f"{arguments.packets} packets of {arguments.mtu} bytes, {arguments.recovery}")
    print(f"sender   {costs.sender:6.2f} us/packet (send {costs.send:.2f}, "
          f"ACKs {costs.acknowledge:.2f})")  # fmt: skip
    print(f"receiver {costs.receiver:6.2f} us/packet (parse and ICRC {costs.parse:.2f}, "
          f"execute and answer {costs.receive:.2f})")  # fmt: skip


if __name__ == "__main__":
    main()
