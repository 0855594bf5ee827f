"""Probe frames before the traffic: every planned path carries a RoCE packet, both ways.

They prove that the fabric forwards RoCEv2 (ping would not), that the predicted paths are the real
ones, and how long the software switches take when all queues are empty; and they make the switches
learn every flow, so that the traffic's first packets are not slower than the rest.
"""

from __future__ import annotations

import select
import statistics
import struct
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from testbed.fabric import Fabric
from testbed.isolation import network_namespace_of
from testbed.routes import PlannedPath
from traffic.memory import ProtectionDomain
from traffic.packet_socket import PacketSocket
from traffic.plan import Connection, Plan
from traffic.qp import PathAttributes, QueuePair
from traffic.verbs import CompletionQueue, QpState, QpType, SendWr, WrOpcode

TIMEOUT = 5.0
"""Wall seconds in which a probe must arrive."""

TIMED_PROBES = 48
"""How many paths are timed, one packet at a time; the others are only crossed."""

BATCH = 64
"""Probes in flight at once while paths are only crossed."""

CLOSERS = 32
"""Threads that close sockets; a fabric may have a thousand of these."""

ETH_P_8021Q = 0x8100

_TAG = 12
_TTL = 22
_DEST_QP = slice(47, 50)


class ProbeError(RuntimeError):
    """The fabric does not carry what was planned; the message says which path or port."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One way of one direction of a connection. ``hops`` is the predicted number of switches."""

    source: str
    destination: str
    frame: bytes
    qp_num: int
    hops: int
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """``latency`` is the median wall time in seconds of one packet through the empty fabric over
    the longest path; ``probes`` is how many paths were crossed."""

    latency: float
    probes: int


