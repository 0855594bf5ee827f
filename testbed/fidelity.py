"""The verdict on a run: did the machine keep up with the hardware it stood in for?

Pure rules, from measurements to ``faithful``, ``degraded`` or ``invalid``; the verdict is that of
the worst rule. The limits are this project's choice, on two principles:

- *Effects judge, causes explain.* Lateness, rates and losses say how far the run strayed, so they
  can make it invalid. CPU steal and a coarse sampler only make it likelier, or a chart poorer; on
  their own they degrade a run at most.
- *Errors count against the base RTT*, the time scale on which queues and transports react. A tenth
  of it hardly moves the reaction; at half of it a packet takes another's place in a queue, and who
  is dropped becomes an artefact.

Times are in seconds of emulated time unless a name says wall.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

RTT_SHARE_FAITHFUL = 0.10
"""Share of the base RTT by which an event may be late in a faithful run (see the module's text)."""

RTT_SHARE_DEGRADED = 0.50
"""Share of the base RTT beyond which lateness falsifies the run."""

FRAMES_FAITHFUL = 2
"""Frame times of NIC lateness always allowed: a real NIC too waits for the frame on the wire and
for its DMA, and a fabric with a very short RTT cannot be paced finer than its frames."""

FRAMES_DEGRADED = 10
"""Frame times of NIC lateness beyond which bursts are no longer paced as the NIC meant."""

WORST_CASE_RTTS_FAITHFUL = 3.0
"""Base RTTs by which the single latest packet may be late; it is rare, so it is judged mildly. A
virtual machine that its host suspends for 0.1 s, which happens, stays below it at the dilations
that ``testbed.calibration`` chooses for the usual fabrics."""

WORST_CASE_RTTS_DEGRADED = 20.0

RATE_ERROR_FAITHFUL = 0.02
"""Relative error of a busy port's rate; HTB's own rounding is well below 1 %."""

RATE_ERROR_DEGRADED = 0.05

LOST_LINE_FAITHFUL = 0.02
"""Share of the time in which a NIC had work but left its wire idle: line rate it did not reach."""

LOST_LINE_DEGRADED = 0.10

STEAL_FAITHFUL = 0.02
"""Share of CPU time taken by the hypervisor (``steal`` in /proc/stat)."""

UNSAMPLED_FAITHFUL = 0.02
"""Share of the run in which queue depth was not sampled for a base RTT or longer. Maximum depth and
drops do not depend on the sampler, they are counted at every packet."""

MARGIN = 1.2
"""Safety factor on the suggested dilation: the same machine is not equally quick twice."""


class Verdict(StrEnum):
    """How far a result can be trusted, best first."""

    FAITHFUL = "faithful"
    DEGRADED = "degraded"
    INVALID = "invalid"

    @property
    def severity(self) -> int:
        """0 for faithful, 1 for degraded, 2 for invalid."""
        return list(Verdict).index(self)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The most severe verdict; ``faithful`` if there is none."""
    return max(verdicts, key=lambda v: v.severity, default=Verdict.FAITHFUL)


@dataclass(frozen=True, slots=True)
class Lateness:
    """How late events were against their schedule, in seconds of emulated time."""

    p50: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class LinkRate:
    """Throughput of a port while it was continuously busy; bit/s, frame overhead included."""

    interface: str
    nominal: float
    measured: float


@dataclass(frozen=True)
class FidelityMeasurements:
    """What a run measured about itself. None means that it was not, or could not be, measured.

    ``frame_time`` is the serialisation time of a full frame on a NIC's link and ``base_rtt`` the
    round trip of an empty fabric over the longest path, both emulated. ``forwarding_latency_wall``
    is the median *wall* time that the software switches add to one packet, one way over the longest
    path with empty queues, beyond what the emulated fabric is meant to take. ``unsampled_share``
    is the share of the run that lies in gaps of a base RTT or more between two samples of the
    queues. ``lost_line_time`` is the largest share, among the NICs, of the time with work in which
    the wire was idle, beyond FRAMES_FAITHFUL frame times in all. ``fault_lateness`` is that of the
    latest fault, or reaction to one, against its time. ``socket_drops`` counts packets lost in
    receive sockets, by place. ``plan_mismatches`` says in words what was otherwise than planned:
    queues as the kernel has them, paths, an early stop.
    """

    dilation: float
    frame_time: float
    base_rtt: float
    nic_lateness: Lateness
    timer_lateness: Lateness | None = None
    fault_lateness: float | None = None
    lost_line_time: float | None = None
    forwarding_latency_wall: float | None = None
    link_rates: Sequence[LinkRate] = ()
    cpu_steal: float | None = None
    socket_drops: dict[str, int] = field(default_factory=dict)
    plan_mismatches: Sequence[str] = ()
    unsampled_share: float | None = None


class FidelityRule(BaseModel):
    """One rule and what it found. A limit of None means that no value goes beyond that state.

    ``value`` up to ``faithful_limit`` is faithful, up to ``degraded_limit`` degraded, beyond it, or
    not a number, invalid. ``advice`` is empty for a faithful value.
    """

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    name: str
    value: float
    unit: str
    faithful_limit: float
    degraded_limit: float | None
    state: Verdict
    advice: str = ""


class Fidelity(BaseModel):
    """The verdict, the rules behind it and the reasons in words, the gravest first.

    ``dilation_enough`` is the dilation with which this machine would have kept up; None when it
    did keep up, or when a larger dilation would not help.
    """

    model_config = ConfigDict(frozen=True)

    verdict: Verdict
    reasons: list[str]
    rules: list[FidelityRule]
    dilation_enough: float | None = None


def judge(measurements: FidelityMeasurements, *, ledger_open: int = 0) -> Fidelity:
    """Apply every rule. Raises ValueError if the dilation, frame time or RTT is not above 0."""
    for name in ("dilation", "frame_time", "base_rtt"):
        value = getattr(measurements, name)
        if not value > 0 or not math.isfinite(value):
            raise ValueError(f"{name} {value!r} must be above 0")
    timing = _timing_rules(measurements)
    rules = [
        _count_rule(
            "packet ledger",
            ledger_open,
            "packets",
            "packets are unexplained; the ledger names the sum that failed",
        ),
        *timing,
        *_rate_rules(measurements.link_rates),
        *_loss_rules(measurements),
        *_cause_rules(measurements),
    ]
    gravest_first = sorted(rules, key=lambda rule: -rule.state.severity)
    return Fidelity(
        verdict=worst(rule.state for rule in rules),
        reasons=[_reason(rule) for rule in gravest_first if rule.state is not Verdict.FAITHFUL],
        rules=rules,
        dilation_enough=_dilation_enough(measurements, timing),
    )


def _timing_rules(m: FidelityMeasurements) -> list[FidelityRule]:
    """Rules on wall-clock slowness, whose values shrink in proportion as the dilation grows."""
    slower = "the machine was too slow: raise the dilation, or leave it more CPU"
    tenth, half = RTT_SHARE_FAITHFUL * m.base_rtt, RTT_SHARE_DEGRADED * m.base_rtt
    rules = [
        _rule(
            "NIC lateness p99",
            m.nic_lateness.p99,
            "s",
            max(FRAMES_FAITHFUL * m.frame_time, tenth),
            max(FRAMES_DEGRADED * m.frame_time, half),
            slower,
        ),
        _rule(
            "NIC lateness max",
            m.nic_lateness.max,
            "s",
            max(FRAMES_DEGRADED * m.frame_time, WORST_CASE_RTTS_FAITHFUL * m.base_rtt),
            max(FRAMES_DEGRADED * m.frame_time, WORST_CASE_RTTS_DEGRADED * m.base_rtt),
            slower,
        ),
    ]
    if m.timer_lateness is not None:
        rules.append(_rule("timer lateness p99", m.timer_lateness.p99, "s", tenth, half, slower))
    if m.fault_lateness is not None:
        rules.append(
            _rule(
                "fault lateness max",
                m.fault_lateness,
                "s",
                WORST_CASE_RTTS_FAITHFUL * m.base_rtt,
                WORST_CASE_RTTS_DEGRADED * m.base_rtt,
                slower,
            )
        )
    if m.lost_line_time is not None:
        rules.append(
            _rule(
                "line rate lost",
                m.lost_line_time,
                "ratio",
                LOST_LINE_FAITHFUL,
                LOST_LINE_DEGRADED,
                slower,
            )
        )
    if m.forwarding_latency_wall is not None:
        round_trip = 2 * m.forwarding_latency_wall / m.dilation
        rules.append(_rule("forwarding error per round trip", round_trip, "s", tenth, half, slower))
    return rules


def _rate_rules(rates: Sequence[LinkRate]) -> list[FidelityRule]:
    if not rates:
        return []
    furthest = max(rates, key=lambda rate: abs(1 - rate.measured / rate.nominal))
    error = abs(1 - furthest.measured / furthest.nominal)
    direction = "below" if furthest.measured < furthest.nominal else "above"
    return [
        _rule(
            "link rate error",
            error,
            "ratio",
            RATE_ERROR_FAITHFUL,
            RATE_ERROR_DEGRADED,
            f"{furthest.interface} ran {error:.1%} {direction} its rate"
            + ("; raise the dilation" if direction == "below" else "; its shaper is wrong"),
        )
    ]


def _loss_rules(m: FidelityMeasurements) -> list[FidelityRule]:
    places = ", ".join(sorted(place for place, count in m.socket_drops.items() if count))
    return [
        _count_rule(
            "receive socket drops",
            sum(m.socket_drops.values()),
            "packets",
            f"packets were lost in software at {places}: raise the dilation or rmem_default",
        ),
        _count_rule(
            "differences from the plan",
            len(m.plan_mismatches),
            "differences",
            "; ".join(m.plan_mismatches),
        ),
    ]


def _cause_rules(m: FidelityMeasurements) -> list[FidelityRule]:
    rules = []
    if m.cpu_steal is not None:
        advice = "the hypervisor took CPU time away: run on a quieter host"
        rules.append(_rule("CPU steal", m.cpu_steal, "ratio", STEAL_FAITHFUL, None, advice))
    if m.unsampled_share is not None:
        advice = "queue charts may miss short peaks (maximum depth and drops do not)"
        rules.append(
            _rule("unsampled time", m.unsampled_share, "ratio", UNSAMPLED_FAITHFUL, None, advice)
        )
    return rules


def _rule(
    name: str,
    value: float,
    unit: str,
    faithful_limit: float,
    degraded_limit: float | None,
    advice: str,
) -> FidelityRule:
    if value <= faithful_limit:
        state = Verdict.FAITHFUL
    elif degraded_limit is None or value <= degraded_limit:
        state = Verdict.DEGRADED
    else:
        state = Verdict.INVALID  # NaN ends here too: it compares false to every limit
    return FidelityRule(
        name=name,
        value=value,
        unit=unit,
        faithful_limit=faithful_limit,
        degraded_limit=degraded_limit,
        state=state,
        advice="" if state is Verdict.FAITHFUL else advice,
    )


def _count_rule(name: str, count: int, unit: str, advice: str) -> FidelityRule:
    """A rule that allows nothing: any count is invalid."""
    return _rule(name, count, unit, 0, 0, advice)


def _reason(rule: FidelityRule) -> str:
    value = _in_words(rule.value, rule.unit)
    limit = _in_words(rule.faithful_limit, rule.unit)
    return f"{rule.name} {value} (faithful up to {limit}): {rule.advice}"


def _in_words(value: float, unit: str) -> str:
    if unit == "s":
        return f"{value * 1e6:.3g} us"
    if unit == "ratio":
        return f"{value:.1%}"
    return f"{value:.0f} {unit}"


def _dilation_enough(m: FidelityMeasurements, timing: Sequence[FidelityRule]) -> float | None:
    """The dilation at which every speed-bound rule would be faithful, to two digits, rounded up.

    Wall-clock lateness does not depend on the dilation, so in emulated time it falls as 1/k.
    """
    factors = [
        rule.value / rule.faithful_limit
        for rule in timing
        if rule.state is not Verdict.FAITHFUL and math.isfinite(rule.value)
    ]
    for rate in m.link_rates:
        shortfall = 1 - rate.measured / rate.nominal
        if shortfall > RATE_ERROR_FAITHFUL and rate.measured > 0:
            factors.append(rate.nominal / rate.measured)
    if any(m.socket_drops.values()):
        factors.append(2.0)  # how much slower the reader was than the traffic is not known
    if not factors:
        return None
    return _round_up(m.dilation * max(factors) * MARGIN)


def _round_up(value: float, digits: int = 2) -> float:
    step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return math.ceil(round(value / step, 9)) * step
