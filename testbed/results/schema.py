"""The schema of ``result.json``: everything a report, a comparison or an assertion reads.

Real (emulated) units throughout: seconds, bit/s, bytes. The only wall-clock figures are named
``wall`` or are dates. Models are immutable and ignore fields they do not know, so that a file
written by a later version with the same ``schema_version`` still reads.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, computed_field, model_validator

from testbed.fidelity import Fidelity, Verdict, worst
from testbed.ledger import Ledger
from testbed.results.timeline import TimelineResult

SCHEMA_VERSION = 1
"""Raised whenever a field changes its meaning or goes; adding one does not raise it."""

SUCCESS = "IBV_WC_SUCCESS"

DROP_RECORD_LIMIT = 2000
"""Drop records kept per variant in ``result.json``; ``drops.csv`` has them all."""

MetricValue = float | int | str | None


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Environment(_Model):
    """The machine and the software of a run; ``versions`` is by program or package."""

    hostname: str = ""
    kernel: str
    cpu: str
    cores: int
    memory: int | None = Field(None, description="bytes")
    versions: dict[str, str] = Field(default_factory=dict)


class TopologySummary(_Model):
    """The fabric in figures. ``tiers`` counts nodes by tier ("server", "leaf", "spine")."""

    name: str
    tiers: dict[str, int]
    ranks: int
    links: int
    link_rates: dict[str, float] = Field(
        default_factory=dict, description='bit/s by kind of link, such as "server-leaf"'
    )
    base_rtt: float = Field(description="seconds over the longest path of the empty fabric")


class FlowResult(_Model):
    """What became of one flow: ``messages`` messages, ``bytes`` bytes in all, over one connection.

    ``start`` is the first work request's posting, ``finish`` the last completion's; None when the
    flow never completed. ``path`` lists the transmitting interfaces from the NIC to the last
    switch; ``paths`` has all ways that its packets may take, if there are several. Packet and byte
    counts are of data packets; ``sent`` includes what was sent again, and ``delivered_bytes`` is
    message payload that reached the destination's memory, each byte once.
    """

    index: int
    source_rank: int
    destination_rank: int
    bytes: int
    messages: int
    start: float
    finish: float | None = None
    completed_messages: int = 0
    path: list[str] = Field(default_factory=list)
    paths: list[list[str]] = Field(default_factory=list)
    queue_pairs: int = 1
    source_port: int | None = None
    qp_num: int | None = None
    sent_packets: int = 0
    sent_bytes: int = 0
    retransmitted_packets: int = 0
    retransmitted_bytes: int = 0
    received_packets: int = Field(0, description="duplicates and discarded ones included")
    delivered_packets: int = 0
    delivered_bytes: int = 0
    naks: int = Field(0, description="NAK with a PSN sequence error received by the requester")
    rnr_naks: int = 0
    timeouts: int = 0
    out_of_order_packets: int = Field(0, description="arrived ahead of their turn at the responder")
    path_migrations: int = Field(0, description="times it went on from another port of its NIC")
    status: str = SUCCESS

    @computed_field  # type: ignore[prop-decorator]
    @property
    def completion_time(self) -> float | None:
        """Seconds from start to finish."""
        return None if self.finish is None else self.finish - self.start

    @computed_field  # type: ignore[prop-decorator]
    @property
    def goodput(self) -> float | None:
        """Delivered payload over the completion time, bit/s."""
        duration = self.completion_time
        return self.delivered_bytes * 8 / duration if duration else None

    @property
    def failed(self) -> bool:
        """Whether it ended with an error completion, or never ended."""
        return self.finish is None or self.status != SUCCESS


class RankResult(_Model):
    """What one rank's NIC counted. Lateness is send time against schedule, in seconds.

    ``wrong_elements`` is the number of elements that differ from numpy's result; None when the
    workload computes nothing.
    """

    rank: int
    sent_packets: int = 0
    sent_bytes: int = 0
    received_packets: int = 0
    received_bytes: int = 0
    icrc_errors: int = 0
    lateness_p50: float = 0.0
    lateness_p99: float = 0.0
    lateness_max: float = 0.0
    wrong_elements: int | None = None


TIER_NAMES = ("NIC", "leaf", "spine", "core")
"""What stands at either end of a link, by tier."""


class PortResult(_Model):
    """What one switch port's queue counted. ``limit`` is in bytes, None for a shared buffer.

    ``tiers`` are the tier that the port belongs to and the one that it sends to, 0 for NICs; None
    in results of earlier versions. ``on_path`` says whether an equal-cost path of some flow's
    requests leads through it; ``data_bytes`` are those of the frames of requests that it sent.
    """

    interface: str
    rate: float
    tiers: tuple[int, int] | None = None
    on_path: bool = False
    limit: int | None = None
    enqueued_packets: int = 0
    enqueued_bytes: int = 0
    dequeued_packets: int = 0
    dequeued_bytes: int = 0
    data_bytes: int = 0
    dropped_packets: dict[str, int] = Field(default_factory=dict, description="by reason")
    dropped_bytes: dict[str, int] = Field(default_factory=dict, description="by reason")
    marked_packets: int = 0
    max_depth: int = 0

    @property
    def layer(self) -> str:
        """Which kind of link it sends on, such as "leaf to spine"; empty if unknown."""
        if self.tiers is None:
            return ""
        lower, upper = (TIER_NAMES[t] if t < len(TIER_NAMES) else f"tier {t}" for t in self.tiers)
        return f"{lower} to {upper}"


class DropRecord(_Model):
    """One dropped packet, as recorded where it was dropped (mirror-on-drop)."""

    time: float
    interface: str
    reason: str
    source: str
    destination: str
    source_port: int | None = None
    qp: int
    psn: int
    bytes: int


class QueueSeries(_Model):
    """Depth over time, downsampled: ``depths[interface][i]`` is the maximum in bytes over bin i.

    ``times[i]`` is the start of bin i. Bins hold equally many samples, not equal spans, so that
    what happened before and after a skipped idle period stays visible. Interfaces whose queue was
    always empty are left out.
    """

    times: list[float]
    depths: dict[str, list[int]]

    @model_validator(mode="after")
    def _same_length(self) -> QueueSeries:
        for interface, depths in self.depths.items():
            if len(depths) != len(self.times):
                raise ValueError(
                    f"queue series of {interface} has {len(depths)} depths for "
                    f"{len(self.times)} times"
                )
        return self


PsnEvent = Literal["send", "resend", "receive", "ack", "nak", "timeout", "drop"]


class PsnTrace(_Model):
    """One queue pair's packets over time, as columns of equal length.

    ``psns`` counts from the flow's first PSN and is unwrapped beyond 24 bits. Send, resend, ack,
    nak and timeout are the requester's; receive is the responder's; drop is a switch port's.
    """

    flow: int
    source_rank: int
    destination_rank: int
    times: list[float]
    events: list[PsnEvent]
    psns: list[int]

    @model_validator(mode="after")
    def _same_length(self) -> PsnTrace:
        if not len(self.times) == len(self.events) == len(self.psns):
            raise ValueError("PSN trace: times, events and psns differ in length")
        return self


class CollectiveResult(_Model):
    """A collective in nccl-tests' terms: algbw = bytes / time, busbw = algbw * ``bus_factor``.

    ``time`` is the mean of ``times`` where it ran several times. ``model_time`` is what the
    pipelined alpha-beta model expects of the algorithm; None where it says nothing. ``elements``
    are those that ``bytes`` counts; ``root`` and ``reduction`` are None for what has none.
    ``gpus_per_server`` is what the algorithm took for one server's GPUs, 1 for NVLink unused.
    """

    operation: str
    ranks: int
    bytes: int
    time: float = Field(gt=0, description="seconds")
    bus_factor: float
    times: list[float] = Field(default_factory=list)
    model_time: float | None = Field(default=None, description="seconds")
    algorithm: str = ""
    elements: int | None = None
    dtype: str = ""
    reduction: str | None = None
    root: int | None = None
    gpus_per_server: int | None = None

    @property
    def algbw(self) -> float:
        """Bit/s; nccl-tests prints the same in GB/s."""
        return self.bytes * 8 / self.time

    @property
    def busbw(self) -> float:
        """Bit/s, comparable with the rate of a NIC's link."""
        return self.algbw * self.bus_factor


