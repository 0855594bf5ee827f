"""Variants that combine every value of one thing with every value of another, as a grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testbed.report.findings import is_tie
from testbed.report.tables import ComparisonRow
from testbed.results import RunResult, VariantResult

_DEFAULT = "default"
"""Stands for a field that neither the variant nor the scenario sets."""

_Values = tuple[tuple[str, str], ...]
"""What a variant sets of one thing: fields and values."""


@dataclass(frozen=True)
class Grid:
    """``rows`` x ``columns`` are the values; ``variant`` gives the index of each combination."""

    row_name: str
    column_name: str
    rows: Sequence[str]
    columns: Sequence[str]
    variant: Mapping[tuple[int, int], int]


@dataclass(frozen=True)
class GridLine:
    """A metric at one row of the grid. ``label`` is the metric's name on its first line only.

    ``best`` is the column of the best value, on the line that has it.
    """

    label: str
    row: str
    cells: Sequence[str]
    best: int | None


def grid_of(result: RunResult) -> Grid | None:
    """The grid that the variants form, at least 2 x 2 and complete; None if they form none.

    Two fields span it, or two sections of the scenario, where a scheme brings its parameters along.
    """
    fields = list(dict.fromkeys(key for v in result.variants for key in v.overrides))
    values = {key: [_value(result, variant, key) for variant in result.variants] for key in fields}
    varying = [key for key in fields if len(set(values[key])) > 1]
    sections = list(dict.fromkeys(key.split(".")[0] for key in varying))
    if len(varying) == 2:
        groups = [[key] for key in varying]
    elif len(sections) == 2:
        groups = [[key for key in varying if key.split(".")[0] == name] for name in sections]
    else:
        return None
    a, b = (
        [tuple((key, values[key][i]) for key in group) for i in range(len(result.variants))]
        for group in groups
    )
    if len(set(b)) > len(set(a)):  # long lists read better downwards
        a, b = b, a
    return _grid(a, b)


def grid_lines(grid: Grid, rows: Sequence[ComparisonRow], result: RunResult) -> list[GridLine]:
    """The metrics in which the variants differ, a line per row of the grid."""
    lines = []
    for row in rows:
        if not _differs(row.metric, result.variants):
            continue
        for i, name in enumerate(grid.rows):
            indices = [grid.variant[i, j] for j in range(len(grid.columns))]
            best = indices.index(row.best) if row.best in indices else None
            label = row.label if i == 0 else ""
            lines.append(GridLine(label, name, [row.cells[index] for index in indices], best))
    return lines


def _grid(a: Sequence[_Values], b: Sequence[_Values]) -> Grid | None:
    rows, columns = list(dict.fromkeys(a)), list(dict.fromkeys(b))
    places = {
        (rows.index(x), columns.index(y)): index
        for index, (x, y) in enumerate(zip(a, b, strict=True))
    }
    complete = len(places) == len(a) == len(rows) * len(columns)
    if not complete or min(len(rows), len(columns)) < 2:
        return None
    row_name, row_labels = _labels(rows)
    column_name, column_labels = _labels(columns)
    return Grid(row_name, column_name, row_labels, column_labels, places)


def _labels(values: Sequence[_Values]) -> tuple[str, list[str]]:
    """The first field and its values, if they tell all apart; else all that is set, together."""
    key = values[0][0][0]
    labels = [value[0][1] for value in values]
    if len(set(labels)) == len(labels):
        return key.split(".")[-1], labels
    together = [", ".join(t for _, t in value if t != _DEFAULT) or _DEFAULT for value in values]
    return key.split(".")[0], together


def _value(result: RunResult, variant: VariantResult, key: str) -> str:
    """A field of the scenario as the variant had it, as text."""
    if key in variant.overrides:
        return _text(variant.overrides[key])
    value: object = result.scenario
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return _DEFAULT if value is None else _text(value)


def _text(value: object) -> str:
    """A value without the punctuation of a file; an empty list is none of what it might hold."""
    if isinstance(value, Mapping):
        return " ".join(f"{key} {_text(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value)) or "none"
    return str(value)


def _differs(metric: str, variants: Sequence[VariantResult]) -> bool:
    values = [variant.metrics.get(metric) for variant in variants]
    numbers = [value for value in values if isinstance(value, (int, float))]
    if len(numbers) < len(values):
        return len(set(map(str, values))) > 1
    return not is_tie(min(numbers), max(numbers))
