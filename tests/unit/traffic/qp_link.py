"""Two queue pairs and the network between them, which is a function of frames.

Time is emulated: a frame takes ``DELAY`` seconds, and timers fire when nothing else is left to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from traffic.codec import FrameTemplate, Packet, parse
from traffic.memory import AccessFlags, MemoryRegion, ProtectionDomain
from traffic.opcodes import REQUEST_FLAGS, Operation
from traffic.qp import PathAttributes, QueuePair
from traffic.qp.attributes import Reordering
from traffic.recovery import recovery_names
from traffic.verbs import CompletionQueue, QpType, SendWr, WcStatus, WorkCompletion, WrOpcode

RECOVERIES = recovery_names(QpType.RC)
DELAY = 2.0**-20
"""About a microsecond, and a power of two: times add up exactly."""
IN_ORDER = Reordering()
REMOTE = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE


def path(source: int, dest: int, **kwargs: int) -> PathAttributes:
    return PathAttributes(
        source_mac=f"02:00:00:00:00:{source:02x}",
        dest_mac=f"02:00:00:00:00:{dest:02x}",
        source_ip=f"10.0.0.{source}",
        dest_ip=f"10.0.0.{dest}",
        **kwargs,
    )


@dataclass
class Endpoint:
    """A queue pair with a protection domain and completion queues of its own."""

    qp: QueuePair
    pd: ProtectionDomain
    send_cq: CompletionQueue
    recv_cq: CompletionQueue
    regions: list[MemoryRegion] = field(default_factory=list)

    def region(self, content: bytes | int, access: AccessFlags = REMOTE) -> MemoryRegion:
        region = self.pd.reg_mr(bytearray(content), access)
        self.regions.append(region)
        return region

    def statuses(self) -> list[WcStatus]:
        return [completion.status for completion in self.send_cq.poll()]


def endpoint(qp_num: int, qp_type: QpType = QpType.RC, **kwargs: object) -> Endpoint:
    pd, send_cq, recv_cq = ProtectionDomain(), CompletionQueue(), CompletionQueue()
    qp = QueuePair(
        qp_num=qp_num, qp_type=qp_type, pd=pd, send_cq=send_cq, recv_cq=recv_cq, **kwargs
    )
    return Endpoint(qp, pd, send_cq, recv_cq)


def connect(
    a: Endpoint,
    b: Endpoint,
    *,
    path_mtu: int = 256,
    psn: int = 0,
    timeout: int = 14,
    retry_cnt: int = 7,
    rnr_retry: int = 7,
    min_rnr_timer: int = 12,
) -> None:
    """Take both to RTS; ``psn`` is the initial PSN of ``a``'s requests, ``b`` begins at 77."""
    for own, peer, source, dest, rq_psn in ((a, b, 1, 2, 77), (b, a, 2, 1, psn)):
        own.qp.to_init()
        own.qp.to_rtr(
            path=path(source, dest),
            path_mtu=path_mtu,
            dest_qp_num=peer.qp.qp_num,
            rq_psn=rq_psn,
            min_rnr_timer=min_rnr_timer,
        )
        own.qp.to_rts(
            sq_psn=psn if own is a else 77,
            timeout=timeout,
            retry_cnt=retry_cnt,
            rnr_retry=rnr_retry,
        )


def pair(
    recovery: str | None = None,
    *,
    qp_type: QpType = QpType.RC,
    send_window: int | None = None,
    ack_interval: int = 64,
    reordering: Reordering = IN_ORDER,
    **connection: int,
) -> tuple[Endpoint, Endpoint]:
    """Two connected endpoints."""
    a, b = (
        endpoint(
            qp_num,
            qp_type,
            recovery=recovery,
            send_window=send_window,
            ack_interval=ack_interval,
            reordering=reordering,
        )
        for qp_num in (0x11, 0x12)
    )
    connect(a, b, **connection)
    return a, b


def is_data(packet: Packet) -> bool:
    return REQUEST_FLAGS[packet.opcode] != 0


Fate = Callable[[int, Packet], list[float]]
"""From the number of a frame (from 0, over the whole link) and its packet to the extra delays of
the copies that arrive: [] loses it, [0.0] delivers it, [0.0, 0.0] doubles it, [DELAY] is late."""


def deliver(_: int, packet: Packet) -> list[float]:
    return [0.0]