class JobRankTimes(_Model):
    """What one rank of a job did with its time, in seconds; together the job's duration.

    Communication is exposed while a message to or from the rank is under way and it does not
    compute; without either it waits for others.
    """

    rank: int
    compute: float
    exposed_communication: float
    waiting: float


class JobResult(_Model):
    """A training job or replayed trace: what its ranks did with their time.

    ``iteration_time`` is the duration over the iterations. ``tokens`` are those of an iteration of
    all ranks, None for what is no training. ``size_scale`` and ``time_scale`` are what the
    original's sizes and times were multiplied by; ``notes`` say what was cut down, ``verified`` how
    much of the results was compared with numpy's.
    """

    iterations: int = Field(gt=0)
    iteration_time: float = Field(gt=0, description="seconds, scaled")
    tokens: int | None = None
    size_scale: float = 1.0
    time_scale: float = 1.0
    notes: list[str] = Field(default_factory=list)
    verified: str = ""
    ranks: list[JobRankTimes] = Field(min_length=1)

    @property
    def tokens_per_second(self) -> float | None:
        """Per rank, with the time of an iteration scaled back to the original's."""
        if self.tokens is None:
            return None
        return self.tokens * self.time_scale / (self.iteration_time * len(self.ranks))


class FaultRecord(_Model):
    """A fault, or a ``reaction`` of the fabric: ``what`` to ``subject``, at an emulated time.

    ``flushed_packets`` is what waited in the queues of a link that went down; what was sent into
    it later is in the ledger beside it, for the same reason.
    """

    time: float
    what: str
    subject: str = ""
    links: list[str] = Field(default_factory=list, description="those that changed their state")
    flushed_packets: int = 0
    reaction: bool = False


