"""Metrics: the named figures of a variant that tables compare and expectations assert on."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from testbed.results.schema import (
    FlowResult,
    JobRankTimes,
    JobResult,
    MetricValue,
    PortResult,
    RunResult,
    VariantResult,
)


class EmptyResultError(Exception):
    """A run measured nothing; it must not be reported as a success."""


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """What a metric means. A ratio is of two like quantities, a share of one whole, 0 to 1."""

    unit: Literal["s", "bit/s", "B", "packets", "1/s", "ratio", "share", "count", "text"]
    description: str
    better: Literal["lower", "higher", "none"]
    compute: Callable[[VariantResult], MetricValue]


def compute_metrics(variant: VariantResult) -> dict[str, MetricValue]:
    """Every metric of a variant; None where it does not apply."""
    return {name: info.compute(variant) for name, info in METRICS.items()}


def check_not_empty(result: RunResult) -> None:
    """Raise EmptyResultError unless every variant sent, delivered and completed something.

    A variant whose faults ended flows with error completions need not have delivered anything.
    """
    if not result.variants:
        raise EmptyResultError("the run has no variant")
    for variant in result.variants:
        problem = _emptiness(variant)
        if problem:
            raise EmptyResultError(f"variant {variant.name}: {problem}")


def _emptiness(variant: VariantResult) -> str:
    if not variant.flows:
        return "the workload made no flow"
    if not any(flow.sent_packets for flow in variant.flows):
        return "no flow sent a packet"
    if variant.faults and any(flow.status.startswith("IBV_WC_") for flow in variant.flows):
        return ""  # that a fault ends everything with error completions is a result, too
    if not any(flow.delivered_bytes for flow in variant.flows):
        return "no byte was delivered"
    if all(flow.finish is None for flow in variant.flows):
        states = ", ".join(sorted({flow.status for flow in variant.flows}))
        return f"none of {len(variant.flows)} flows completed ({states})"
    return ""


def _completion_times(variant: VariantResult) -> list[float]:
    return [
        flow.completion_time
        for flow in variant.flows
        if flow.completion_time is not None and not flow.failed
    ]


def _completion_time_median(variant: VariantResult) -> float | None:
    times = _completion_times(variant)
    return statistics.median(times) if times else None


def _completion_time_max(variant: VariantResult) -> float | None:
    return max(_completion_times(variant), default=None)


def _duration(variant: VariantResult) -> float | None:
    if all(flow.finish is None for flow in variant.flows):
        return None
    return variant.emulated_seconds


def _goodput(variant: VariantResult) -> float | None:
    duration = _duration(variant)
    delivered = sum(flow.delivered_bytes for flow in variant.flows)
    return delivered * 8 / duration if duration else None


def _slowdown(variant: VariantResult) -> float | None:
    duration = _duration(variant)
    if duration is None or not variant.lower_bound:
        return None
    return duration / variant.lower_bound


def _wrong_elements(variant: VariantResult) -> int | None:
    counts = [rank.wrong_elements for rank in variant.ranks if rank.wrong_elements is not None]
    return sum(counts) if counts else None


def _model_ratio(variant: VariantResult) -> float | None:
    collective = variant.collective
    if collective is None or not collective.model_time:
        return None
    return collective.time / collective.model_time


def links(variant: VariantResult, lower: int, upper: int) -> list[PortResult]:
    """The ports from one tier to another that an equal-cost path of some flow leads through."""
    return [port for port in variant.ports if port.tiers == (lower, upper) and port.on_path]


def load_ratio(ports: Sequence[PortResult]) -> float | None:
    """The busiest port's bytes of requests over the mean; None where there are none."""
    loads = [port.data_bytes for port in ports]
    total = sum(loads)
    return max(loads) * len(loads) / total if total else None


def _idle_share(ports: Sequence[PortResult]) -> float | None:
    if not any(port.data_bytes for port in ports):
        return None
    return sum(not port.data_bytes for port in ports) / len(ports)


def _of_links(
    value: Callable[[Sequence[PortResult]], float | None], lower: int, upper: int
) -> Callable[[VariantResult], float | None]:
    return lambda variant: value(links(variant, lower, upper))


def _sent_up(lower: int, upper: int) -> Callable[[VariantResult], int]:
    return lambda variant: sum(
        port.data_bytes for port in variant.ports if port.tiers == (lower, upper)
    )


