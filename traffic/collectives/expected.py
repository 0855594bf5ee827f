"""The numbers that a schedule must give, bit for bit: its own order of additions, on numpy arrays.

A schedule is run on expressions, which say what was combined with what; they are evaluated one
slot at a time, so that not all ranks' memories are needed to check one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traffic.collectives.graph import ScheduleGraph, execute
from traffic.collectives.schedule import Schedule
from traffic.plan import Reduction

Expression = tuple[Any, Any]
"""(rank, input slot) of a leaf, or (target, source): two expressions that a REDUCE combines."""

_COMBINE: dict[Reduction, np.ufunc] = {Reduction.SUM: np.add, Reduction.MAX: np.maximum}


def output_expressions(schedule: Schedule) -> list[list[Expression | None]]:
    """What every rank's output slots hold in the end; None for empty slots."""

    def leaf(rank: int, slot: int) -> Expression:
        return rank, slot

    def combined(target: Expression, source: Expression) -> Expression:
        return target, source

    memories = execute(ScheduleGraph(schedule), leaf, combined)
    return [
        memory[layout.first_output : layout.first_scratch]
        for memory, layout in zip(memories, schedule.layouts, strict=True)
    ]


def evaluate(
    expression: Expression,
    read: Callable[[int, int], NDArray[Any]],
    reduction: Reduction,
) -> NDArray[Any]:
    """The value of an expression; ``read(rank, slot)`` gives a fresh array of an input slot."""
    combine = _COMBINE[reduction]
    values: list[NDArray[Any]] = []
    # an explicit stack: chains are as deep as there are ranks; None means: combine the last two
    work: list[Expression | None] = [expression]
    while work:
        current = work.pop()
        if current is None:
            source = values.pop()
            combine(values[-1], source, out=values[-1])
        elif isinstance(current[0], int):
            values.append(read(*current))
        else:
            work += [None, current[1], current[0]]
    return values[0]


def expected_outputs(
    schedule: Schedule, inputs: list[NDArray[Any]], reduction: Reduction
) -> list[NDArray[Any]]:
    """Every rank's output for given inputs; for small data, as everything is in memory at once."""
    bounds = [list(accumulate(layout.input, initial=0)) for layout in schedule.layouts]

    def read(rank: int, slot: int) -> NDArray[Any]:
        return inputs[rank][bounds[rank][slot] : bounds[rank][slot + 1]].copy()

    empty = np.empty(0, dtype=inputs[0].dtype)
    return [
        np.concatenate([empty, *(evaluate(e, read, reduction) for e in expressions if e)])
        for expressions in output_expressions(schedule)
    ]
