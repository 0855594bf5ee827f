"""From raw measurements to the result of a variant: flows, ranks, ports, ledger, verdict."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any, get_args

import numpy as np

from testbed.asic.mmu import CLASSES, REASONS, UNLIMITED, Drop
from testbed.calibration import base_rtt
from testbed.durations import collective_result, job_result, least_time, traffic_span
from testbed.equal_cost import equal_cost_interfaces
from testbed.experiment import Measurements
from testbed.fidelity import (
    FRAMES_FAITHFUL,
    Fidelity,
    FidelityMeasurements,
    Lateness,
    judge,
)
from testbed.ledger import (
    ClassCounts,
    Count,
    Ledger,
    NicCounters,
    PortCounters,
    TrafficClass,
    build_ledger,
    total,
)
from testbed.results import (
    DROP_RECORD_LIMIT,
    DropRecord,
    FaultRecord,
    FlowResult,
    PathChange,
    PortResult,
    PsnEvent,
    PsnTrace,
    QueueSamples,
    RankResult,
    VariantResult,
    build_psn_trace,
    compute_metrics,
    downsample_queues,
)
from testbed.schema import Scenario
from testbed.timeline import Interval, intervals_of, summarise
from testbed.topology import NodeKind
from traffic.codec import FRAME_OVERHEAD, PACKET_HEADERS
from traffic.nic import is_data_opcode
from traffic.rank import ConnectionReport
from traffic.server import PortReport, RankReport

UNFINISHED = "unfinished"
"""Status of a flow that neither completed nor failed before the run was stopped."""

_CLASS_OF = dict(zip(CLASSES, TrafficClass, strict=True))


def collect(
    name: str, overrides: dict[str, Any], scenario: Scenario, m: Measurements, *, traced_flow: int
) -> VariantResult:
    """The result of one variant. ``traced_flow`` is the flow whose packets are shown."""
    flows = _flows(m)
    drops = _drops(m)
    ledger = _ledger(m)
    span = traffic_span(m, flows)
    result = VariantResult(
        name=name,
        overrides=overrides,
        plan_hash=m.plan.plan_hash(),
        dilation=m.dilation,
        wall_seconds=m.wall_seconds,
        emulated_seconds=span,
        skipped_wall_seconds=m.skipped_seconds,
        lower_bound=least_time(scenario, m, flows),
        collective=collective_result(scenario, m, flows),
        job=job_result(m),
        flows=flows,
        ranks=[_rank(m, report) for report in m.reports],
        ports=_ports(m),
        drops=drops[:DROP_RECORD_LIMIT],
        drops_total=len(drops),
        faults=[
            FaultRecord(
                time=record.time,
                what=record.what,
                subject=record.subject,
                links=list(record.links),
                flushed_packets=record.flushed,
                reaction=record.reaction,
            )
            for record in m.faults
        ],
        path_changes=[
            PathChange(
                time=change.time,
                paths={c: [list(w.interfaces) for w in ways] for c, ways in change.paths.items()},
            )
            for change in m.path_changes
        ],
        queue_series=downsample_queues(queue_samples(m)),
        psn_trace=_psn_trace(m, flows, drops, traced_flow),
        timeline=summarise(rank_intervals(m), m.plan.servers),
        ledger=ledger,
        fidelity=_fidelity(scenario, m, ledger),
    )
    return result.model_copy(update={"metrics": compute_metrics(result)})


def rank_intervals(m: Measurements) -> dict[int, list[Interval]]:
    """What was under way at each rank, and when."""
    timelines = {report.rank: report.timeline for report in m.reports}
    return intervals_of(m.plan, timelines, end=m.end_time)


def most_retransmitting_flow(m: Measurements) -> int:
    """Among the flows with a packet trace, the one with most to show; -1 if none is traced."""
    reports = _connection_reports(m)
    connection_of = [flow.connection for flow in m.plan.flows]
    traced = [f for f in _flows(m) if reports[connection_of[f.index], f.source_rank].trace]
    if not traced:
        return -1
    return max(traced, key=lambda flow: (flow.retransmitted_packets, -flow.index)).index


def queue_samples(m: Measurements) -> QueueSamples:
    """Depths of the switches' ports over time, at full resolution."""
    series = m.telemetry.series
    # What came in and what went out are read one after the other, and a packet may come between:
    # a queue never was deeper than the buffer program itself saw it.
    depths = np.minimum(series.as_array(), m.ports["max_depth"].astype(np.int64))
    return QueueSamples(
        times=np.array(series.times),
        depths={
            name: depths[:, column]
            for column, name in enumerate(series.names)
            if _on_switch(m, name)
        },
    )


