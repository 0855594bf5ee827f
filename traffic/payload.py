"""What memories contain: pseudo-random numbers, a function of seed, rank and offset only.

Any slice of any rank's initial memory can be made without making the rest (PCG64 can jump), so a
receiver can verify what others sent without their memories.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traffic.plan import DataType, OpKind, Plan

_WORD = 8  # bytes of one PCG64 output


def initial_slice(plan: Plan, rank: int, offset: int, length: int) -> NDArray[Any]:
    """Elements of ``plan.dtype`` that a rank's memory holds before the traffic begins.

    ``offset`` and ``length`` are bytes, multiples of the element size. Floats are uniform in
    [-1, 1), so that rounding, and with it the order of additions, shows in their sums. Bytes
    beyond the initialised part are zero.
    """
    end = min(offset + length, plan.memory[rank].initialised)
    data = np.zeros(length, dtype=np.uint8)
    if end > offset:
        data[: end - offset] = _random_bytes(plan.seed, rank, offset, end - offset)
    values = _to_elements(data, plan.dtype)
    values[max(end - offset, 0) // plan.dtype.itemsize :] = 0
    return values


def initial_memory(plan: Plan, rank: int) -> NDArray[np.uint8]:
    """A rank's whole memory, writable, as bytes; what is not initialised is zero."""
    memory = np.empty(plan.memory[rank].total, dtype=np.uint8)
    initialised = plan.memory[rank].initialised
    memory[:initialised] = initial_slice(plan, rank, 0, initialised).view(np.uint8)
    # written now: on a virtual machine the first touch of 1 MiB takes up to a millisecond, which
    # would make the first messages of a run late
    memory[initialised:] = 0
    return memory


def elements_of(plan: Plan, memory: Any, offset: int, length: int) -> NDArray[Any]:
    """A view of a part of a rank's memory as elements of the plan's type."""
    count = length // plan.dtype.itemsize
    return np.frombuffer(memory, dtype=plan.dtype.value, count=count, offset=offset)


def count_wrong(actual: NDArray[Any], expected: NDArray[Any]) -> int:
    """Elements whose bits differ; a NaN equals an identical NaN."""
    pattern = f"u{expected.itemsize}"
    return int(np.count_nonzero(actual.view(pattern) != expected.view(pattern)))


def verify_messages(
    plan: Plan, rank: int, memory: Any, *, flows: Container[int] | None = None
) -> int:
    """Number of wrong elements in what a rank received, where messages come from initial memory.

    For flows that only move data; by default all do. A place that several messages overwrite
    counts once.
    """
    wrong = 0
    seen: set[int] = set()
    for ops in plan.ops:
        for op in ops:
            if op.kind is not OpKind.SEND or (flows is not None and op.flow not in flows):
                continue
            connection = plan.connections[op.connection]
            if connection.destination_rank != rank or op.remote_offset in seen:
                continue
            seen.add(op.remote_offset)
            expected = initial_slice(plan, connection.source_rank, op.offset, op.length)
            wrong += count_wrong(elements_of(plan, memory, op.remote_offset, op.length), expected)
    return wrong


def _random_bytes(seed: int, rank: int, offset: int, length: int) -> NDArray[np.uint8]:
    generator = np.random.PCG64(np.random.SeedSequence([seed, rank]))
    first, skip = divmod(offset, _WORD)
    generator.advance(first)
    words: NDArray[np.uint64] = generator.random_raw((skip + length + _WORD - 1) // _WORD)
    return words.astype("<u8", copy=False).view(np.uint8)[skip : skip + length]


def _to_elements(data: NDArray[np.uint8], dtype: DataType) -> NDArray[Any]:
    """Random bits to numbers, in place; element by element, so that slices agree with the whole.

    Floats keep as many random bits as their mantissa has: with the exponent of 2 they are uniform
    in [2, 4), from which 3 is taken.
    """
    if dtype is DataType.FLOAT32:
        return _to_floats(data.view(np.uint32), 9, 0x40000000, np.float32)
    if dtype is DataType.FLOAT16:
        return _to_floats(data.view(np.uint16), 6, 0x4000, np.float16)
    return data.view(dtype.value)


def _to_floats(
    bits: NDArray[Any], shift: int, exponent_of_two: int, dtype: type[np.floating[Any]]
) -> NDArray[Any]:
    """Floats in [-1, 1) from random bits, sharing their memory."""
    bits >>= shift
    bits |= exponent_of_two
    floats = bits.view(dtype)
    floats -= dtype(3)
    return floats
