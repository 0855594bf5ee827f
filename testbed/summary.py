"""The outcome of a run on the terminal: metrics side by side, expectations, verdict.

Fits into 80 columns; the full account is in the report.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.report.quantities import format_quantity
from testbed.results import METRICS, RunResult

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = (
    "completion_time_median", "completion_time_max", "slowdown", "goodput", "busbw",
    "dropped_packets", "retransmitted_packets", "retransmitted_bytes", "naks", "timeouts",
    "max_queue_depth", "ecn_marked_packets", "wrong_elements", "failed_flows", "ledger_open",
    "verdict",
)  # fmt: skip
"""Metrics of the table; one that no variant has, or that is 0 in all, is left out if optional."""

_OPTIONAL = frozenset({"busbw", "ecn_marked_packets", "wrong_elements", "failed_flows"})


def print_summary(result: RunResult, directory: Path, console: Console) -> None:
    """Print a result."""
    from rich.table import Table

    table = Table(title=result.name, title_justify="left")
    table.add_column("")
    for variant in result.variants:
        table.add_column(variant.name, justify="right", overflow="fold")
    for metric in SHOWN:
        values = [variant.metrics.get(metric) for variant in result.variants]
        if metric in _OPTIONAL and not any(values):
            continue
        unit = METRICS[metric].unit
        table.add_row(metric.replace("_", " "), *(format_quantity(v, unit) for v in values))
    console.print(table)
    for expectation in result.expectations:
        mark, style = ("met", "green") if expectation.met else ("FAILED", "bold red")
        console.print(f"  {mark:<7}", style=style, end="")
        actual = "" if expectation.met else f"  ({expectation.actual})"
        console.print(f"{expectation.text}{actual}", markup=False)
    for variant in result.variants:
        for reason in variant.fidelity.reasons:
            console.print(f"  {variant.name}: {reason}", style="yellow", markup=False)
    console.print(f"results: {directory}", markup=False, soft_wrap=True)


def one_line(result: RunResult, directory: Path) -> str:
    """A result in one line, for --quiet."""
    failed = [expectation.text for expectation in result.expectations if not expectation.met]
    outcome = (
        f"expectation failed: {'; '.join(failed)}"
        if failed
        else f"{len(result.expectations)} expectations met"
    )
    return f"{result.name}: {result.verdict.value}, {outcome}; results: {directory}"


def as_json(result: RunResult, directory: Path, status: int) -> str:
    """What a program wants to know of a run; all else is in the directory's result.json."""
    document: dict[str, Any] = {
        "name": result.name,
        "status": status,
        "verdict": result.verdict.value,
        "directory": str(directory.resolve()),
        "expectations": [expectation.model_dump() for expectation in result.expectations],
        "variants": {variant.name: dict(variant.metrics) for variant in result.variants},
    }
    return json.dumps(document, indent=1)
