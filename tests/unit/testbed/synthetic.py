"""A realistic RunResult without a fabric: a small packet-level simulation of an incast.

Senders at line rate share one switch port of limited depth; receivers recover by go-back-N or
selective repeat, with a local ACK timeout for tail losses. It exists to give the report, the
metrics and the series data of the shape that a real run has; it is not an oracle for protocols.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np

from controllers.planning.catalogue import leaf_spine
from controllers.planning.fabric import ArrayFabric
from controllers.planning.flows import make_flows
from controllers.planning.placement import RoutedFabric
from controllers.planning.schemes import create_planner
from testbed.fidelity import FidelityMeasurements, Lateness, LinkRate, judge
from testbed.ledger import Count, NicCounters, PortCounters, TrafficClass, build_ledger
from testbed.results import (
    DropRecord,
    Environment,
    ExpectationResult,
    FlowResult,
    PortResult,
    QueueSamples,
    RankResult,
    RunResult,
    TopologySummary,
    VariantResult,
    build_psn_trace,
    compute_metrics,
    downsample_queues,
)

FRAME = 4096 + 58
RATE = 400e9
SLOT = (FRAME + 24) * 8 / RATE
LATENCY = 2e-6
TIMEOUT = 67e-3
WINDOW = 128
PORT = "leaf1-rank0"


@dataclass
class Sender:
    packets: int
    next_psn: int = 0
    acked: int = 0
    resend: list[int] = field(default_factory=list)
    sent: int = 0
    resent: int = 0
    naks: int = 0
    timeouts: int = 0
    highest: int = 0
    deadline: float = TIMEOUT
    finish: float | None = None
    idle: bool = False


@dataclass
class Receiver:
    expected: int = 0
    got: set[int] = field(default_factory=set)
    nak_sent: bool = False
    asked: set[int] = field(default_factory=set)


class Incast:
    """One run: ``senders`` flows of ``packets`` packets each into one port of ``limit`` bytes."""

    def __init__(self, *, senders: int, packets: int, limit: int, selective: bool, seed: int):
        random = np.random.default_rng(seed)
        self.limit, self.selective = limit, selective
        self.senders = [Sender(packets) for _ in range(senders)]
        self.receivers = [Receiver() for _ in range(senders)]
        self.starts = sorted(random.uniform(0, 3e-6, senders).tolist())
        self.events: list[tuple[float, int, str, int, int]] = []
        self.count = 0
        self.depth = self.max_depth = 0
        self.busy_until = 0.0
        self.drops: list[tuple[float, int, int]] = []
        self.depth_trace: list[tuple[float, int]] = [(0.0, 0)]
        self.psn_events: dict[int, list[tuple[float, str, int]]] = defaultdict(list)
        self.delivered = self.enqueued = self.control = 0

    def at(self, time: float, kind: str, flow: int, psn: int = 0) -> None:
        self.count += 1
        heapq.heappush(self.events, (time, self.count, kind, flow, psn))

    def run(self) -> None:
        for flow, start in enumerate(self.starts):
            self.at(start, "send", flow)
            self.at(start + TIMEOUT, "timer", flow)
        while self.events:
            now, _, kind, flow, psn = heapq.heappop(self.events)
            getattr(self, kind)(now, flow, psn)

    def wake(self, now: float, flow: int) -> None:
        if self.senders[flow].idle:
            self.senders[flow].idle = False
            self.at(now, "send", flow)

    def send(self, now: float, flow: int, _psn: int) -> None:
        sender = self.senders[flow]
        if sender.finish is not None:
            return
        if sender.resend:
            psn = sender.resend.pop(0)
        elif sender.next_psn < min(sender.packets, sender.acked + WINDOW):
            psn = sender.next_psn
            sender.next_psn += 1
        else:
            sender.idle = True
            return
        again = psn < sender.highest
        sender.highest = max(sender.highest, psn + 1)
        sender.sent += 1
        sender.resent += again
        self.psn_events[flow].append((now, "resend" if again else "send", psn))
        self.at(now + LATENCY, "enqueue", flow, psn)
        self.at(now + SLOT, "send", flow)

    def enqueue(self, now: float, flow: int, psn: int) -> None:
        if self.depth + FRAME > self.limit:
            self.drops.append((now, flow, psn))
            return
        self.depth += FRAME
        self.enqueued += 1
        self.max_depth = max(self.max_depth, self.depth)
        self.depth_trace.append((now, self.depth))
        self.busy_until = max(now, self.busy_until) + SLOT
        self.at(self.busy_until, "dequeue", flow, psn)

    def dequeue(self, now: float, flow: int, psn: int) -> None:
        self.depth -= FRAME
        self.depth_trace.append((now, self.depth))
        self.at(now + LATENCY, "receive", flow, psn)

    def receive(self, now: float, flow: int, psn: int) -> None:
        receiver = self.receivers[flow]
        self.delivered += 1
        self.psn_events[flow].append((now, "receive", psn))
        fresh = self.selective or psn == receiver.expected
        if fresh:
            receiver.got.add(psn)
        while receiver.expected in receiver.got:
            receiver.expected += 1
            receiver.nak_sent = False
        self.control += 1
        if psn <= receiver.expected - 1:
            self.at(now + LATENCY, "ack", flow, receiver.expected)
        elif self.selective:
            for missing in range(receiver.expected, psn):
                if missing not in receiver.got and missing not in receiver.asked:
                    receiver.asked.add(missing)
                    self.at(now + LATENCY, "nak", flow, missing)
        elif not receiver.nak_sent:
            receiver.nak_sent = True
            self.at(now + LATENCY, "nak", flow, receiver.expected)

    def ack(self, now: float, flow: int, psn: int) -> None:
        sender = self.senders[flow]
        self.psn_events[flow].append((now, "ack", psn))
        if psn > sender.acked:
            sender.acked = psn
            sender.deadline = now + TIMEOUT
        if sender.acked >= sender.packets and sender.finish is None:
            sender.finish = now
        self.wake(now, flow)

    def nak(self, now: float, flow: int, psn: int) -> None:
        sender = self.senders[flow]
        sender.naks += 1
        self.psn_events[flow].append((now, "nak", psn))
        if self.selective:
            sender.resend.append(psn)
        else:
            sender.acked = max(sender.acked, psn)
            sender.next_psn = psn
        sender.deadline = now + TIMEOUT
        self.wake(now, flow)

    def timer(self, now: float, flow: int, _psn: int) -> None:
        sender = self.senders[flow]
        if sender.finish is not None:
            return
        if now + 1e-12 < sender.deadline:
            self.at(sender.deadline, "timer", flow)
            return
        sender.timeouts += 1
        self.psn_events[flow].append((now, "timeout", sender.acked))
        self.receivers[flow].asked.clear()
        if self.selective:
            sender.resend.append(sender.acked)
        else:
            sender.next_psn = sender.acked
        sender.deadline = now + TIMEOUT
        self.at(sender.deadline, "timer", flow)
        self.wake(now, flow)


def variant_result(
    name: str, *, senders: int, packets: int, limit: int, selective: bool, seed: int
) -> VariantResult:
    incast = Incast(senders=senders, packets=packets, limit=limit, selective=selective, seed=seed)
    incast.run()
    finish = max(s.finish for s in incast.senders)
    flows = [flow_result(incast, index) for index in range(senders)]
    drops = [
        DropRecord(
            time=time, interface=PORT, reason="port-limit", source=f"10.1.0.{flow + 2}",
            destination="10.1.0.1", source_port=49152 + flow, qp=100 + flow, psn=psn, bytes=FRAME,
        )
        for time, flow, psn in incast.drops
    ]  # fmt: skip
    worst = senders - 1
    resolution = 5e-8
    trace = np.array(incast.depth_trace)
    # As a run with idle skipping samples: densely while packets move, hardly at all in between.
    moments = np.unique(np.round(trace[:, 0] / resolution)) * resolution
    depth = trace[np.searchsorted(trace[:, 0], moments, side="right") - 1, 1].astype(np.int64)
    uplink = np.minimum(depth // 20 // FRAME * FRAME, 12 * FRAME)
    samples = QueueSamples(moments, {PORT: depth, "spine1-leaf1": uplink})
    variant = VariantResult(
        name=name,
        overrides={"nic.recovery": name},
        plan_hash="3f5a" * 16,
        dilation=10_000,
        wall_seconds=finish * 10_000 if finish < 0.01 else 11.0,
        skipped_wall_seconds=0 if finish < 0.01 else finish * 10_000 - 11.0,
        emulated_seconds=finish,
        lower_bound=senders * packets * SLOT + 3 * LATENCY,
        flows=flows,
        ranks=ranks(incast),
        ports=ports(incast),
        drops=drops[:2000],
        drops_total=len(drops),
        queue_series=downsample_queues(samples),
        psn_trace=build_psn_trace(
            flows[worst], incast.psn_events[worst], drops=drops, destination="10.1.0.1",
            destination_qp=100 + worst,
        ),
        ledger=ledger(incast),
        fidelity=judge(
            FidelityMeasurements(
                dilation=10_000, frame_time=SLOT, base_rtt=4 * LATENCY,
                nic_lateness=Lateness(3e-8, 1.1e-7, 6e-7),
                timer_lateness=Lateness(1e-8, 5e-8, 2e-7),
                forwarding_latency_wall=1.2e-3,
                link_rates=[LinkRate(PORT, RATE, RATE * 0.9985)],
                cpu_steal=0.001, lost_line_time=0.0, unsampled_share=0.001,
                socket_drops={"server1": 0, "leaf1": 0},
            )
        ),
    )  # fmt: skip
    return variant.model_copy(update={"metrics": compute_metrics(variant)})


def flow_result(incast: Incast, index: int) -> FlowResult:
    sender = incast.senders[index]
    return FlowResult(
        index=index, source_rank=index + 1, destination_rank=0, bytes=sender.packets * 4096,
        messages=1, completed_messages=1, start=incast.starts[index], finish=sender.finish,
        path=[f"rank{index + 1}-leaf2", "leaf2-spine1", "spine1-leaf1", PORT],
        source_port=49152 + index, qp_num=17 + index, sent_packets=sender.sent,
        sent_bytes=sender.sent * 4096, retransmitted_packets=sender.resent,
        retransmitted_bytes=sender.resent * 4096,
        delivered_packets=len(incast.receivers[index].got),
        delivered_bytes=sender.packets * 4096, naks=sender.naks, timeouts=sender.timeouts,
    )  # fmt: skip


def ranks(incast: Incast) -> list[RankResult]:
    senders = [
        RankResult(rank=i + 1, sent_packets=s.sent, sent_bytes=s.sent * FRAME,
                   lateness_p50=3e-8, lateness_p99=1.1e-7, lateness_max=6e-7)
        for i, s in enumerate(incast.senders)
    ]  # fmt: skip
    received = RankResult(
        rank=0, received_packets=incast.delivered, received_bytes=incast.delivered * FRAME
    )
    return [received, *senders]


def ports(incast: Incast) -> list[PortResult]:
    dropped = len(incast.drops)
    offered = incast.enqueued + dropped
    return [
        PortResult(
            interface=PORT, rate=RATE, limit=incast.limit, enqueued_packets=incast.enqueued,
            enqueued_bytes=incast.enqueued * FRAME, dequeued_packets=incast.enqueued,
            dequeued_bytes=incast.enqueued * FRAME, dropped_packets={"port-limit": dropped},
            dropped_bytes={"port-limit": dropped * FRAME}, max_depth=incast.max_depth,
            marked_packets=incast.enqueued // 3,
        ),
        PortResult(
            interface="spine1-leaf1", rate=RATE, limit=incast.limit, enqueued_packets=offered,
            enqueued_bytes=offered * FRAME, dequeued_packets=offered,
            dequeued_bytes=offered * FRAME, max_depth=12 * FRAME,
        ),
        PortResult(interface="leaf1-spine1", rate=RATE, limit=incast.limit),
    ]  # fmt: skip


def ledger(incast: Incast):
    """One switch, as if all ranks hung below leaf1; closes because the simulation conserves."""
    data, control = TrafficClass.DATA, TrafficClass.CONTROL
    total = sum(s.sent for s in incast.senders)
    frames = lambda n, size=FRAME: Count(n, n * size)  # noqa: E731
    nics = [
        NicCounters(
            "rank0-leaf1", "leaf1", {control: frames(incast.control, 62)},
            {data: frames(incast.delivered)},
        ),
        NicCounters(
            "rank1-leaf1", "leaf1", {data: frames(total)}, {control: frames(incast.control, 62)}
        ),
    ]  # fmt: skip
    queued = frames(incast.enqueued)
    back = frames(incast.control, 62)
    dropped = {"port-limit": {data: frames(len(incast.drops))}}
    switch_ports = [
        PortCounters(PORT, "leaf1", "rank0-leaf1", "server1", queued, queued, dropped=dropped),
        PortCounters("leaf1-rank1", "leaf1", "rank1-leaf1", "server2", back, back),
    ]
    return build_ledger(nics, switch_ports)


def run_result(
    *, senders: int = 7, packets: int = 256, limit: int = 400_000, seed: int = 1
) -> RunResult:
    """Go-back-N against selective repeat on the same incast."""
    size = {"senders": senders, "packets": packets, "limit": limit, "seed": seed}
    started = datetime(2025, 3, 14, 9, 26, 53, tzinfo=UTC)
    return RunResult(
        name="incast",
        description="Seven servers send to one at the same time through a shallow port.",
        scenario={
            "name": "incast",
            "topology": {"kind": "leaf-spine", "leaves": 2, "spines": 2, "servers_per_leaf": 4,
                         "link_rate": RATE},
            "asic": {"buffer": {"port_limit": limit}},
            "workload": {"kind": "incast", "senders": senders, "message_size": packets * 4096},
            "nic": {"timeout": 14, "retry_cnt": 7},
        },
        seed=seed,
        topology=TopologySummary(
            name="leaf-spine", tiers={"server": 8, "leaf": 2, "spine": 2}, ranks=8, links=12,
            link_rates={"server-leaf": RATE, "leaf-spine": RATE}, base_rtt=4 * LATENCY,
        ),
        environment=Environment(
            kernel="6.1.0-28-amd64", cpu="A CPU @ 2.50GHz", cores=2, memory=4 << 30,
            versions={"rocelab": "0.1.0", "python": "3.11.2", "openvswitch": "3.1.0"},
        ),
        started=started,
        finished=started + timedelta(seconds=41),
        variants=[
            variant_result("go-back-n", selective=False, **size),
            variant_result("selective-repeat", selective=True, **size),
        ],
        expectations=[
            ExpectationResult(
                text="retransmitted_bytes of go-back-n > selective-repeat", actual="17 MB > 2 MB",
                met=True,
            ),
            ExpectationResult(
                text="max_queue_depth <= 300 KB", actual="398 KB", met=False, variant="go-back-n"
            ),
        ],
    )  # fmt: skip


def routed_result(
    schemes: dict[str, str], *, fabric: ArrayFabric | None = None, recoveries: tuple[str, ...] = ()
) -> RunResult:
    """Variants whose link loads come from planning: name -> scheme; times each of ``recoveries``.

    All else is that of a small incast, so only loads, overrides and names mean anything.
    """
    plain = run_result(senders=3, packets=64, limit=200_000)
    fabric = fabric or leaf_spine("leaf-spine", leaves=4, spines=4, gpus_per_leaf=8)
    flows = make_flows(fabric, "shift", gpus=fabric.nics, qps=1, seed=2)
    variants = []
    for name, scheme in schemes.items():
        placement = create_planner(scheme, seed=2).place(RoutedFabric.of(fabric), flows)
        ports = routed_ports(fabric, placement.loads)
        for index, recovery in enumerate(recoveries or ("",)):
            overrides = {"routing.scheme": scheme} | (
                {"nic.recovery": recovery} if recovery else {}
            )
            variant = plain.variants[index % 2].model_copy(
                update={
                    "name": f"{name}-{recovery}" if recovery else name,
                    "overrides": overrides,
                    "ports": [*plain.variants[0].ports[:1], *ports],
                }
            )
            variants.append(variant.model_copy(update={"metrics": compute_metrics(variant)}))
    return plain.model_copy(update={"variants": variants, "expectations": []})


def routed_ports(fabric: ArrayFabric, loads: np.ndarray) -> list[PortResult]:
    """The switches' ports to each other, named as a topology names them; 8 MiB per flow."""
    stems = {1: "leaf", 2: "spine", 3: "core"}
    first = {tier: int(np.argmax(fabric.tiers == tier)) for tier in stems}

    def name(switch: int) -> str:
        tier = int(fabric.tiers[switch])
        return f"{stems[tier]}{switch - first[tier] + 1}"

    ports = []
    for edge in range(2 * fabric.links):
        link = edge % fabric.links
        ends = [int(fabric.lower[link]), int(fabric.upper[link])]
        source, target = ends if edge < fabric.links else reversed(ends)
        carried = int(loads[edge] / RATE * (8 << 20))
        ports.append(
            PortResult(
                interface=f"{name(source)}-{name(target)}", rate=RATE, on_path=True,
                tiers=(int(fabric.tiers[source]), int(fabric.tiers[target])),
                enqueued_bytes=carried, dequeued_bytes=carried, data_bytes=carried,
                enqueued_packets=carried // FRAME, dequeued_packets=carried // FRAME,
            )
        )  # fmt: skip
    return ports