def _deepest(lower: int, upper: int) -> Callable[[VariantResult], int | None]:
    return lambda variant: max(
        (port.max_depth for port in variant.ports if port.tiers == (lower, upper)), default=None
    )


def _out_of_order_share(variant: VariantResult) -> float | None:
    received = sum(flow.received_packets for flow in variant.flows)
    early = sum(flow.out_of_order_packets for flow in variant.flows)
    return early / received if received else None


def _dropped_for(reason: str) -> Callable[[VariantResult], int]:
    return lambda variant: sum(
        row.packets for row in variant.ledger.rows if row.fate == "dropped" and row.reason == reason
    )


def _over_flows(value: Callable[[FlowResult], int]) -> Callable[[VariantResult], int]:
    return lambda variant: sum(value(flow) for flow in variant.flows)


def _of_job(
    value: Callable[[JobResult], float | None],
) -> Callable[[VariantResult], float | None]:
    return lambda variant: value(variant.job) if variant.job is not None else None


def _mean_of_ranks(value: Callable[[JobRankTimes], float]) -> Callable[[JobResult], float]:
    """Per iteration."""
    return lambda job: statistics.mean(map(value, job.ranks)) / job.iterations


def _compute_share(job: JobResult) -> float:
    compute = statistics.mean(rank.compute for rank in job.ranks)
    return compute / (job.iteration_time * job.iterations)


def _straggler_spread(job: JobResult) -> float | None:
    times = [rank.compute for rank in job.ranks]
    mean = statistics.mean(times)
    return (max(times) - min(times)) / mean if mean else None