class Prober:
    """Sends probes through a built fabric whose switches hold their entries.

    ``paths`` gives for (connection, reverse) the predicted ways. Each is crossed: where it is the
    only one, by a packet without a label, so that the switches' own choice is compared with the
    prediction; where packets may differ, by one with the label or source port that selects it.
    """

    def __init__(
        self,
        fabric: Fabric,
        plan: Plan,
        paths: Mapping[tuple[int, bool], tuple[PlannedPath, ...]],
    ) -> None:
        self._fabric = fabric
        self._probes = [
            self._probe(connection, reverse, way)
            for connection in plan.connections
            for reverse in (False, True)
            for way in paths[connection.index, reverse]
        ]

    def run(self) -> ProbeResult:
        """Cross every path, compare with the prediction, time some. Raises ProbeError."""
        with self._sockets() as sockets:
            # the switch daemon opens its sending socket with its first frame
            self._cross(self._probes[:1], sockets)
            self._fabric.ovs.enlarge_sockets()
            before = self._enqueued()
            for start in range(0, len(self._probes), BATCH):
                self._cross(self._probes[start : start + BATCH], sockets)
            self._compare(before, self._enqueued())
            longest = max(probe.hops for probe in self._probes)
            timed = [probe for probe in self._probes if probe.hops == longest][:TIMED_PROBES]
            latencies = [self._cross([probe], sockets) for probe in timed]
        return ProbeResult(statistics.median(latencies), len(self._probes))

    def _probe(self, connection: Connection, reverse: bool, way: PlannedPath) -> Probe:
        topology = self._fabric.topology
        path = way.interfaces
        source = topology.interfaces[path[0]]
        destination = topology.interfaces[topology.interfaces[path[-1]].peer]
        own_port = connection.reverse_source_port if reverse else connection.source_port
        qp_num = connection.source_qp_num if reverse else connection.destination_qp_num
        qp = QueuePair(
            qp_num=connection.destination_qp_num if reverse else connection.source_qp_num,
            qp_type=QpType.UC,
            pd=ProtectionDomain(),
            send_cq=CompletionQueue(),
            recv_cq=CompletionQueue(),
            recovery="none",
        )
        qp.modify(QpState.INIT)
        qp.modify(
            QpState.RTR,
            path=PathAttributes(
                source_mac=source.mac,
                dest_mac=topology.nodes[source.peer_node].router_mac,
                source_ip=source.address,
                dest_ip=destination.address,
                udp_source_port=own_port if way.source_port is None else way.source_port,
            ),
            path_mtu=4096,
            dest_qp_num=qp_num,
            rq_psn=0,
        )
        qp.modify(QpState.RTS, sq_psn=0)
        qp.post_send(SendWr(wr_id=0, opcode=WrOpcode.SEND))
        packet = qp.next_packet(0.0)
        assert packet is not None
        frame = bytes(packet)
        if way.label is not None:
            frame = frame[:_TAG] + struct.pack("!HH", ETH_P_8021Q, way.label) + frame[_TAG:]
        return Probe(source.name, destination.name, frame, qp_num, len(path) - 1, path)

    @contextmanager
    def _sockets(self) -> Iterator[dict[str, PacketSocket]]:
        names = {p.source for p in self._probes} | {p.destination for p in self._probes}
        sockets = dict[str, PacketSocket]()
        try:
            for name in sorted(names):
                server = self._fabric.topology.interfaces[name].node
                with network_namespace_of(self._fabric.pid_of(server)):
                    sockets[name] = PacketSocket(name)
            yield sockets
        finally:
            # each waits for the kernel's RCU, some 12 ms; side by side they share that
            with ThreadPoolExecutor(max_workers=CLOSERS) as pool:
                list(pool.map(PacketSocket.close, sockets.values()))

    def _cross(self, probes: list[Probe], sockets: dict[str, PacketSocket]) -> float:
        """Send probes and wait for all of them; returns the wall time in seconds."""
        missing = Counter((p.destination, p.qp_num, p.hops) for p in probes)
        by_descriptor = {sockets[name].fileno(): name for name in {p.destination for p in probes}}
        waiter = select.poll()
        for descriptor in by_descriptor:
            waiter.register(descriptor, select.POLLIN)
        start = time.perf_counter()
        for probe in probes:
            sockets[probe.source].send(probe.frame)
        while missing.total() > 0:
            left = TIMEOUT - (time.perf_counter() - start)
            readable = waiter.poll(max(0.0, left) * 1000)
            if not readable:
                raise ProbeError(self._lost(probes, missing))
            for descriptor, _ in readable:
                name = by_descriptor[descriptor]
                for frame in sockets[name].receive():
                    key = (name, int.from_bytes(frame[_DEST_QP], "big"), 64 - frame[_TTL])
                    if missing[key] <= 0:
                        raise ProbeError(
                            f"{name} got a probe for queue pair {key[1]:#x} over {key[2]} switches "
                            "that was not planned"
                        )
                    missing[key] -= 1
        return time.perf_counter() - start

    @staticmethod
    def _lost(probes: list[Probe], missing: Counter[tuple[str, int, int]]) -> str:
        lost = next(p for p in probes if missing[p.destination, p.qp_num, p.hops] > 0)
        return (
            f"no RoCE packet from {lost.source} reaches {lost.destination} within {TIMEOUT:.0f} s; "
            f"planned path: {', '.join(lost.path)}"
        )

    def _enqueued(self) -> dict[str, int]:
        counts = self._fabric.mmu.ports["enqueued"]["packets"].sum(axis=1)
        return dict(zip(self._fabric.topology.interfaces, counts.tolist(), strict=True))

    def _compare(self, before: dict[str, int], after: dict[str, int]) -> None:
        """The probes crossed every port exactly as often as predicted."""
        planned = Counter(interface for probe in self._probes for interface in probe.path)
        for interface, count in after.items():
            crossed = count - before[interface]
            if crossed != planned[interface]:
                raise ProbeError(
                    f"{interface} carried {crossed} probes; the predicted paths give "
                    f"{planned[interface]}"
                )
