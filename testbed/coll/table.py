"""nccl-tests' table, out of place only, in 80 columns: the model's time takes the in-place half."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from testbed.coll.crossover import crossover_sentence, stretches, times_by_algorithm
from testbed.fidelity import Verdict
from testbed.results import CollectiveResult, RunResult, VariantResult

_COLUMNS = (
    # title, unit, width
    ("size", "(B)", 10),
    ("count", "(elements)", 11),
    ("type", "", 6),
    ("redop", "", 6),
    ("root", "", 5),
    ("time", "(us)", 8),
    ("algbw", "(GB/s)", 7),
    ("busbw", "(GB/s)", 7),
    ("#wrong", "", 7),
    ("model", "(us)", 7),
    ("ratio", "", 6),
)

_TYPE_NAMES = {"float32": "float", "float16": "half"}
"""As nccl-tests calls them; others have the same name."""

_PER_RANK = frozenset(
    {"all-gather", "reduce-scatter", "gather", "scatter", "all-to-all", "all-to-allv"}
)
"""Collectives whose count is that of one rank's share (nccl-tests, src/*.cu: paramCount)."""


def header(*, ranks: int, per_server: int | None, channels: int, iterations: int) -> list[str]:
    """The lines above the rows. ``per_server`` ranks exchange data over NVLink; 1 if none do."""
    titles = "".join(title.rjust(width) for title, _, width in _COLUMNS)
    units = "".join(unit.rjust(width) for _, unit, width in _COLUMNS)
    shared = f" ({per_server} per server)" if per_server else ""
    return [
        f"# {ranks} ranks{shared}, {channels} channel{'s' if channels > 1 else ''}, "
        f"{iterations} iteration{'s' if iterations > 1 else ''}; out of place only",
        "# model: pipelined alpha-beta model of the algorithm; ratio: time over it",
        "#",
        f"#{titles[1:]}".rstrip(),
        f"#{units[1:]}".rstrip(),
    ]


class TablePrinter:
    """Prints the table row by row: ``write`` takes each line as soon as its figures are there."""

    def __init__(self, write: Callable[[str], None], *, channels: int, iterations: int) -> None:
        self._write = write
        self._channels = channels
        self._iterations = iterations
        self._algorithm: str | None = None

    def add(self, variant: VariantResult) -> None:
        """The next variant's row, below a line with its algorithm if that is another one."""
        lines = []
        if self._algorithm is None:
            self._algorithm = ""
            done = variant.collective
            lines = header(
                ranks=done.ranks if done else len(variant.ranks),
                per_server=done.gpus_per_server if done else None,
                channels=self._channels,
                iterations=self._iterations,
            )
        algorithm = variant.collective.algorithm if variant.collective else self._algorithm
        if algorithm != self._algorithm:
            self._algorithm = algorithm
            lines.append(f"# algorithm: {algorithm}")
        for line in [*lines, *rows(variant)]:
            self._write(line)


def whole_table(result: RunResult) -> list[str]:
    """All lines of a sweep that is over."""
    lines: list[str] = []
    workload = result.scenario.get("workload", {})
    times = [len(v.collective.times) for v in result.variants if v.collective]
    printer = TablePrinter(
        lines.append, channels=workload.get("channels", 1), iterations=max([1, *times])
    )
    for variant in result.variants:
        printer.add(variant)
    return [*lines, *footer(result)]


def rows(variant: VariantResult) -> list[str]:
    """The line of results, and below it what speaks against them."""
    below = [*_losses(variant), *_doubts(variant)]
    if variant.collective is None:
        return [f"# {variant.name}: did not come to its end", *below]
    return [_row(variant.collective, variant.metrics.get("wrong_elements")), *below]


def _losses(variant: VariantResult) -> list[str]:
    """What was dropped and waited for: it explains a time that is nowhere near the model's."""
    counts = [
        (int(variant.metrics.get(metric) or 0), what)
        for metric, what in (("dropped_packets", "dropped packet"), ("timeouts", "timeout"))
    ]
    found = ", ".join(f"{count} {what}{'s' * (count > 1)}" for count, what in counts if count)
    return [f"# {found}"] if found else []


def _doubts(variant: VariantResult) -> list[str]:
    verdict, lines = variant.fidelity.verdict, []
    if variant.attempts > 1:
        lines.append(f"# the best of {variant.attempts} attempts")
    if verdict is not Verdict.FAITHFUL:
        lines += [f"# {verdict}: {reason.partition(':')[0]}" for reason in variant.fidelity.reasons]
    return lines


def _row(collective: CollectiveResult, wrong: float | int | str | None) -> str:
    cells = (
        str(collective.bytes),
        str(_count(collective)),
        _TYPE_NAMES.get(collective.dtype, collective.dtype),
        collective.reduction or "none",
        "-1" if collective.root is None else str(collective.root),
        _adaptive(collective.time * 1e6),
        _adaptive(collective.algbw / 8e9),
        _adaptive(collective.busbw / 8e9),
        "N/A" if wrong is None else str(wrong),
        _adaptive(collective.model_time * 1e6) if collective.model_time else "N/A",
        _ratio(collective.time / collective.model_time) if collective.model_time else "N/A",
    )
    return "".join(cell.rjust(width) for cell, (_, _, width) in zip(cells, _COLUMNS, strict=True))


def footer(result: RunResult) -> list[str]:
    """The lines below the rows: wrong values and the mean bus bandwidth, as nccl-tests has them."""
    wrong = sum(int(v.metrics.get("wrong_elements") or 0) for v in result.variants)
    known = [v.collective.busbw / 8e9 for v in result.variants if v.collective]
    lines = [f"# Out of bounds values : {wrong} {'OK' if wrong == 0 else 'FAILED'}"]
    if known:
        lines.append(f"# Avg bus bandwidth    : {statistics.fmean(known):g}")
    times = times_by_algorithm(result)
    if len(times) > 1:
        lines.append(f"# Crossover            : {crossover_sentence(stretches(times))}")
    lines.append(f"# Verdict              : {result.verdict}")
    return lines


def _count(collective: CollectiveResult) -> int:
    elements = collective.elements or 0
    if collective.operation in _PER_RANK:
        return -(-elements // collective.ranks)
    return elements


def _ratio(value: float) -> str:
    """At most five characters: 1.02, 23.5, 2234, 1e+06."""
    if value >= 99999.5:
        return f"{value:.0e}"
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def _adaptive(value: float) -> str:
    """Digits as nccl-tests prints them: 12.34, 123.4, 12345."""
    if value >= 9999.5:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 99.95 else f"{value:.2f}"