METRICS: dict[str, MetricInfo] = {
    "completion_time_median": MetricInfo(
        "s", "median time from a flow's start to its completion", "lower", _completion_time_median
    ),
    "completion_time_max": MetricInfo(
        "s", "longest time from a flow's start to its completion", "lower", _completion_time_max
    ),
    "duration": MetricInfo(
        "s",
        "from the first start to the last completion, or to the end if flows fail",
        "lower",
        _duration,
    ),
    "lower_bound": MetricInfo(
        "s", "least duration that the links allow", "none", lambda v: v.lower_bound
    ),
    "slowdown": MetricInfo("ratio", "duration over its lower bound", "lower", _slowdown),
    "goodput": MetricInfo("bit/s", "delivered message bytes over the duration", "higher", _goodput),
    "delivered_bytes": MetricInfo(
        "B",
        "message bytes delivered, each once",
        "higher",
        _over_flows(lambda f: f.delivered_bytes),
    ),
    "failed_flows": MetricInfo(
        "count",
        "flows that ended with an error or not at all",
        "lower",
        _over_flows(lambda f: int(f.failed)),
    ),
    "dropped_packets": MetricInfo(
        "packets",
        "dropped anywhere for a known reason",
        "lower",
        lambda v: sum(row.packets for row in v.ledger.rows if row.fate == "dropped"),
    ),
    "dropped_bytes": MetricInfo(
        "B",
        "bytes of the dropped frames",
        "lower",
        lambda v: sum(row.bytes for row in v.ledger.rows if row.fate == "dropped"),
    ),
    "retransmitted_packets": MetricInfo(
        "packets",
        "data packets sent again",
        "lower",
        _over_flows(lambda f: f.retransmitted_packets),
    ),
    "retransmitted_bytes": MetricInfo(
        "B", "payload bytes sent again", "lower", _over_flows(lambda f: f.retransmitted_bytes)
    ),
    "naks": MetricInfo(
        "packets", "NAKs for a PSN sequence error", "lower", _over_flows(lambda f: f.naks)
    ),
    "rnr_naks": MetricInfo(
        "packets", "NAKs for a receiver not ready", "lower", _over_flows(lambda f: f.rnr_naks)
    ),
    "timeouts": MetricInfo(
        "count", "local ACK timeouts", "lower", _over_flows(lambda f: f.timeouts)
    ),
    "max_queue_depth": MetricInfo(
        "B",
        "deepest queue of any switch port",
        "lower",
        lambda v: max((port.max_depth for port in v.ports), default=0),
    ),
    "max_queue_depth_leaf_up": MetricInfo(
        "B", "deepest queue of a leaf's port to a spine", "lower", _deepest(1, 2)
    ),
    "max_queue_depth_leaf_down": MetricInfo(
        "B", "deepest queue of a leaf's port to a NIC", "lower", _deepest(1, 0)
    ),
    "link_load_ratio": MetricInfo(
        "ratio",
        "busiest over mean load of the leaves' up links that may carry a flow",
        "lower",
        _of_links(load_ratio, 1, 2),
    ),
    "links_idle": MetricInfo(
        "share",
        "share of the leaves' up links that might carry a flow but carry none",
        "lower",
        _of_links(_idle_share, 1, 2),
    ),
    "spine_bytes": MetricInfo(
        "B", "bytes of requests that the leaves sent up to spines", "lower", _sent_up(1, 2)
    ),
    "core_link_load_ratio": MetricInfo(
        "ratio",
        "busiest over mean load of the spines' up links that may carry a flow",
        "lower",
        _of_links(load_ratio, 2, 3),
    ),
    "core_links_idle": MetricInfo(
        "share",
        "share of the spines' up links that might carry a flow but carry none",
        "lower",
        _of_links(_idle_share, 2, 3),
    ),
    "out_of_order_packets": MetricInfo(
        "packets",
        "data packets that arrived ahead of their turn",
        "lower",
        _over_flows(lambda f: f.out_of_order_packets),
    ),
    "out_of_order_share": MetricInfo(
        "share", "of all data packets that arrived", "lower", _out_of_order_share
    ),
    "link_down_packets": MetricInfo(
        "packets", "lost because a link was down", "lower", _dropped_for("link down")
    ),
    "path_migrations": MetricInfo(
        "count",
        "times a queue pair went on from another port of its NIC",
        "none",
        _over_flows(lambda f: f.path_migrations),
    ),
    "ecn_marked_packets": MetricInfo(
        "packets",
        "marked congestion experienced",
        "none",
        lambda v: sum(port.marked_packets for port in v.ports),
    ),
    "wrong_elements": MetricInfo(
        "count", "elements of the collective that differ from numpy's", "lower", _wrong_elements
    ),
    "algbw": MetricInfo(
        "bit/s",
        "collective's bytes over its time (nccl-tests)",
        "higher",
        lambda v: v.collective.algbw if v.collective else None,
    ),
    "busbw": MetricInfo(
        "bit/s",
        "algbw times the collective's bus factor (nccl-tests)",
        "higher",
        lambda v: v.collective.busbw if v.collective else None,
    ),
    "model_time": MetricInfo(
        "s",
        "what the pipelined alpha-beta model of the collective's algorithm expects",
        "none",
        lambda v: v.collective.model_time if v.collective else None,
    ),
    "model_ratio": MetricInfo("ratio", "collective's time over the model's", "none", _model_ratio),
    "iteration_time": MetricInfo(
        "s",
        "of a training job, or of a whole replayed trace",
        "lower",
        _of_job(lambda job: job.iteration_time),
    ),
    "exposed_communication": MetricInfo(
        "s",
        "per iteration, in which a rank does not compute while a message to or from it is under "
        "way; mean over ranks",
        "lower",
        _of_job(_mean_of_ranks(lambda rank: rank.exposed_communication)),
    ),
    "waiting_time": MetricInfo(
        "s",
        "per iteration, in which a rank neither computes nor communicates; mean over ranks",
        "lower",
        _of_job(_mean_of_ranks(lambda rank: rank.waiting)),
    ),
    "compute_share": MetricInfo(
        "share",
        "of an iteration, in which a rank computes; mean over ranks",
        "higher",
        _of_job(_compute_share),
    ),
    "straggler_spread": MetricInfo(
        "ratio",
        "longest minus shortest compute time of a rank, over the mean",
        "lower",
        _of_job(_straggler_spread),
    ),
    "tokens_per_second": MetricInfo(
        "1/s",
        "per rank, at the original's scale of time; over that of fewer ranks it is the linearity",
        "higher",
        _of_job(lambda job: job.tokens_per_second),
    ),
    "ledger_open": MetricInfo(
        "packets", "packets that the ledger cannot explain", "lower", lambda v: v.ledger.open
    ),
    "verdict": MetricInfo(
        "text",
        "faithful, degraded or invalid",
        "none",
        lambda v: str(v.fidelity.verdict),
    ),
}
"""All metrics by name, in the order in which tables show them."""
