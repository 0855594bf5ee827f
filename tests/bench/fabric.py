"""Verified all-to-all through the fabric, against a bare blaster through the same fabric.

16 single-GPU servers, 4 leaves, 4 spines; every rank sends to every other. Ours is a whole run:
reliable queue pairs, ICRC, payload compared, ledger. The blaster is one process per server, too,
which sends prebuilt frames of the same sizes and 5-tuples through the same ports and counts what
arrives. Both are offered more than the machine can carry by a low dilation, at several loads, and
count what arrives at the NICs; the best of each is compared.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from testbed.collect import collect
from testbed.experiment import Experiment
from testbed.isolation import network_namespace_of
from testbed.probe import ProbeResult
from testbed.progress import QuietProgress
from testbed.scenario import build_topology, plan_traffic
from testbed.schema import Scenario
from testbed.syscalls import die_with_parent
from tests.bench.table import Row
from tests.isolated import isolated_in_directory
from traffic.codec import FrameTemplate
from traffic.opcodes import RC, Operation
from traffic.packet_socket import PacketSocket

TARGET = 0.6
PAYLOAD = 4096
MESSAGE = 1 << 20
DILATIONS = (800, 2000, 4000)
"""16 NICs of 400 Gb/s offer 8, 3.2 and 1.6 Gb/s of wall time."""
BURST = 8
"""Frames that a blaster sends before it looks whether any have arrived."""
PATIENCE = 1.0
"""Wall seconds without an arrival after which the blaster's last frame is taken to have arrived."""
LONGEST_BLAST = 60
"""Wall seconds after which a blaster is killed, which fails the benchmark."""


def scenario(dilation: float) -> Scenario:
    """The all-to-all at that dilation. Windows keep queues short, so that nothing is lost."""
    return Scenario.from_document(
        {
            "name": "bench-all-to-all",
            "dilation": dilation,
            "topology": {
                "kind": "leaf-spine",
                "leaves": 4,
                "spines": 4,
                "servers_per_leaf": 4,
                "link_rate": "400 Gbps",
            },
            "switch": {"buffer": {"policy": "static", "limit": "infinite"}},
            "nic": {"send_window": 128, "timeout": 20},
            "workload": {"kind": "all-to-all", "message_size": f"{MESSAGE} B", "window": 4},
        }
    )


@dataclass(frozen=True, slots=True)
class Blast:
    """What the blaster achieved: payload bit/s that arrived, and the share of frames that did."""

    goodput: float
    arrived: float


class _BlastedExperiment(Experiment):
    """An experiment that blasts its fabric before its own traffic."""

    blast: Blast

    def build(self) -> ProbeResult:
        probe = super().build()
        self.blast = _blast(self)
        return probe