def drop_data(*numbers: int) -> Fate:
    """Lose the data packets with these numbers, counted from 0 in the order they are sent."""
    seen = -1

    def fate(_: int, packet: Packet) -> list[float]:
        nonlocal seen
        if not is_data(packet):
            return [0.0]
        seen += 1
        return [] if seen in numbers else [0.0]

    return fate


def drop_control(*numbers: int) -> Fate:
    """Lose the ACKs and NAKs with these numbers, counted from 0 in the order they are sent."""
    seen = -1

    def fate(_: int, packet: Packet) -> list[float]:
        nonlocal seen
        if is_data(packet):
            return [0.0]
        seen += 1
        return [] if seen in numbers else [0.0]

    return fate


class Link:
    """Runs two endpoints against each other until nothing is left to do.

    Each end sends one frame every ``gap`` seconds, so that packets overtake one another only if a
    fate delays them. ``frames`` holds all that were sent, lost ones included.
    """

    def __init__(
        self, a: Endpoint, b: Endpoint, fate: Fate = deliver, *, gap: float = DELAY / 8
    ) -> None:
        self.ends = (a.qp, b.qp)
        self.fate = fate
        self.gap = gap
        self.now = 0.0
        self.sent = 0
        self.frames: list[bytes] = []
        self._queue: list[tuple[float, int, int, bytes]] = []

    def _send(self) -> bool:
        """Let both ends send a frame each."""
        sent = False
        for side, qp in enumerate(self.ends):
            frame = qp.next_packet(self.now)
            if frame is None:
                continue
            sent = True
            self.frames.append(bytes(frame))
            packet = parse(self.frames[-1])
            assert packet is not None
            for delay in self.fate(self.sent, packet):
                self._queue.append((self.now + DELAY + delay, self.sent, 1 - side, self.frames[-1]))
            self.sent += 1
        return sent

    def _receive(self) -> None:
        due = sorted(entry for entry in self._queue if entry[0] <= self.now)
        self._queue = [entry for entry in self._queue if entry[0] > self.now]
        for _, _, side, frame in due:
            packet = parse(frame)
            assert packet is not None
            self.ends[side].receive(packet, self.now)

    def run(self, max_steps: int = 20_000) -> float:
        """Until neither frames nor timers are left. Returns the time. Fails if that never comes."""
        for _ in range(max_steps):
            self._receive()
            if self._send():
                self.now += self.gap
                continue
            moments = [entry[0] for entry in self._queue]
            timers = [qp.next_timeout() for qp in self.ends]
            moments += [timer for timer in timers if timer is not None]
            if not moments:
                return self.now
            self.now = max(self.now, min(moments))
            for qp in self.ends:
                qp.handle_timeout(self.now)
        raise AssertionError(f"no end after {max_steps} steps: {self.ends}")


def write(
    a: Endpoint, source: MemoryRegion, target: MemoryRegion, *, wr_id: int = 1, **kwargs: object
) -> None:
    """Post an RDMA WRITE of the whole ``source`` to the start of ``target``."""
    a.qp.post_send(
        SendWr(
            wr_id=wr_id,
            opcode=kwargs.pop("opcode", WrOpcode.RDMA_WRITE),
            sge=source.sge(),
            remote_addr=target.virtual_address,
            rkey=target.rkey,
            **kwargs,
        )
    )


def payload(length: int, seed: int = 0) -> bytes:
    """Bytes in which no 256-byte piece equals another, nearly."""
    return bytes((i * 31 + (i >> 8) * 7 + seed) & 0xFF for i in range(length))


def only(completions: list[WorkCompletion]) -> WorkCompletion:
    (completion,) = completions
    return completion


def send(a: Endpoint, source: MemoryRegion, *, wr_id: int = 1) -> None:
    """Post a SEND of the whole ``source``."""
    a.qp.post_send(SendWr(wr_id=wr_id, opcode=WrOpcode.SEND, sge=source.sge()))


def forged(opcode: int, psn: int, extension: bytes = b"", content: bytes = b"") -> Packet:
    """A packet to the second endpoint of a pair that its peer did not make."""
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
    packet = parse(bytes(template.stamp(opcode, psn, extension, content)))
    assert packet is not None
    return packet


def forged_answer(psn: int, syndrome: int) -> Packet:
    """An ACK or NAK to the first endpoint of a pair that its peer did not make."""
    packet = forged(Operation.ACKNOWLEDGE, psn, bytes([syndrome, 0, 0, 0]))
    packet.source_ip = 0x0A000002
    return packet