def _on_switch(m: Measurements, interface: str) -> bool:
    node = m.topology.nodes[m.topology.interfaces[interface].node]
    return node.kind is NodeKind.SWITCH


def _connection_reports(m: Measurements) -> dict[tuple[int, int], ConnectionReport]:
    """By connection and rank, which is one of its ends."""
    return {
        (report.connection, report.rank): report
        for rank in m.reports
        for report in rank.connections
    }


def _flows(m: Measurements) -> list[FlowResult]:
    reports = _connection_reports(m)
    results = []
    counted: set[int] = set()
    for flow in m.plan.flows:
        c = m.plan.connections[flow.connection]
        group = m.plan.group(c.index)
        requester: Counter[str] = Counter()
        responder: Counter[str] = Counter()
        if c.index not in counted:  # a connection's counters go to the first of its flows
            for index in group:
                requester.update(reports[index, c.source_rank].counters)
                responder.update(reports[index, c.destination_rank].counters)
        counted.add(c.index)
        progress = m.reports[c.source_rank].flows.get(flow.index)
        completed = progress.completed if progress is not None else 0
        finished = progress is not None and completed == flow.messages
        status = progress.status if progress is not None else UNFINISHED
        if not finished and status == "IBV_WC_SUCCESS":
            status = UNFINISHED
        results.append(
            FlowResult(
                index=flow.index,
                source_rank=c.source_rank,
                destination_rank=c.destination_rank,
                bytes=flow.payload_bytes,
                messages=flow.messages,
                start=progress.start if progress is not None else flow.start,
                finish=progress.finish if progress is not None and finished else None,
                completed_messages=completed,
                path=list(m.paths[c.index][0].interfaces),
                paths=_ways(m, group),
                queue_pairs=len(group),
                source_port=c.source_port,
                qp_num=c.source_qp_num,
                sent_packets=requester["sent_packets"],
                sent_bytes=requester["sent_bytes"],
                retransmitted_packets=requester["retransmitted_packets"],
                retransmitted_bytes=requester["retransmitted_bytes"],
                received_packets=responder["received_packets"],
                delivered_packets=responder["delivered_packets"],
                delivered_bytes=responder["delivered_bytes"],
                naks=requester["naks_received"],
                rnr_naks=requester["rnr_naks_received"],
                timeouts=requester["timeouts"],
                out_of_order_packets=responder["out_of_order_packets"],
                path_migrations=requester["path_migrations"] + responder["path_migrations"],
                status=status,
            )
        )
    return results


def _ways(m: Measurements, group: Iterable[int]) -> list[list[str]]:
    """All ways of a connection's queue pairs, each once; nothing where there is one only."""
    ways = dict.fromkeys(way.interfaces for index in group for way in m.paths[index])
    return [list(way) for way in ways] if len(ways) > 1 else []


def _rank(m: Measurements, report: RankReport) -> RankResult:
    lateness = _percentiles(port.send_lateness for port in report.ports)
    counts = report.counts
    return RankResult(
        rank=report.rank,
        sent_packets=counts["sent_data"][0],
        sent_bytes=counts["sent_data"][1],
        received_packets=counts["delivered_data"][0],
        received_bytes=counts["delivered_data"][1],
        icrc_errors=counts["icrc_errors"][0],
        lateness_p50=lateness.p50,
        lateness_p99=lateness.p99,
        lateness_max=lateness.max,
        wrong_elements=report.wrong_elements,
    )


def _percentiles(samples: Iterable[Any]) -> Lateness:
    arrays = [np.frombuffer(sample, dtype=np.float64) for sample in samples if len(sample)]
    if not arrays:
        return Lateness(0.0, 0.0, 0.0)
    p50, p99, most = np.percentile(np.concatenate(arrays), [50, 99, 100]).tolist()
    return Lateness(p50, p99, most)


