"""Runs one rank's part of a plan, sans-IO: says what may begin, is told what is complete.

The caller posts work requests for SEND and RECEIVE, hands LOCAL ones to the server's NVLink, does
REDUCE and COPY with ``apply``, lets COMPUTE take its time, and reports each completion. Every
operation costs O(its dependents), however large the plan is.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traffic.plan import DataType, Op, OpKind, Plan, Reduction

KINDS = tuple(OpKind)
"""What the numbers in ``Timeline.kind`` stand for."""

_NOT_YET = array("d", [math.nan])
_REDUCERS = {Reduction.SUM: np.add, Reduction.MAX: np.maximum}


@dataclass(frozen=True, slots=True)
class Timeline:
    """What one rank did when, with one entry for each operation, by op_id.

    ``kind`` is a position in KINDS. ``started`` is when an operation was handed out, which for a
    RECEIVE is when somebody may begin to wait for it, ``finished`` when it was complete: emulated
    seconds since the start of the traffic, NaN for what never happened.
    """

    kind: array[int]
    started: array[float]
    finished: array[float]


class RankExecutor:
    """The progress of one rank. Times are seconds of emulated time.

    ``started[op_id]`` and ``finished[op_id]`` are NaN until the operation was handed out or
    completed.
    """

    def __init__(self, plan: Plan, rank: int) -> None:
        self.rank = rank
        self.ops: Sequence[Op] = plan.ops[rank]
        count = len(self.ops)
        self.started = _NOT_YET * count
        self.finished = _NOT_YET * count
        self._unmet = [0] * count
        self._dependents: list[list[int]] = [[] for _ in range(count)]
        for op in self.ops:
            for needed in set(op.depends_on):
                self._dependents[needed].append(op.op_id)
                self._unmet[op.op_id] += 1
        self._epoch: float | None = None
        self._ready: deque[int] = deque()
        self._timed: list[tuple[float, int]] = []
        self._incomplete = count

    @property
    def done(self) -> bool:
        """Every operation is complete."""
        return self._incomplete == 0

    def timeline(self) -> Timeline:
        """When everything happened so far; shares its memory."""
        number = {kind: position for position, kind in enumerate(KINDS)}
        kinds = array("B", (number[op.kind] for op in self.ops))
        return Timeline(kinds, self.started, self.finished)

    def start(self, now: float) -> None:
        """Make ``now`` the origin of the plan's times. Raises RuntimeError if called twice."""
        if self._epoch is not None:
            raise RuntimeError(f"rank {self.rank} has already started")
        self._epoch = now
        for op in self.ops:
            if self._unmet[op.op_id] == 0:
                self._release(op)

    def ready(self, now: float) -> list[Op]:
        """Operations that may begin now, each handed out once, in the order they became ready."""
        while self._timed and self._timed[0][0] <= now:
            self._ready.append(heapq.heappop(self._timed)[1])
        released = [self.ops[op_id] for op_id in self._ready]
        self._ready.clear()
        for op in released:
            self.started[op.op_id] = now
        return released

    def complete(self, op_id: int, now: float) -> None:
        """Record a completion. Raises ValueError unless the operation was handed out, once."""
        if math.isnan(self.started[op_id]):
            raise ValueError(f"operation {op_id} of rank {self.rank} was not handed out")
        if not math.isnan(self.finished[op_id]):
            raise ValueError(f"operation {op_id} of rank {self.rank} is complete already")
        self.finished[op_id] = now
        self._incomplete -= 1
        unmet = self._unmet
        for dependent in self._dependents[op_id]:
            unmet[dependent] -= 1
            if unmet[dependent] == 0:
                self._release(self.ops[dependent])

    def next_start(self) -> float | None:
        """When ``ready`` will next have something without a completion; None if never.

        Never later than the truth: operations that are ready already give minus infinity.
        """
        if self._ready:
            return -math.inf
        return self._timed[0][0] if self._timed else None

    def _release(self, op: Op) -> None:
        assert self._epoch is not None
        if op.start > 0:
            heapq.heappush(self._timed, (self._epoch + op.start, op.op_id))
        else:
            self._ready.append(op.op_id)


def apply(op: Op, memory: Any, *, dtype: DataType, reduction: Reduction) -> None:
    """Carry out a REDUCE or COPY in a rank's memory, any writable buffer of bytes.

    Integers wrap around on overflow, as they do in NCCL. Raises ValueError for other kinds.
    """
    target = _elements(memory, op.offset, op.length, dtype)
    source = _elements(memory, op.source_offset, op.length, dtype)
    if op.kind is OpKind.REDUCE:
        _REDUCERS[reduction](target, source, out=target)
    elif op.kind is OpKind.COPY:
        target[:] = source
    else:
        raise ValueError(f"{op.kind} is not an operation in local memory")


def _elements(memory: Any, offset: int, length: int, dtype: DataType) -> NDArray[Any]:
    return np.frombuffer(memory, dtype=dtype.value, count=length // dtype.itemsize, offset=offset)
