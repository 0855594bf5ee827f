"""The end of ``rocelab run`` on a terminal: comparison, expectations, verdict, where the report is.

Everything fits 80 columns; variants that do not fit beside each other get a table of their own
below. Without a terminal the same text comes without colours and box characters.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from testbed.fidelity import Verdict
from testbed.report import findings, jobs, tables
from testbed.report.grid import Grid, GridLine, grid_lines, grid_of
from testbed.report.link_chart import shows_links
from testbed.report.tables import ComparisonRow
from testbed.results import RunResult

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

COLUMNS = 80
_COLUMN_GAP = 3
"""Blank columns between two cells."""

_STYLE = {
    Verdict.FAITHFUL: "bold green",
    Verdict.DEGRADED: "bold yellow",
    Verdict.INVALID: "bold red",
}


def print_summary(result: RunResult, report: os.PathLike[str] | None, console: Console) -> None:
    """Print a result; ``report`` is the path of its report page, if there is one."""
    rows = tables.comparison(result)
    names = [variant.name for variant in result.variants]
    # A terminal's table has a blank column at either side.
    width = min(console.width, COLUMNS) - 2 if console.is_terminal else COLUMNS
    chunks = list(_columns_that_fit(names, rows, width))
    grid = grid_of(result) if len(chunks) > 1 else None
    if grid is not None:
        _print_grid(grid, grid_lines(grid, rows, result), console)
    else:
        for chunk in chunks:
            _print_comparison(names, rows, chunk, console)
    if jobs.sizes_differ(result):
        _print_jobs(result, console)
    for note in jobs.job_notes(result, verification=False):
        _say(note, console)
    _print_causes(result, console)
    if result.expectations:
        _print_expectations(result, console)
    _print_verdict(result, console)
    if report is not None:
        _say(f"report   {os.fspath(report)}", console)


def _columns_that_fit(
    names: Sequence[str], rows: Sequence[ComparisonRow], width: int
) -> Iterator[range]:
    """Consecutive variants whose columns fit beside the metric names."""
    label = max((len(row.label) for row in rows), default=0)
    widths = [
        max([len(name), *(len(row.cells[i]) for row in rows)]) + _COLUMN_GAP
        for i, name in enumerate(names)
    ]
    start, used = 0, label
    for i, needed in enumerate(widths):
        if i > start and used + needed > width:
            yield range(start, i)
            start, used = i, label
        used += needed
    if names:
        yield range(start, len(names))


def _print_comparison(
    names: Sequence[str], rows: Sequence[ComparisonRow], chunk: range, console: Console
) -> None:
    from rich.text import Text

    table = _table(console)
    table.add_column("", no_wrap=True)
    for i in chunk:
        table.add_column(Text(names[i]), justify="right", overflow="fold")
    for row in rows:
        cells = [Text(row.cells[i], style="bold green" if i == row.best else "") for i in chunk]
        table.add_row(Text(row.label), *cells)
    console.print(table)
    if not console.is_terminal:
        console.print()


def _print_jobs(result: RunResult, console: Console) -> None:
    """How the throughput of a training job grows with its ranks."""
    from rich.text import Text

    rows = jobs.job_table(result)
    table = _table(console)
    for position, name in enumerate(rows.header):
        table.add_column(Text(name), justify="right" if position in rows.numeric else "left")
    for row in rows.rows:
        table.add_row(*map(Text, row))
    console.print(table)
    if not console.is_terminal:
        console.print()


def _print_grid(grid: Grid, lines: Sequence[GridLine], console: Console) -> None:
    """Variants that are combinations: only metrics that differ; the report has all of them."""
    from rich.text import Text

    table = _table(console)
    table.add_column("", no_wrap=True)
    table.add_column(Text(grid.row_name), overflow="fold")
    for name in grid.columns:
        table.add_column(Text(name), justify="right", overflow="fold")
    for line in lines:
        cells = [
            Text(cell, style="bold green" if i == line.best else "")
            for i, cell in enumerate(line.cells)
        ]
        table.add_row(Text(line.label), Text(line.row), *cells)
    console.print(table)
    if not console.is_terminal:
        console.print()


def _table(console: Console) -> Table:
    from rich import box
    from rich.table import Table

    return Table(
        box=box.SIMPLE_HEAD if console.is_terminal else None,
        pad_edge=False,
        padding=(0, _COLUMN_GAP - 1 if console.is_terminal else _COLUMN_GAP, 0, 0),
        header_style="bold",
    )


def _print_causes(result: RunResult, console: Console) -> None:
    """Why it took so long, after the table that says how long."""
    sentences = [
        findings.failure_finding(result),
        findings.queue_finding(result),
        findings.reordering_finding(result),
        findings.waiting_finding(result),
    ]
    if shows_links(result):
        sentences.insert(1, findings.link_finding(result))
    for sentence in sentences:
        if sentence:
            _say(textwrap.fill(f"{sentence}.", COLUMNS, break_on_hyphens=False), console)
    console.print()


def _print_expectations(result: RunResult, console: Console) -> None:
    from rich.text import Text

    yes, no = ("✓", "✗") if _can_print("✓✗", console) else ("met", "NOT met")
    for expectation in result.expectations:
        mark = Text(yes, style="green") if expectation.met else Text(no, style="bold red")
        where = f" ({expectation.variant})" if expectation.variant else ""
        found = "" if expectation.met and not expectation.actual else f": {expectation.actual}"
        line = Text.assemble(mark, " ", expectation.text, where, found)
        console.print(line, soft_wrap=True, highlight=False)


def _print_verdict(result: RunResult, console: Console) -> None:
    """The verdict on the whole run, then what spoke against each variant."""
    from rich.text import Text

    console.print(Text.assemble("verdict  ", (str(result.verdict), _STYLE[result.verdict])))
    for variant in result.variants:
        for reason in variant.fidelity.reasons:
            _say(f"  {variant.name}: {reason}", console)
        if variant.attempts > 1:
            _say(f"  {variant.name}: the best of {variant.attempts} attempts", console)
        if variant.fidelity.dilation_enough:
            enough = f"{variant.fidelity.dilation_enough:.0f}"
            _say(f"  {variant.name}: enough would be --dilation {enough}", console)
        if not variant.ledger.closed:
            _say(f"  {variant.name}: {variant.ledger.summary}", console)


def _say(text: str, console: Console) -> None:
    """Print a line as it is: no markup, no wrapping of paths."""
    from rich.text import Text

    console.print(Text(text), soft_wrap=not console.is_terminal or " " not in text.strip())


def _can_print(text: str, console: Console) -> bool:
    try:
        text.encode(console.encoding)
    except UnicodeEncodeError:
        return False
    return True