def _ports(m: Measurements) -> list[PortResult]:
    results = []
    on_path = equal_cost_interfaces(
        m.topology, ((c.source_rank, c.destination_rank) for c in m.plan.connections)
    )
    tier = {node.name: node.tier for node in m.topology.nodes.values()}
    for interface, port in zip(m.topology.interfaces.values(), m.ports, strict=True):
        if not _on_switch(m, interface.name):
            continue
        dropped = {reason: total(counts) for reason, counts in _dropped(port).items()}
        results.append(
            PortResult(
                interface=interface.name,
                rate=interface.rate,
                tiers=(tier[interface.node], tier[interface.peer_node]),
                on_path=interface.name in on_path,
                limit=None if port["limit"] == UNLIMITED else int(port["limit"]),
                enqueued_packets=int(port["enqueued"]["packets"].sum()),
                enqueued_bytes=int(port["enqueued"]["bytes"].sum()),
                dequeued_packets=int(port["dequeued"]["packets"].sum()),
                dequeued_bytes=int(port["dequeued"]["bytes"].sum()),
                data_bytes=_class_counts(port["dequeued"])[TrafficClass.DATA].bytes,
                dropped_packets={reason: count.packets for reason, count in dropped.items()},
                dropped_bytes={reason: count.bytes for reason, count in dropped.items()},
                marked_packets=int(port["marked"]),
                max_depth=int(port["max_depth"]),
            )
        )
    return results


def _drops(m: Measurements) -> list[DropRecord]:
    return [_drop_record(time, drop) for time, drop in m.telemetry.drops]


def _drop_record(time: float, drop: Drop) -> DropRecord:
    return DropRecord(
        time=time,
        interface=drop.interface,
        reason=drop.reason,
        source=drop.source,
        destination=drop.destination,
        source_port=drop.source_port,
        qp=drop.destination_qp,
        psn=drop.psn,
        bytes=drop.bytes,
    )


def _class_counts(counts: Any) -> dict[TrafficClass, Count]:
    return {
        _CLASS_OF[name]: Count(int(counts["packets"][i]), int(counts["bytes"][i]))
        for i, name in enumerate(CLASSES)
    }


def _dropped(port: np.void) -> dict[str, ClassCounts]:
    return {
        reason: _class_counts(counts)
        for reason, counts in zip(REASONS, port["dropped"], strict=True)
        if counts["packets"].any()
    }


def _ledger(m: Measurements) -> Ledger:
    ports = []
    for interface, port in zip(m.topology.interfaces.values(), m.ports, strict=True):
        enqueued, dequeued = port["enqueued"], port["dequeued"]
        ports.append(
            PortCounters(
                interface=interface.name,
                node=interface.node,
                peer=interface.peer,
                peer_node=interface.peer_node,
                enqueued=Count(int(enqueued["packets"].sum()), int(enqueued["bytes"].sum())),
                dequeued=Count(int(dequeued["packets"].sum()), int(dequeued["bytes"].sum())),
                dropped=_dropped(port),
            )
        )
    nics = [
        _nic_counters(m, port, sent)
        for report in m.reports
        for port, sent in zip(report.ports, _sent_by_queue_pairs(report), strict=True)
    ]
    return build_ledger(nics, ports)


def _sent_by_queue_pairs(report: RankReport) -> list[int]:
    """Packets of a rank's queue pairs by NIC port.

    A queue pair counts what it sends from all ports together: what is not the others' is the
    first one's.
    """
    sent = sum(
        c.counters["sent_packets"] + c.counters["acks_sent"] + c.counters["naks_sent"]
        + c.counters["rnr_naks_sent"] + c.counters["error_naks_sent"]
        for c in report.connections
    )  # fmt: skip
    others = [p.counts["sent_data"][0] + p.counts["sent_control"][0] for p in report.ports[1:]]
    return [sent - sum(others), *others]


