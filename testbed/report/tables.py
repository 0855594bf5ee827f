"""The tables of a report as plain text cells, for the page and the terminal alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testbed.fidelity import FidelityRule
from testbed.report.findings import is_tie
from testbed.report.parameters import parameters
from testbed.report.quantities import MISSING, format_quantity, in_words, three_digits
from testbed.results import (
    METRICS,
    FlowResult,
    MetricInfo,
    MetricValue,
    RunResult,
    VariantResult,
)

ALWAYS_SHOWN = (
    "completion_time_median", "completion_time_max", "goodput", "dropped_packets",
    "retransmitted_packets", "retransmitted_bytes", "naks", "timeouts", "max_queue_depth",
    "ledger_open", "verdict",
)  # fmt: skip
"""Rows that appear even when every variant has 0; the others only when they say something."""


@dataclass(frozen=True)
class ComparisonRow:
    """One metric across the variants. ``best`` is the column that is best, if one is."""

    metric: str
    description: str
    cells: list[str]
    best: int | None

    @property
    def label(self) -> str:
        """The metric's name in words."""
        return in_words(self.metric)


@dataclass(frozen=True)
class Table:
    """A header and rows of text; ``numeric`` columns are aligned right."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: frozenset[int] = frozenset()
    left_out: int = 0


def comparison(result: RunResult) -> list[ComparisonRow]:
    """Metrics as rows, one cell per variant."""
    rows = []
    for name, info in METRICS.items():
        values = [variant.metrics.get(name) for variant in result.variants]
        if name not in ALWAYS_SHOWN and not any(values):
            continue
        cells = [format_quantity(value, info.unit) for value in values]
        rows.append(ComparisonRow(name, info.description, cells, _best(info, values)))
    return rows


def _best(info: MetricInfo, values: Sequence[MetricValue]) -> int | None:
    numbers = [(float(v), i) for i, v in enumerate(values) if isinstance(v, (int, float))]
    if info.better == "none" or len(numbers) < 2:
        return None
    numbers.sort(reverse=info.better == "higher")
    return None if is_tie(numbers[0][0], numbers[1][0]) else numbers[0][1]


def flows(variant: VariantResult, *, limit: int) -> Table:
    """The slowest flows first; those that never finished before all others."""
    ordered = sorted(
        variant.flows,
        key=lambda f: (f.completion_time is not None, -(f.completion_time or 0.0), f.index),
    )
    rows = [
        [
            str(flow.index),
            f"{flow.source_rank} → {flow.destination_rank}",
            format_quantity(flow.bytes, "B"),
            format_quantity(flow.completion_time, "s"),
            format_quantity(flow.goodput, "bit/s"),
            f"{flow.sent_packets:,}",
            f"{flow.retransmitted_packets:,}",
            f"{flow.naks:,}",
            f"{flow.timeouts:,}",
            flow.status.removeprefix("IBV_WC_"),
            _path(flow),
        ]
        for flow in ordered[:limit]
    ]
    header = (
        "flow", "ranks", "bytes", "completion", "goodput", "sent", "again", "NAKs", "timeouts",
        "status", "path",
    )  # fmt: skip
    return Table(header, rows, frozenset({0, *range(2, 9)}), max(0, len(ordered) - limit))


def _path(flow: FlowResult) -> str:
    others = len(flow.paths) - 1
    return (" ".join(flow.path) or MISSING) + (f", and {others:,} more" if others > 0 else "")


def faults(variant: VariantResult) -> Table:
    """What failed, and what the fabric did about it."""
    rows = [
        [
            format_quantity(fault.time, "s"),
            fault.what,
            fault.subject or MISSING,
            MISSING if fault.reaction else f"{fault.flushed_packets:,}",
            ", ".join(fault.links) or MISSING,
        ]
        for fault in variant.faults
    ]
    return Table(("time", "what", "where", "packets flushed", "links"), rows, frozenset({0, 3}))


def ports(variant: VariantResult, *, limit: int) -> Table:
    """Ports that carried or dropped anything, those with most drops and deepest queues first."""
    used = [p for p in variant.ports if p.enqueued_packets or p.dropped_packets]
    used.sort(key=lambda p: (-sum(p.dropped_bytes.values()), -p.max_depth, p.interface))
    span = variant.emulated_seconds
    rows = [
        [
            port.interface,
            format_quantity(port.rate, "bit/s"),
            f"{port.enqueued_packets:,}",
            format_quantity(port.dequeued_bytes, "B"),
            f"{port.dequeued_bytes * 8 / span / port.rate:.1%}" if span > 0 else MISSING,
            _by_reason(port.dropped_packets),
            f"{port.marked_packets:,}",
            format_quantity(port.max_depth, "B"),
            "no" if port.limit is None else format_quantity(port.limit, "B"),
        ]
        for port in used[:limit]
    ]
    header = (
        "port", "rate", "packets", "bytes", "utilisation", "dropped", "marked", "max depth",
        "limit",
    )  # fmt: skip
    return Table(header, rows, frozenset(range(1, 9)), max(0, len(used) - limit))


def _by_reason(counts: Mapping[str, int]) -> str:
    parts = [f"{count:,} {reason}" for reason, count in counts.items() if count]
    return ", ".join(parts) or "0"


def ledger_accounts(variant: VariantResult) -> Table:
    """Sent = delivered + dropped + in flight + open, by traffic class."""
    rows = [
        [
            str(account.traffic_class),
            f"{account.sent:,}",
            f"{account.delivered:,}",
            f"{account.dropped:,}",
            f"{account.in_flight:,}",
            f"{account.open:,}",
        ]
        for account in variant.ledger.accounts
    ]
    header = ("packets", "sent", "delivered", "dropped", "in flight", "unexplained")
    return Table(header, rows, frozenset(range(1, 6)))


def ledger_losses(variant: VariantResult) -> Table:
    """Where packets ended that were not delivered."""
    rows = [
        [
            row.place,
            row.fate,
            row.reason,
            str(row.traffic_class),
            f"{row.packets:,}",
            format_quantity(row.bytes, "B"),
        ]
        for row in variant.ledger.rows
        if row.fate != "delivered"
    ]
    return Table(("place", "fate", "reason", "class", "packets", "bytes"), rows, frozenset({4, 5}))


def ledger_failures(variant: VariantResult) -> Table:
    """Sums that do not close."""
    rows = [
        [check.place, check.name, f"{check.left:,}", f"{check.right:,}", f"{check.difference:+,}"]
        for check in variant.ledger.failed
    ]
    header = ("place", "sum", "left", "right", "difference")
    return Table(header, rows, frozenset({2, 3, 4}))


def fidelity_rules(variant: VariantResult) -> Table:
    """Every rule, what was measured and the limits it was held against."""
    rows = [
        [
            rule.name,
            _rule_value(rule, rule.value),
            _rule_value(rule, rule.faithful_limit),
            MISSING if rule.degraded_limit is None else _rule_value(rule, rule.degraded_limit),
            str(rule.state),
        ]
        for rule in variant.fidelity.rules
    ]
    header = ("rule", "measured", "faithful up to", "degraded up to", "state")
    return Table(header, rows, frozenset({1, 2, 3}))


def _rule_value(rule: FidelityRule, value: float) -> str:
    if rule.unit == "ratio":
        return f"{three_digits(100 * value)} %"
    return format_quantity(value, rule.unit)


def variants(result: RunResult) -> Table:
    """What differs between the variants and at which scale each ran."""
    rows = [
        [
            variant.name,
            f"{variant.dilation:,.0f}",
            format_quantity(variant.emulated_seconds, "s"),
            format_quantity(variant.wall_seconds, "s"),
            format_quantity(variant.skipped_wall_seconds, "s"),
            variant.plan_hash[:12],
            ", ".join(f"{key} = {value}" for key, value in variant.overrides.items()) or MISSING,
        ]
        for variant in result.variants
    ]
    header = ("variant", "dilation k", "emulated", "wall", "skipped", "plan", "sets")
    return Table(header, rows, frozenset({1, 2, 3, 4}))


def what_was_run(result: RunResult) -> Table:
    """The scenario as resolved, flattened to dotted names."""
    skipped = {"name", "description", "variants", "expect"}
    scenario = {key: value for key, value in result.scenario.items() if key not in skipped}
    return Table(("parameter", "value"), [list(line) for line in parameters(scenario)])


def environment(result: RunResult) -> Table:
    """The machine, the versions and the times of the run."""
    env = result.environment
    took = (result.finished - result.started).total_seconds()
    rows = [
        ["started", result.started.isoformat(timespec="seconds")],
        ["took", f"{took:.0f} s of wall time"],
        ["host", env.hostname or MISSING],
        ["kernel", env.kernel],
        ["CPU", f"{env.cores} × {env.cpu}"],
        ["memory", format_quantity(env.memory, "B")],
        *([name, version] for name, version in env.versions.items()),
    ]
    return Table(("", ""), rows)
