"""Which algorithm is faster at which sizes, and where that changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from testbed.coll.sizes import binary_size
from testbed.results import RunResult

TIE = 0.01
"""Relative difference of two times below which neither algorithm is the faster one."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbouring sizes at which the same algorithm is the fastest; None for a tie."""

    algorithm: str | None
    first: int
    last: int


def times_by_algorithm(result: RunResult) -> dict[str, dict[int, float]]:
    """Algorithm -> bytes -> seconds, of the collectives that came to their end.

    Under the name that was asked for, so that an automatic choice stays one line of a chart.
    """
    times: dict[str, dict[int, float]] = {}
    for variant in result.variants:
        if variant.collective is not None:
            name = str(variant.overrides.get("workload.algorithm", variant.collective.algorithm))
            times.setdefault(name, {})[variant.collective.bytes] = variant.collective.time
    return times


def stretches(times: Mapping[str, Mapping[int, float]]) -> list[Stretch]:
    """The sizes that all algorithms have, cut where the fastest changes."""
    common = sorted(set.intersection(*(set(sizes) for sizes in times.values()))) if times else []
    found = []
    for name, group in groupby(common, key=lambda size: _fastest(times, size)):
        sizes = list(group)
        found.append(Stretch(name, sizes[0], sizes[-1]))
    return found


def _fastest(times: Mapping[str, Mapping[int, float]], size: int) -> str | None:
    ranked = sorted((sizes[size], name) for name, sizes in times.items())
    if len(ranked) > 1 and ranked[1][0] <= (1 + TIE) * ranked[0][0]:
        return None
    return ranked[0][1]


def crossover_sentence(found: Sequence[Stretch]) -> str:
    """ "double-binary-tree wins up to 512 KiB, ring from 1 MiB"; empty for nothing to compare."""
    if not found:
        return ""
    if len(found) == 1:
        everywhere = "at all sizes"
        only = found[0].algorithm
        return f"No algorithm wins {everywhere}" if only is None else f"{only} wins {everywhere}"
    parts = []
    for place, stretch in enumerate(found):
        if place == 0:
            where = f"up to {binary_size(stretch.last)}"
        elif place == len(found) - 1:
            where = f"from {binary_size(stretch.first)}"
        elif stretch.first == stretch.last:
            where = f"at {binary_size(stretch.first)}"
        else:
            where = f"from {binary_size(stretch.first)} to {binary_size(stretch.last)}"
        name = "none" if stretch.algorithm is None else stretch.algorithm
        parts.append(f"{name} wins {where}" if place == 0 else f"{name} {where}")
    return ", ".join(parts)
