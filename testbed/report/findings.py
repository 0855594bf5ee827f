"""Findings: one sentence per chart, computed from the results it shows.

A sentence names a difference only where there is one: values within ``TIE`` of each other are
called equal, and a missing value is said to be missing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from testbed.report.quantities import format_quantity, plural, three_digits
from testbed.results import PortResult, RunResult, VariantResult, links

TIE = 0.01
"""Relative difference up to which two values count as equal; below what one run can tell."""

FULL_SLACK = 4300
"""A port whose peak is within a largest frame (bytes) of its limit was full."""

ACK_TIMEOUT_UNIT = 4.096e-6
"""Seconds; an ACK timeout is this times 2 to the power of the QP's attribute (IBTA 9.7.6.1.3)."""

MOST = 0.5
"""Share of a flow's time from which on waiting is worth a sentence."""


_SPEEDS = {
    "goodput": ("Goodput is", "bit/s"),
    "busbw": ("Bus bandwidth is", "bit/s"),
    "iteration_time": ("An iteration takes", "s"),
}
"""Beginning of a sentence and unit, by metric."""


def comparison_finding(result: RunResult) -> str:
    """How much gets through and what each variant sends again."""
    names = [variant.name for variant in result.variants]
    metric = speed_metric(result)
    speed, unit = _SPEEDS[metric]
    speeds = [_number(variant, metric) for variant in result.variants]
    if len(names) == 1:
        drops = int(_number(result.variants[0], "dropped_packets") or 0)
        again = _number(result.variants[0], "retransmitted_bytes")
        return (
            f"{speed} {format_quantity(speeds[0], unit)}; {plural(drops, 'packet')} "
            f"dropped, {format_quantity(again, 'B')} sent again"
        )
    resent = [_number(variant, "retransmitted_bytes") for variant in result.variants]
    return (
        f"{_contrast(speed, names, speeds, unit)}; "
        f"{_contrast('retransmissions take', names, resent, 'B')}"
    )


def speed_metric(result: RunResult) -> str:
    """How fast it was, by its metric: bus bandwidth where every variant ran a collective.

    For training jobs the time of an iteration: of two, the one that sends less may be the faster.
    """
    for metric, tell_tale in (("busbw", "busbw"), ("iteration_time", "tokens_per_second")):
        if all(_number(variant, tell_tale) is not None for variant in result.variants):
            return metric
    return "goodput"


def queue_finding(result: RunResult) -> str:
    """Where the deepest queue was, and whether it was full."""
    deepest = [(variant, _deepest_port(variant)) for variant in result.variants]
    parts = []
    for variant, port in deepest:
        if port is None:
            parts.append((variant.name, "", "no packet waited in any port"))
        elif _is_full(port):
            limit = format_quantity(port.limit, "B")
            parts.append((variant.name, port.interface, f"fills to its limit of {limit}"))
        else:
            of = "" if port.limit is None else f" of {format_quantity(port.limit, 'B')}"
            peak = format_quantity(port.max_depth, "B")
            parts.append((variant.name, port.interface, f"peaks at {peak}{of}"))
    if len({(interface, what) for _, interface, what in parts}) == 1:
        _, interface, what = parts[0]
        everywhere = "" if len(parts) == 1 else f" in {_all_of(len(parts))} variants"
        sentence = f"{_subject(interface)}{what}{everywhere}"
    else:
        sentence = "; ".join(
            f"{_subject(interface)}{what} ({name})" for name, interface, what in parts
        )
    return sentence[:1].upper() + sentence[1:]


def psn_finding(result: RunResult) -> str:
    """How many packets of the traced queue pair were lost and how many were sent again."""
    parts, calm = [], []
    for variant in result.variants:
        if variant.psn_trace is None:
            continue
        events = variant.psn_trace.events
        lost, resent = events.count("drop"), events.count("resend")
        timeouts = events.count("timeout")
        if not (lost or resent or timeouts):
            calm.append(variant.name)
            continue
        waits = f" and {plural(timeouts, 'timeout')}" if timeouts else ""
        parts.append(f"{variant.name} sends {resent:,} again for {lost:,} lost{waits}")
    none = "none is lost or sent again"
    if not parts:
        return f"Of one QP's packets {none}" if calm else "No queue pair was traced"
    if calm:
        parts.append(f"with {' and '.join(calm)} {none}")
    return "Of one QP's packets, " + "; ".join(parts)