def _blast(experiment: Any) -> Blast:
    """Send every flow's frames from one forked process per server, and count."""
    topology, plan = experiment._topology, experiment._plan
    servers = topology.servers
    counts = np.frombuffer(mmap.mmap(-1, 16 * len(servers)), dtype=np.float64).reshape(-1, 2)
    start_read, start_write = os.pipe()
    children = []
    for index, server in enumerate(servers):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                die_with_parent()
                signal.alarm(LONGEST_BLAST)
                os.close(start_write)
                nic = topology.nic(index)
                with network_namespace_of(experiment.fabric.pid_of(server.name)):
                    sock = PacketSocket(nic.name)
                frames = _frames(experiment, index)
                os.read(start_read, 1)
                _blaster(sock, frames, len(plan.connections) // len(servers), counts[index])
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    time.sleep(0.5)
    start = time.monotonic()
    os.close(start_write)  # all of them read the end of file
    os.close(start_read)
    statuses = [os.waitpid(pid, 0)[1] for pid in children]
    if any(statuses):
        raise RuntimeError("a blaster failed")
    offered = len(plan.connections) * MESSAGE // PAYLOAD
    frames = counts[:, 0].sum()
    return Blast(
        goodput=frames * PAYLOAD * 8 / (counts[:, 1].max() - start), arrived=frames / offered
    )


def _frames(experiment: Any, rank: int) -> list[bytes]:
    """One prebuilt middle packet of a WRITE per flow of a rank."""
    topology, plan = experiment._topology, experiment._plan
    frames = []
    for connection in plan.connections:
        if connection.source_rank != rank:
            continue
        source, destination = topology.nic(rank), topology.nic(connection.destination_rank)
        template = FrameTemplate(
            source_mac=source.mac,
            dest_mac=topology.nodes[source.peer_node].router_mac,
            source_ip=source.address,
            dest_ip=destination.address,
            source_port=connection.source_port,
            dest_qp=connection.destination_qp_num,
            tos=0,
            max_body=PAYLOAD,
        )
        frames.append(
            bytes(template.stamp(RC | Operation.RDMA_WRITE_MIDDLE, 0, b"", bytes(PAYLOAD)))
        )
    return frames


def _blaster(sock: PacketSocket, frames: list[bytes], flows: int, counts: Any) -> None:
    """Send all, take turns between flows, receive until nothing comes any more."""
    left = flows * MESSAGE // PAYLOAD
    expected = left
    arrived = turn = 0
    last = time.monotonic()
    while arrived < expected:
        blocked = left == 0
        for _ in range(min(BURST, left)):
            try:
                sock.send(frames[turn % flows])
            except BlockingIOError:
                blocked = True
                break
            turn += 1
            left -= 1
        if received := len(sock.receive()):
            arrived += received
            last = time.monotonic()
        elif blocked:
            readable, _, _ = select.select([sock.fileno()], [], [], 0.002 if left else PATIENCE)
            if not readable and not left:
                break
    counts[:] = arrived, last


@dataclass(frozen=True, slots=True)
class Measured:
    """One offered load: goodputs in payload bit/s of wall time."""

    dilation: float
    ours: float
    blast: Blast
    faults: dict[str, int]
    """What was not as it should be, and how often; empty if the run was exact."""

    @property
    def note(self) -> str:
        """In one line."""
        faults = ", ".join(f"{count} {what}" for what, count in self.faults.items())
        return (
            f"dilation {self.dilation:g}: {self.ours / 1e6:.0f} Mb/s, {faults or 'exact'}; "
            f"blaster {self.blast.goodput / 1e6:.0f} Mb/s, {self.blast.arrived:.1%} arrived"
        )


def measure(dilation: float, directory: Path) -> Measured:
    """Blast, then run, through one fabric. Must run in isolated namespaces."""
    spec = scenario(dilation)
    topology = build_topology(spec)
    experiment = _BlastedExperiment(
        spec,
        topology,
        plan_traffic(spec, topology),
        dilation=dilation,
        directory=directory,
        scratch=Path("/run/bench"),
        progress=QuietProgress(),
    )
    m = experiment.run()
    result = collect("bench", {}, spec, m, traced_flow=-1)
    finish = max(flow.finish for report in m.reports for flow in report.flows.values())
    faults = {
        "flows not finished": sum(flow.finish is None for flow in result.flows),
        "wrong elements": sum(rank.wrong_elements for rank in result.ranks),
        "packets unaccounted for": result.ledger.open,
    }
    return Measured(
        dilation=dilation,
        ours=m.plan.payload_bytes * 8 / (finish * dilation),
        blast=experiment.blast,
        faults={what: count for what, count in faults.items() if count},
    )


def run() -> list[Row]:
    """All loads; the best of each side. A run that is not exact counts for nothing."""
    measured = [isolated_in_directory(partial(measure, dilation)) for dilation in DILATIONS]
    ours = max((m.ours for m in measured if not m.faults), default=0.0)
    other = max(m.blast.goodput for m in measured)
    return [
        Row(
            "all-to-all, 16",
            f"{ours / 1e6:.0f} Mb/s",
            f"{other / 1e6:.0f} Mb/s",
            ours / other,
            TARGET,
            notes=tuple(m.note for m in measured),
        )
    ]