def _nic_counters(m: Measurements, report: PortReport, sent: int) -> NicCounters:
    counts = {name: Count(*count) for name, count in report.counts.items()}
    data, control, other = TrafficClass.DATA, TrafficClass.CONTROL, TrafficClass.OTHER
    held: dict[TrafficClass, Count] = {}
    for opcode, size in report.held_frames:
        traffic_class = data if is_data_opcode(opcode) else control
        held[traffic_class] = held.get(traffic_class, Count()) + Count(1, size)
    received: dict[str, ClassCounts] = {
        "ICRC error": {other: counts["icrc_errors"]},
        "malformed": {other: counts["malformed"]},
        "unknown queue pair": {other: counts["unknown_qp"]},
    }
    return NicCounters(
        interface=report.interface,
        peer_node=m.topology.interfaces[report.interface].peer_node,
        sent={data: counts["sent_data"], control: counts["sent_control"]},
        delivered={data: counts["delivered_data"], control: counts["delivered_control"]},
        send_dropped={"injected loss": {data: counts["injected_loss"]}},
        receive_dropped=received,
        held=held,
        queue_pair_sent=sent,
    )


def _fidelity(scenario: Scenario, m: Measurements, ledger: Ledger) -> Fidelity:
    rate = max(i.rate for i in m.topology.interfaces.values())
    frame = scenario.nic.path_mtu + PACKET_HEADERS + FRAME_OVERHEAD
    nics = [port for report in m.reports for port in report.ports]
    sockets = {port.interface: port.socket_drops for port in nics if port.socket_drops}
    if m.forwarding_drops:
        sockets["Open vSwitch"] = m.forwarding_drops
    lost_records = int(m.ports["lost_records"].sum())
    mismatches = list(m.mismatches)
    if lost_records:
        mismatches.append(f"{lost_records} drops left no record")
    if m.stopped:
        mismatches.append(m.stopped)
    return judge(
        FidelityMeasurements(
            dilation=m.dilation,
            frame_time=frame * 8 / rate,
            base_rtt=base_rtt(m.topology, m.plan),
            nic_lateness=_percentiles(port.send_lateness for port in nics),
            timer_lateness=_percentiles(
                [
                    *(port.delivery_lateness for port in nics),
                    *(report.timer_lateness for report in m.reports),
                ]
            ),
            fault_lateness=max((record.late for record in m.faults), default=None),
            forwarding_latency_wall=m.probe.latency,
            link_rates=m.telemetry.link_rates(),
            cpu_steal=m.cpu_steal,
            socket_drops=sockets,
            plan_mismatches=mismatches,
            lost_line_time=_lost_line_time(m, FRAMES_FAITHFUL * frame * 8 / rate),
            unsampled_share=_unsampled_share(m),
        ),
        ledger_open=ledger.open,
    )


def _lost_line_time(m: Measurements, allowed: float) -> float:
    """The largest share, among the NICs, of the time with work in which the wire was left idle.

    So many seconds in all are ``allowed``: in a run of a few packets a single one would decide.
    """
    shares = [0.0]
    for port in (port for report in m.reports for port in report.ports):
        lost = max(0.0, math.fsum(port.send_lateness) - allowed)
        if port.busy_time:
            shares.append(lost / (port.busy_time + lost))
    return max(shares)


def _unsampled_share(m: Measurements) -> float:
    """Share of the run in gaps between samples that are longer than a base RTT."""
    least = base_rtt(m.topology, m.plan) * m.dilation
    return sum(gap for gap in m.telemetry.gaps if gap > least) / max(m.wall_seconds, 1e-9)


def _psn_trace(
    m: Measurements, flows: list[FlowResult], drops: list[DropRecord], traced: int
) -> PsnTrace | None:
    if not 0 <= traced < len(flows):
        return None
    connection = m.plan.connections[m.plan.flows[traced].connection]
    reports = _connection_reports(m)
    requester = reports[connection.index, connection.source_rank].trace
    responder = reports[connection.index, connection.destination_rank].trace
    shown = get_args(PsnEvent)
    events: list[tuple[float, PsnEvent, int]] = [
        (time, event, psn - connection.source_psn)  # type: ignore[misc]
        for time, event, psn in (*requester, *responder)
        if event in shown
    ]
    if not events:
        return None
    destination = m.topology.nic(connection.destination_rank).address
    return build_psn_trace(
        flows[traced],
        events,
        drops=drops,
        destination=destination,
        destination_qp=connection.destination_qp_num,
        first_psn=connection.source_psn,
    )