def completion_finding(result: RunResult) -> str:
    """How completion times compare between the variants, median and slowest."""
    names = [variant.name for variant in result.variants]
    medians = [_number(variant, "completion_time_median") for variant in result.variants]
    slowest = [_number(variant, "completion_time_max") for variant in result.variants]
    if len(names) == 1:
        if any(flow.failed for flow in result.variants[0].flows):
            return (
                f"Of the flows that complete, half take {format_quantity(medians[0], 's')} or "
                f"less, the slowest {format_quantity(slowest[0], 's')}"
            )
        return (
            f"Half of the flows finish within {format_quantity(medians[0], 's')}, "
            f"the last within {format_quantity(slowest[0], 's')}"
        )
    return (
        f"{_contrast('The median flow takes', names, medians, 's')}; "
        f"{_contrast('the slowest takes', names, slowest, 's')}"
    )


def link_finding(result: RunResult) -> str:
    """How unevenly the up links are loaded and how many stay idle, tier by tier."""
    parts = []
    for lower, upper, metric, what in (
        (1, 2, "link_load_ratio", "up link"),
        (2, 3, "core_link_load_ratio", "core link"),
    ):
        known = [v for v in result.variants if _number(v, metric) is not None]
        if known:
            ratios = [_number(variant, metric) or 0.0 for variant in known]
            without = [v.name for v in result.variants if _number(v, metric) is None]
            parts.append(_link_clause(what, known, without, ratios, lower, upper))
    sentence = "; ".join(parts)
    return sentence[:1].upper() + sentence[1:]


def _link_clause(
    what: str,
    variants: Sequence[VariantResult],
    without: Sequence[str],
    ratios: Sequence[float],
    lower: int,
    upper: int,
) -> str:
    """``without`` are the names of variants in which no byte takes such a link."""
    low, high = min(ratios), max(ratios)
    best, worst = variants[ratios.index(low)], variants[ratios.index(high)]
    idle = _idle_links(worst, lower, upper, what)
    busiest = f"the busiest {what} carries {_times(high)} the mean"
    if len(variants) == 1 and not without:
        return f"{idle} and {busiest}" if idle else busiest
    none = f"; no byte takes one with {', '.join(without)}" if without else ""
    if is_tie(low, high) and len(variants) > 1:
        return f"{busiest} with {_all_of(len(variants))}{none}"
    idle = f" ({idle})" if idle else ""
    if len(variants) == 1:
        return f"{busiest} with {worst.name}{idle}{none}"
    return f"{busiest} with {worst.name}{idle}, {_times(low)} with {best.name}{none}"


def _times(ratio: float) -> str:
    return f"{three_digits(ratio)} times"


def _idle_links(variant: VariantResult, lower: int, upper: int, what: str) -> str:
    """ "7 of 16 up links stay idle", or nothing."""
    ports = links(variant, lower, upper)
    idle = sum(not port.data_bytes for port in ports)
    stay = "stays" if idle == 1 else "stay"
    return f"{idle} of {plural(len(ports), what)} {stay} idle" if idle else ""


def waiting_finding(result: RunResult) -> str:
    """How much of the slowest flow's time is local ACK timeouts; empty where it is not most."""
    parts = []
    for variant in result.variants:
        finished = [flow for flow in variant.flows if flow.completion_time]
        slowest = max(finished, key=lambda flow: flow.completion_time or 0.0, default=None)
        exponent = _parameter(result, variant, "nic.timeout")
        if slowest is None or not slowest.completion_time or not isinstance(exponent, int):
            continue
        # the queue pairs of a flow may wait at the same time
        in_turn = math.ceil(slowest.timeouts / slowest.queue_pairs)
        waited = in_turn * ACK_TIMEOUT_UNIT * 2**exponent
        if waited > MOST * slowest.completion_time:
            parts.append(
                f"{plural(in_turn, 'timeout')} ({format_quantity(waited, 's')} of "
                f"{format_quantity(slowest.completion_time, 's')}) with {variant.name}"
            )
    return f"The slowest flow mostly waits, for {' and for '.join(parts)}" if parts else ""


