"""A perfect network in memory: runs all ranks of a plan, in a shuffled but repeatable order; and
what a reduction must give.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np

from traffic.executor import RankExecutor, apply
from traffic.payload import initial_memory
from traffic.plan import Op, OpKind, Plan

Link = tuple[int, int]
"""A connection and -1, or on NVLink the ranks at both ends."""


def run_lossless(
    plan: Plan,
    *,
    seed: int = 0,
    on_outstanding: Callable[[int], None] = lambda outstanding: None,
) -> list[bytearray]:
    """Execute a plan; returns every rank's memory. Fails if the ranks get stuck.

    Messages arrive at random, but in order on each connection. ``on_outstanding`` is told the
    number of rank 0's SENDs that are under way, each time it changes.
    """
    chooser = random.Random(seed)
    memories = [bytearray(initial_memory(plan, rank)) for rank in range(plan.world_size)]
    executors = [RankExecutor(plan, rank) for rank in range(plan.world_size)]
    receives = {
        (op.connection, op.tag): op for ops in plan.ops for op in ops if op.kind is OpKind.RECEIVE
    }
    local_receives = {
        (op.peer, op.rank, op.tag): op
        for ops in plan.ops
        for op in ops
        if op.kind is OpKind.LOCAL_RECEIVE
    }
    queues: dict[Link, list[Op]] = {}
    now = 0.0
    for executor in executors:
        executor.start(now)
    while not all(executor.done for executor in executors):
        now += 1.0
        for executor in executors:
            _release(plan, executor, memories, queues, now)
        on_outstanding(sum(op.rank == 0 for queue in queues.values() for op in queue))
        waiting = sorted(connection for connection, queue in queues.items() if queue)
        if not waiting:
            starts = [executor.next_start() for executor in executors]
            done = all(executor.done for executor in executors)
            assert done or any(start is not None for start in starts), "stuck"
            continue
        op = queues[chooser.choice(waiting)].pop(0)
        peer = plan.destination(op)
        data = memories[op.rank][op.offset : op.offset + op.length]
        memories[peer][op.remote_offset : op.remote_offset + op.length] = data
        executors[op.rank].complete(op.op_id, now)
        if op.kind is OpKind.LOCAL_SEND:
            executors[peer].complete(local_receives[op.rank, peer, op.tag].op_id, now)
        elif (op.connection, op.tag) in receives:
            executors[peer].complete(receives[op.connection, op.tag].op_id, now)
    return memories


def _release(
    plan: Plan,
    executor: RankExecutor,
    memories: list[bytearray],
    queues: dict[Link, list[Op]],
    now: float,
) -> None:
    while released := executor.ready(now):
        for op in released:
            if op.kind is OpKind.SEND:
                queues.setdefault((op.connection, -1), []).append(op)
            elif op.kind is OpKind.LOCAL_SEND:
                queues.setdefault((op.rank, op.peer), []).append(op)
            elif op.kind is OpKind.COMPUTE:
                executor.complete(op.op_id, now)
            elif op.kind not in (OpKind.RECEIVE, OpKind.LOCAL_RECEIVE):
                apply(op, memories[op.rank], dtype=plan.dtype, reduction=plan.reduction)
                executor.complete(op.op_id, now)


def assert_reduced(
    result: np.ndarray, inputs: Sequence[np.ndarray], reduction: str, dtype: str
) -> None:
    """``result`` is numpy's reduction of the inputs, but for what the order of additions costs."""
    if reduction == "max":
        assert np.array_equal(result, np.max(inputs, axis=0))
    elif dtype == "int32":
        assert np.array_equal(result, np.sum(inputs, axis=0, dtype=np.int32))
    else:
        exact = np.sum([values.astype(np.float64) for values in inputs], axis=0)
        epsilon = float(np.finfo(dtype).eps)
        assert np.allclose(result, exact, atol=len(inputs) ** 2 * epsilon)
