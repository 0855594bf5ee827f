"""How long things took, and how long they had to take: the run, its collective, its job."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np

from testbed.calibration import nic_rate
from testbed.experiment import Measurements
from testbed.gpu_servers import local_links
from testbed.model_time import model_time
from testbed.results import CollectiveResult, FlowResult, JobRankTimes, JobResult
from testbed.schema import Scenario
from traffic.bounds import lower_bound
from traffic.executor import KINDS
from traffic.plan import OpKind
from traffic.rank_times import RankTimes, rank_times
from traffic.workloads import create_workload


def least_time(scenario: Scenario, m: Measurements, flows: list[FlowResult]) -> float:
    """Seconds of emulated time that the links and GPUs need for the plan, from its first event."""
    rate = max(nic_rate(m.topology, rank.rank) for rank in m.topology.ranks)
    hops = min(
        (m.topology.switch_hops(c.source_rank, c.destination_rank) for c in m.plan.connections),
        default=1,
    )
    bound = lower_bound(
        m.plan,
        link_rate=rate,
        path_mtu=scenario.nic.path_mtu,
        latency=m.topology.one_way_latency(hops),
        nvlink=local_links(scenario.server),
    )
    return bound - _begin(m, flows)


def collective_result(
    scenario: Scenario, m: Measurements, flows: list[FlowResult]
) -> CollectiveResult | None:
    """The time of a collective beside its model's; None for other work, or what did not end."""
    workload = create_workload(m.plan.workload)
    communicators = workload.communicators(m.plan)
    if not (workload.is_collective or communicators):
        return None
    parts = [flows[flow.index] for flow in workload.collective_flows(m.plan)]
    finishes = [flow.finish for flow in parts if flow.finish is not None]
    if len(finishes) < len(parts) or not parts:
        return None  # what did not come to its end has no time
    begin, end = _beside_the_network(m, with_compute=False)
    span = max(*finishes, end) - min(begin, *(flow.start for flow in parts))
    if not span > 0:
        return None
    reference = workload.reference(m.plan)
    result = CollectiveResult(
        operation=m.plan.workload,
        ranks=reference.ranks or len(m.plan.gpu_ranks),
        bytes=reference.size_bytes,
        time=span,
        bus_factor=reference.bus_factor,
    )
    if not communicators:
        return result
    # those of jobs on different places may differ
    algorithms = dict.fromkeys(c.schedule.algorithm for c in communicators)
    sharing = {c.schedule.request.gpus_per_server for c in communicators}
    schedule = communicators[0].schedule
    request = schedule.request
    return result.model_copy(
        update={
            "operation": request.collective.value,
            "algorithm": " + ".join(algorithms),
            "gpus_per_server": min(sharing),
            "elements": request.elements,
            "dtype": m.plan.dtype.value,
            "reduction": m.plan.reduction.value if request.collective.reduces else None,
            "root": request.root if request.collective.has_root else None,
            "model_time": model_time(
                communicators,
                m.topology,
                path_mtu=scenario.nic.path_mtu,
                nvlink=local_links(scenario.server),
            ),
        }
    )


def traffic_span(m: Measurements, flows: list[FlowResult]) -> float:
    """Seconds from the first to the last event of the traffic, computations included.

    What failed, or did not come to its end, lasted as long as the run.
    """
    finishes = [flow.finish for flow in flows if flow.finish is not None and not flow.failed]
    if len(finishes) < len(flows) or not flows:
        return m.end_time - _begin(m, flows)
    _, end = _beside_the_network(m, with_compute=True)
    return max(*finishes, end) - _begin(m, flows)


def _begin(m: Measurements, flows: list[FlowResult]) -> float:
    """When the first event of the traffic was, computations included."""
    begin, _ = _beside_the_network(m, with_compute=True)
    return min([begin, *(flow.start for flow in flows)])


def _beside_the_network(m: Measurements, *, with_compute: bool) -> tuple[float, float]:
    """When the first transfer over NVLink began and the last was complete.

    With computations, if asked for. Infinity and minus infinity where there are none.
    """
    wanted = [KINDS.index(OpKind.LOCAL_SEND)]
    if with_compute:
        wanted.append(KINDS.index(OpKind.COMPUTE))
    begin, end = math.inf, -math.inf
    for timeline in (report.timeline for report in m.reports):
        chosen = np.isin(np.frombuffer(timeline.kind, dtype=np.uint8), wanted)
        started = np.frombuffer(timeline.started)[chosen]
        finished = np.frombuffer(timeline.finished)[chosen]
        begin = np.fmin.reduce(started, initial=begin)
        end = np.fmax.reduce(finished, initial=end)
    return float(begin), float(end)


def job_result(m: Measurements) -> JobResult | None:
    """What the ranks of a training job or trace did; None for other work, or what did not end."""
    reference = create_workload(m.plan.workload).job(m.plan)
    if reference is None:
        return None
    timelines = {report.rank: report.timeline for report in m.reports}
    times = rank_times(m.plan, timelines, reference.ranks)
    if times is None:
        return None
    return JobResult(
        iterations=reference.iterations,
        iteration_time=_duration_of(times[0]) / reference.iterations,
        tokens=reference.tokens,
        size_scale=reference.size_scale,
        time_scale=reference.time_scale,
        notes=list(reference.notes),
        verified=reference.verified,
        ranks=[JobRankTimes.model_validate(asdict(rank)) for rank in times],
    )


def _duration_of(rank: RankTimes) -> float:
    return rank.compute + rank.exposed_communication + rank.waiting