def reordering_finding(result: RunResult) -> str:
    """How many packets overtook others; empty if none did, or if what is missing was lost."""
    shares = [_number(variant, "out_of_order_share") for variant in result.variants]
    if not any(shares) or any(_number(v, "dropped_packets") for v in result.variants):
        return ""
    subject = "Of all packets that arrive, those ahead of their turn are"
    if len(shares) == 1:
        return f"{subject} {format_quantity(shares[0], 'share')}"
    return _contrast(subject, [variant.name for variant in result.variants], shares, "share")


def failure_finding(result: RunResult) -> str:
    """How many flows failed, how, and after which fault; empty if none did."""
    parts = []
    for variant in result.variants:
        failed = Counter(flow.status for flow in variant.flows if flow.failed)
        if not failed:
            continue
        name = f" with {variant.name}" if len(result.variants) > 1 else ""
        how = ", ".join(f"{count} {status}" for status, count in sorted(failed.items()))
        parts.append(
            f"{failed.total()} of {plural(len(variant.flows), 'flow')} failed{name} ({how})"
            f"{_after_faults(variant)}"
        )
    return "; ".join(parts)


def _after_faults(variant: VariantResult) -> str:
    """The first fault that took links away, and how many more did; empty if none did."""
    cuts = [f"{f.what} {f.subject}" for f in variant.faults if f.links and "down" in f.what]
    if not cuts:
        return ""
    more = f" and {plural(len(cuts) - 1, 'more fault')}" if cuts[1:] else ""
    return f" after {cuts[0]}{more}"


def _parameter(result: RunResult, variant: VariantResult, dotted: str) -> object:
    """A scenario's parameter as the variant had it; None if there is none."""
    value: object = result.scenario
    for key in dotted.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return variant.overrides.get(dotted, value)


def _contrast(subject: str, names: Sequence[str], values: Sequence[float | None], unit: str) -> str:
    """ "<subject> 1.20 ms with a and 3.00 ms (2.50×) with b"; ties and gaps are told as such."""
    known = [(v, n) for v, n in zip(values, names, strict=True) if v is not None]
    unknown = [n for v, n in zip(values, names, strict=True) if v is None]
    missing = f" (none with {', '.join(unknown)})" if unknown else ""
    if not known:
        return f"{subject} nothing measurable in any variant"
    (low, low_name), (high, high_name) = min(known), max(known)
    low_text, high_text = format_quantity(low, unit), format_quantity(high, unit)
    if is_tie(low, high):
        group = known[0][1] if len(known) == 1 else _all_of(len(known))
        return f"{subject} {low_text} with {group}{missing}"
    ratio = f" ({three_digits(high / low)}×)" if low else ""
    between = "between " if len(known) > 2 else ""
    return (
        f"{subject} {between}{low_text} with {low_name} and "
        f"{high_text}{ratio} with {high_name}{missing}"
    )


def is_tie(a: float, b: float) -> bool:
    """Whether two values are too close to call."""
    return abs(a - b) <= TIE * max(abs(a), abs(b))


def _number(variant: VariantResult, metric: str) -> float | None:
    value = variant.metrics.get(metric)
    return float(value) if isinstance(value, (int, float)) else None


def _deepest_port(variant: VariantResult) -> PortResult | None:
    port = max(variant.ports, key=lambda p: p.max_depth, default=None)
    return port if port is not None and port.max_depth > 0 else None


def _is_full(port: PortResult) -> bool:
    return port.limit is not None and port.max_depth + FULL_SLACK > port.limit


def _all_of(count: int) -> str:
    return "both" if count == 2 else f"all {count}"


def _subject(interface: str) -> str:
    return f"the queue of {interface} " if interface else ""
