"""Proves MSCCL algorithms: runs them on sets of contributions instead of numbers.

One possible order is executed; that no other order gives anything else follows from the absence
of races, for which every step carries a vector clock over the threadblocks.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from traffic.replay.msccl import MscclAlgorithm, Place, Step, StepType
from traffic.replay.trace import TraceError

Contribution = frozenset[tuple[int, int]]
"""The (GPU, input chunk) pairs whose data are combined in a chunk."""

THREADBLOCK_LIMIT = 2048
"""Threadblocks of all GPUs; a clock has an entry for each, and each has a clock."""

_Clock = NDArray[np.int32]
_Chunk = tuple[int, str, int]
"""(GPU, buffer, index)"""


@dataclass
class _Cell:
    """A chunk: what it holds, who wrote it, and who has read it since."""

    value: Contribution
    writer: tuple[int, int] | None = None
    readers: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class _Message:
    values: list[Contribution]
    clock: _Clock


def verify_msccl(algorithm: MscclAlgorithm) -> None:
    """Raises TraceError unless the algorithm computes its collective, whatever the order.

    Known collectives: allreduce, allgather, reduce_scatter, alltoall and broadcast (from GPU 0).
    """
    execution = _Execution(algorithm)
    execution.run()
    expected = _postcondition(algorithm)
    for chunk, contributions in expected.items():
        cell = execution.memory.get(execution.canonical(*chunk))
        if cell is None or cell.value != contributions:
            gpu, buffer, index = chunk
            held = sorted(cell.value) if cell else []
            raise TraceError(
                f"algorithm {algorithm.name}: {algorithm.collective} leaves {held} in chunk "
                f"{index} of buffer {buffer} of gpu {gpu}; expected {sorted(contributions)}"
            )


def _postcondition(algorithm: MscclAlgorithm) -> dict[_Chunk, Contribution]:
    """What every chunk of the output has to hold."""
    gpus, name = len(algorithm.gpus), algorithm.collective
    per_loop = algorithm.chunks_per_loop
    everyone = range(gpus)
    if name == "allreduce":
        return {
            (g, "o", c): frozenset((r, c) for r in everyone)
            for g in everyone
            for c in range(per_loop)
        }
    if name == "broadcast":
        return {(g, "o", c): frozenset({(0, c)}) for g in everyone for c in range(per_loop)}
    if name not in ("allgather", "reduce_scatter", "alltoall"):
        raise TraceError(
            f"algorithm {algorithm.name}: coll {name!r}; what it has to compute is known for "
            "allreduce, allgather, reduce_scatter, alltoall, broadcast"
        )
    if per_loop % gpus:
        raise TraceError(
            f"algorithm {algorithm.name}: {per_loop} chunks of {name} on {gpus} gpus; "
            "allowed: multiples"
        )
    part = per_loop // gpus
    if name == "reduce_scatter":
        return {
            (g, "o", c): frozenset((r, g * part + c) for r in everyone)
            for g in everyone
            for c in range(part)
        }
    own = (lambda g: 0) if name == "allgather" else (lambda g: g * part)
    return {
        (g, "o", r * part + c): frozenset({(r, own(g) + c)})
        for g in everyone
        for r in everyone
        for c in range(part)
    }


class _Execution:
    """Runs all threadblocks as far as they get."""

    def __init__(self, algorithm: MscclAlgorithm) -> None:
        self._algorithm = algorithm
        self._part = algorithm.chunks_per_loop // max(1, len(algorithm.gpus))
        self._blocks = [
            (g, t) for g, gpu in enumerate(algorithm.gpus) for t in range(len(gpu.threadblocks))
        ]
        if len(self._blocks) > THREADBLOCK_LIMIT:
            raise TraceError(
                f"algorithm {algorithm.name}: {len(self._blocks)} threadblocks are too many to "
                f"prove; at most {THREADBLOCK_LIMIT}"
            )
        self._index = {block: i for i, block in enumerate(self._blocks)}
        self._awaited = {
            (self._index[g, step.waits_for[0]], step.waits_for[1])
            for g, t in self._blocks
            for step in algorithm.gpus[g].threadblocks[t].steps
            if step.waits_for is not None
        }
        self._next = [0] * len(self._blocks)
        self._clocks: list[_Clock] = [
            np.zeros(len(self._blocks), dtype=np.int32) for _ in self._blocks
        ]
        self._done: dict[tuple[int, int], _Clock] = {}
        """(block, step) -> clock at its end, of steps that others wait for"""
        self._wires: dict[tuple[int, int, int], deque[_Message]] = defaultdict(deque)
        self.memory: dict[_Chunk, _Cell] = {}
        for g, gpu in enumerate(algorithm.gpus):
            for c in range(max(gpu.chunks["i"], self._input_chunks())):
                self.memory[self.canonical(g, "i", c)] = _Cell(frozenset({(g, c)}))

    def _input_chunks(self) -> int:
        """Chunks of a rank's input, also if the file leaves the buffer out (in place)."""
        if self._algorithm.collective == "allgather":
            return self._part
        return self._algorithm.chunks_per_loop

    def canonical(self, gpu: int, buffer: str, index: int) -> _Chunk:
        """The one name of a chunk; in place, parts of input and output are the same."""
        if self._algorithm.in_place:
            name = self._algorithm.collective
            if buffer == "i" and name in ("allreduce", "broadcast"):
                return gpu, "o", index
            if buffer == "i" and name == "allgather":
                return gpu, "o", gpu * self._part + index
            if buffer == "o" and name == "reduce_scatter":
                return gpu, "i", gpu * self._part + index
        return gpu, buffer, index

    def run(self) -> None:
        """Raises TraceError for a race, a deadlock, or data that are not there."""
        moved = True
        while moved:
            moved = False
            for block in range(len(self._blocks)):
                while self._advance(block):
                    moved = True
        for block, (g, t) in enumerate(self._blocks):
            steps = self._algorithm.gpus[g].threadblocks[t].steps
            if self._next[block] < len(steps):
                raise TraceError(
                    f"algorithm {self._algorithm.name}: gpu {g}, tb {t} waits forever at step "
                    f"{self._next[block]} {steps[self._next[block]].type}"
                )
        for (source, destination, channel), queue in self._wires.items():
            if queue:
                raise TraceError(
                    f"algorithm {self._algorithm.name}: {len(queue)} messages from gpu {source} "
                    f"to gpu {destination} on channel {channel} are never received"
                )

    def _advance(self, block: int) -> bool:
        """Execute the next step of a threadblock if it can be; whether it could."""
        g, t = self._blocks[block]
        threadblock = self._algorithm.gpus[g].threadblocks[t]
        number = self._next[block]
        if number == len(threadblock.steps):
            return False
        step = threadblock.steps[number]
        clock = self._clocks[block].copy()
        if step.waits_for is not None:
            waited = self._done.get((self._index[g, step.waits_for[0]], step.waits_for[1]))
            if waited is None:
                return False
            np.maximum(clock, waited, out=clock)
        received: list[Contribution] | None = None
        if step.type.receives:
            queue = self._wires[threadblock.receive, g, threadblock.channel]
            if not queue:
                return False
            message = queue.popleft()
            received = message.values
            np.maximum(clock, message.clock, out=clock)
            if len(received) != step.count:
                raise TraceError(
                    f"{self._where(block)}: {step.count} chunks expected, {len(received)} come"
                )
        clock[block] = number + 1
        values = self._result(block, step, received, clock)
        if step.type.stores:
            for i, value in enumerate(values):
                self._write(block, step.destination, i, value, clock)
        if step.type.sends:
            wire = self._wires[g, threadblock.send, threadblock.channel]
            wire.append(_Message(values, clock))
        self._clocks[block] = clock
        if (block, number) in self._awaited:
            self._done[block, number] = clock
        self._next[block] += 1
        return True

    def _result(
        self, block: int, step: Step, received: list[Contribution] | None, clock: _Clock
    ) -> list[Contribution]:
        if step.type is StepType.NOP:
            return []
        loaded = (
            [self._read(block, step.source, i, clock) for i in range(step.count)]
            if step.type.loads
            else None
        )
        other = received
        if step.type is StepType.REDUCE:
            other = [self._read(block, step.destination, i, clock) for i in range(step.count)]
        if not step.type.reduces:
            return loaded if loaded is not None else received or []
        combined = []
        for one, two in zip(loaded or [], other or [], strict=True):
            if one & two:
                raise TraceError(
                    f"{self._where(block)}: the data of {sorted(one & two)} are added twice"
                )
            combined.append(one | two)
        return combined

    def _read(self, block: int, place: Place, index: int, clock: _Clock) -> Contribution:
        chunk = self._chunk(block, place, index)
        cell = self.memory.get(chunk)
        if cell is None:
            raise TraceError(
                f"{self._where(block)}: reads chunk {place.offset + index} of buffer "
                f"{place.buffer}, which nobody has written"
            )
        self._check_order(block, chunk, cell.writer, clock)
        cell.readers.append((block, int(clock[block])))
        return cell.value

    def _write(
        self, block: int, place: Place, index: int, value: Contribution, clock: _Clock
    ) -> None:
        chunk = self._chunk(block, place, index)
        cell = self.memory.get(chunk)
        if cell is not None:
            for before in (cell.writer, *cell.readers):
                self._check_order(block, chunk, before, clock)
        self.memory[chunk] = _Cell(value, (block, int(clock[block])))

    def _chunk(self, block: int, place: Place, index: int) -> _Chunk:
        return self.canonical(self._blocks[block][0], place.buffer, place.offset + index)

    def _check_order(
        self, block: int, chunk: _Chunk, before: tuple[int, int] | None, clock: _Clock
    ) -> None:
        """The access ``before``, (block, its clock), has to be known to this step."""
        if before is not None and before[1] > clock[before[0]]:
            _, t = self._blocks[before[0]]
            raise TraceError(
                f"{self._where(block)}: races with step {before[1] - 1} of tb {t} for chunk "
                f"{chunk[2]} of buffer {chunk[1]}"
            )

    def _where(self, block: int) -> str:
        g, t = self._blocks[block]
        return f"algorithm {self._algorithm.name}: gpu {g}, tb {t}, step {self._next[block]}"