class PathChange(_Model):
    """From ``time`` on the requests of some connections go other ways.

    ``paths`` is by connection: all ways that packets may take, each by its transmitting
    interfaces; none where the destination is cut off.
    """

    time: float
    paths: dict[int, list[list[str]]]


class VariantResult(_Model):
    """One run of the scenario with one set of overrides.

    ``emulated_seconds`` runs from the first to the last event of the traffic, or to the end of the
    run if flows fail. ``wall_seconds`` is what it took on this machine, without the
    ``skipped_wall_seconds`` of idle time. ``lower_bound`` is the least time that the links allow
    the workload. ``attempts`` counts the measurements that this one is the most faithful of: with
    ``dilation: auto`` there are more where the machine did not keep up.
    """

    name: str
    overrides: dict[str, Any] = Field(default_factory=dict)
    plan_hash: str
    dilation: float
    attempts: int = 1
    wall_seconds: float
    emulated_seconds: float
    skipped_wall_seconds: float = 0.0
    lower_bound: float | None = None
    collective: CollectiveResult | None = None
    job: JobResult | None = None
    flows: list[FlowResult]
    ranks: list[RankResult]
    ports: list[PortResult]
    drops: list[DropRecord] = Field(default_factory=list)
    drops_total: int = 0
    faults: list[FaultRecord] = Field(default_factory=list)
    path_changes: list[PathChange] = Field(default_factory=list)
    queue_series: QueueSeries | None = None
    psn_trace: PsnTrace | None = None
    timeline: TimelineResult | None = None
    ledger: Ledger
    fidelity: Fidelity
    metrics: dict[str, MetricValue] = Field(default_factory=dict)


class ExpectationResult(_Model):
    """One assertion of the scenario and what it found. ``variant`` is None across variants."""

    text: str
    actual: str
    met: bool
    variant: str | None = None


class RunResult(_Model):
    """One run: the scenario as resolved, where it ran, and the results of each variant."""

    schema_version: int = SCHEMA_VERSION
    name: str
    description: str = ""
    scenario: dict[str, Any]
    seed: int
    topology: TopologySummary | None = None
    environment: Environment
    started: datetime
    finished: datetime
    variants: list[VariantResult]
    expectations: list[ExpectationResult] = Field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """The worst verdict among the variants."""
        return worst(variant.fidelity.verdict for variant in self.variants)

    @property
    def expectations_met(self) -> bool:
        """Whether every expectation was met; true if there is none."""
        return all(expectation.met for expectation in self.expectations)

    def variant(self, name: str) -> VariantResult:
        """The variant of that name. Raises KeyError."""
        for variant in self.variants:
            if variant.name == name:
                return variant
        raise KeyError(name)
