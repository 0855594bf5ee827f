"""Proves plans: runs one on sets of contributions instead of numbers.

``traffic.collectives.proof`` does the same with schedules, before they have places in memory.
``contributions`` follows whose data reached which place through a plan's SEND, REDUCE and COPY
operations, in one possible order. ``races`` shows that no other order can give anything else:
two operations that touch the same bytes, one of them writing, must be ordered by dependencies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traffic.plan import Op, OpKind, Plan, PlanError
from traffic.schedule import OpKey, execution_order, match_messages


@dataclass(frozen=True, slots=True)
class SymbolicMemory:
    """What a rank's memory holds, per unit of ``unit`` bytes.

    ``counts[u, r]`` is how many times rank r's initial data contribute to unit u, and
    ``origin[u]`` from which unit of that rank's memory they come; -1 where nobody's do.
    """

    unit: int
    counts: NDArray[np.int64]
    origin: NDArray[np.int64]


def contributions(plan: Plan) -> list[SymbolicMemory]:
    """Every rank's memory after the plan. Raises PlanError if it mixes unrelated places."""
    unit = _unit(plan)
    memories = [_initial(plan, rank, unit) for rank in range(plan.world_size)]
    partner = match_messages(plan)
    for key in execution_order(plan):
        op = plan.ops[key[0]][key[1]]
        if op.kind.sends:
            # A message may land at any time until its RECEIVE completes; without races the
            # earliest time is as good as any.
            peer = memories[plan.destination(op)]
            _copy(memories[op.rank], op.offset, peer, op.remote_offset, op.length)
        elif op.kind is OpKind.COPY:
            memory = memories[op.rank]
            _copy(memory, op.source_offset, memory, op.offset, op.length)
        elif op.kind is OpKind.REDUCE:
            _reduce(memories[op.rank], op)
        elif key not in partner:
            continue  # COMPUTE stands for time alone
        elif plan.ops[partner[key][0]][partner[key][1]].remote_offset != op.offset:
            raise PlanError(f"{op} expects its message where the SEND does not put it")
    return memories


def races(plan: Plan) -> list[tuple[OpKey, OpKey]]:
    """Pairs of operations that conflict in some rank's memory and may happen in either order.

    Quadratic in the operations that touch the same bytes; meant for tests, not for runs.
    """
    before, position = _happens_before(plan)
    receive_of = {send: receive for receive, send in match_messages(plan).items()}

    def ordered(first: OpKey, second: OpKey) -> bool:
        # A message has been read and has landed once either end knows that it is complete.
        ends = [first, receive_of[first]] if first in receive_of else [first]
        return any(before[second] >> position[end] & 1 for end in ends)

    found = []
    for accesses in _accesses_by_rank(plan):
        accesses.sort()
        for index, (_, end, writes, key) in enumerate(accesses):
            for other_begin, _, other_writes, other in accesses[index + 1 :]:
                if other_begin >= end:
                    break
                conflict = (writes or other_writes) and key != other
                if conflict and not ordered(key, other) and not ordered(other, key):
                    found.append((key, other))
    return found


def _accesses_by_rank(plan: Plan) -> list[list[tuple[int, int, bool, OpKey]]]:
    """(begin, end, writes, operation) of everything that touches each rank's memory."""
    accesses: list[list[tuple[int, int, bool, OpKey]]] = [[] for _ in plan.ops]
    for rank, begin, end, writes, key in _accesses(plan):
        accesses[rank].append((begin, end, writes, key))
    return accesses


def _accesses(plan: Plan) -> Iterator[tuple[int, int, int, bool, OpKey]]:
    for op in (op for ops in plan.ops for op in ops):
        key = op.rank, op.op_id
        if op.kind.sends:
            peer = plan.destination(op)
            yield op.rank, op.offset, op.offset + op.length, False, key
            yield peer, op.remote_offset, op.remote_offset + op.length, True, key
        elif op.kind.has_memory_source:  # a RECEIVE's bytes are written by its SEND
            yield op.rank, op.offset, op.offset + op.length, True, key
            yield op.rank, op.source_offset, op.source_offset + op.length, False, key


def _happens_before(plan: Plan) -> tuple[dict[OpKey, int], dict[OpKey, int]]:
    """For each operation a bit set of those complete before it begins; and the bits' positions.

    For a RECEIVE, which is posted ahead, it is those complete before it completes.
    """
    partner = match_messages(plan)
    before: dict[OpKey, int] = {}
    position: dict[OpKey, int] = {}
    for index, key in enumerate(execution_order(plan)):
        position[key] = index
        done = before[partner[key]] if key in partner else 0
        for other in plan.ops[key[0]][key[1]].depends_on:
            needed = key[0], other
            done |= before[needed] | 1 << position[needed]
        before[key] = done
    return before, position


def _unit(plan: Plan) -> int:
    """The largest number of bytes that divides every offset and length of the plan."""
    unit = 0
    for op in (op for ops in plan.ops for op in ops):
        unit = math.gcd(unit, op.offset, op.length, op.remote_offset, op.source_offset)
    for memory in plan.memory:
        unit = math.gcd(unit, memory.total, memory.initialised)
    return max(unit, 1)


def _initial(plan: Plan, rank: int, unit: int) -> SymbolicMemory:
    units = plan.memory[rank].total // unit
    initialised = plan.memory[rank].initialised // unit
    counts = np.zeros((units, plan.world_size), dtype=np.int64)
    counts[:initialised, rank] = 1
    origin = np.full(units, -1, dtype=np.int64)
    origin[:initialised] = np.arange(initialised)
    return SymbolicMemory(unit, counts, origin)


def _copy(
    source: SymbolicMemory, offset: int, target: SymbolicMemory, target_offset: int, length: int
) -> None:
    unit = source.unit
    read = slice(offset // unit, (offset + length) // unit)
    write = slice(target_offset // unit, (target_offset + length) // unit)
    target.counts[write] = source.counts[read]
    target.origin[write] = source.origin[read]


def _reduce(memory: SymbolicMemory, op: Op) -> None:
    unit = memory.unit
    target = slice(op.offset // unit, (op.offset + op.length) // unit)
    source = slice(op.source_offset // unit, (op.source_offset + op.length) // unit)
    if not np.array_equal(memory.origin[target], memory.origin[source]):
        raise PlanError(f"{op} combines data of different places")
    memory.counts[target] += memory.counts[source]
