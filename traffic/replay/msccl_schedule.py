"""Turns an MSCCL algorithm into a schedule, so that it can run on real numbers like any other.

Every message lands in scratch memory of its own, as MSCCL's lands in a channel's buffer; what the
step does with it follows. In-place algorithms work on a copy: a schedule's input stays as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from traffic.collectives.request import Chunking, Collective, CollectiveRequest
from traffic.collectives.schedule import Instruction, InstructionKind, Layout, Schedule
from traffic.replay.msccl import MscclAlgorithm, Place, Step, StepType
from traffic.replay.trace import TraceError

_COLLECTIVES = {
    "allreduce": Collective.ALL_REDUCE,
    "allgather": Collective.ALL_GATHER,
    "reduce_scatter": Collective.REDUCE_SCATTER,
    "alltoall": Collective.ALL_TO_ALL,
    "broadcast": Collective.BROADCAST,
}


def msccl_schedule(
    algorithm: MscclAlgorithm,
    elements: int,
    *,
    itemsize: int = 4,
    gpus_per_server: int = 1,
    chunking: Chunking | None = None,
) -> Schedule:
    """The schedule for ``elements`` of the largest buffer, as nccl-tests counts.

    ``traffic.collectives.proof.prove`` tells whether it is right. Raises TraceError for an unknown
    collective or elements that cannot be cut into equal chunks, ScheduleError from the request.
    """
    collective = msccl_collective(algorithm)
    chunks, ranks = algorithm.chunks_per_loop, len(algorithm.gpus)
    whole = chunks if algorithm.collective in ("allreduce", "broadcast") else ranks
    if elements < 1 or elements % chunks or chunks % whole:
        raise TraceError(
            f"algorithm {algorithm.name}: {elements} elements in {chunks} chunks on {ranks} gpus; "
            "allowed: multiples of the chunks, and chunks that are multiples of the gpus"
        )
    channels = 1 + max((t.channel for gpu in algorithm.gpus for t in gpu.threadblocks), default=0)
    request = CollectiveRequest(
        collective=collective,
        ranks=ranks,
        elements=elements,
        itemsize=itemsize,
        channels=channels,
        gpus_per_server=gpus_per_server,
        chunking=chunking,
    )
    programs = [_Program(algorithm, request, rank, elements // chunks) for rank in range(ranks)]
    return Schedule(
        request=request,
        algorithm=f"msccl:{algorithm.name}",
        chunking=chunking or Chunking(),
        layouts=tuple(program.layout() for program in programs),
        programs=tuple(program.instructions() for program in programs),
    )


def msccl_collective(algorithm: MscclAlgorithm) -> Collective:
    """What an algorithm carries out. Raises TraceError for a name that is unknown."""
    if algorithm.collective not in _COLLECTIVES:
        raise TraceError(
            f"algorithm {algorithm.name}: coll {algorithm.collective!r}; "
            f"allowed: {', '.join(_COLLECTIVES)}"
        )
    return _COLLECTIVES[algorithm.collective]


_Awaited = int | tuple[int, int]
"""An instruction's position, or a (threadblock, step) that stands for several."""


@dataclass
class _Draft:
    """An instruction before it is known what the steps that it waits for become."""

    kind: InstructionKind
    channel: int
    slot: int
    count: int
    source: int = -1
    peer: int = -1
    after: list[_Awaited] = field(default_factory=list)


class _Program:
    """Builds the program and the memory of one rank."""

    def __init__(
        self, algorithm: MscclAlgorithm, request: CollectiveRequest, rank: int, chunk: int
    ) -> None:
        self._algorithm = algorithm
        self._request = request
        self._gpu = algorithm.gpus[rank]
        self._rank = rank
        self._chunk = chunk
        self._inputs = sum(request.input_blocks(rank)) // chunk
        self._outputs = sum(request.output_blocks(rank)) // chunk
        self._scratch = self._gpu.chunks["s"]
        self._drafts: list[_Draft] = []
        self._ends: dict[_Awaited, list[_Awaited]] = {}
        """(threadblock, step) -> what is over when the step is."""
        self._shadow = self._shadow_input()
        """First slot of a copy of the input that may be written; -1 if none is needed."""
        self._preparation: list[int] = self._prepare()
        for t in range(len(self._gpu.threadblocks)):
            self._threadblock(t)
        self._finish()

    def layout(self) -> Layout:
        """Slots of one chunk each."""
        sizes = [(self._chunk,) * n for n in (self._inputs, self._outputs, self._scratch)]
        return Layout(*sizes)

    def instructions(self) -> tuple[Instruction, ...]:
        """The program with all dependencies."""
        return tuple(
            Instruction(
                draft.kind, draft.channel, draft.slot, draft.count, draft.source, draft.peer,
                self._resolved(draft.after),
                draft.peer >= 0 and self._request.is_local(self._rank, draft.peer),
            )
            for draft in self._drafts
        )  # fmt: skip

    def _resolved(self, awaited: Sequence[_Awaited]) -> tuple[int, ...]:
        """The positions behind what is waited for."""
        found: set[int] = set()
        seen: set[_Awaited] = set()
        stack = list(awaited)
        while stack:
            item = stack.pop()
            if isinstance(item, int):
                found.add(item)
            elif item not in seen:
                seen.add(item)
                stack += self._ends[item]
        return tuple(sorted(found))

    def _shadow_input(self) -> int:
        """Room for a copy of the input, if steps write it and it is no part of the output."""
        in_place = self._algorithm.in_place
        if in_place and self._algorithm.collective in ("allreduce", "broadcast", "allgather"):
            return -1
        written = any(
            step.type.stores and step.destination.buffer == "i"
            for threadblock in self._gpu.threadblocks
            for step in threadblock.steps
        )
        if in_place and self._algorithm.collective == "reduce_scatter":
            written = True
        return self._allocate(self._inputs) if written else -1

    def _allocate(self, slots: int) -> int:
        first = self._inputs + self._outputs + self._scratch
        self._scratch += slots
        return first

    def _slot(self, place: Place) -> int:
        """The slot of a chunk."""
        name, index = self._algorithm.collective, place.offset
        if self._algorithm.in_place:
            part = self._algorithm.chunks_per_loop // len(self._algorithm.gpus)
            if place.buffer == "i" and name in ("allreduce", "broadcast"):
                return self._inputs + index
            if place.buffer == "i" and name == "allgather":
                return self._inputs + self._rank * part + index
            if place.buffer == "o" and name == "reduce_scatter":
                return self._shadow + self._rank * part + index
        if place.buffer == "i":
            return index if self._shadow < 0 else self._shadow + index
        if place.buffer == "o":
            return self._inputs + index
        return self._inputs + self._outputs + index

    def _prepare(self) -> list[int]:
        """Copy the input to where the steps look for it."""
        target = self._shadow if self._shadow >= 0 else self._slot(Place("i", 0))
        if target == 0 or not self._inputs:
            return []
        return [self._add(_Draft(InstructionKind.COPY, 0, target, self._inputs, source=0))]

    def _finish(self) -> None:
        """An in-place reduce-scatter's result lies in the copy of the input."""
        if not (self._algorithm.in_place and self._algorithm.collective == "reduce_scatter"):
            return
        self._add(
            _Draft(
                InstructionKind.COPY, 0, self._inputs, self._outputs,
                source=self._slot(Place("o", 0)), after=[*self._preparation, *self._ends],
            )
        )  # fmt: skip

    def _threadblock(self, number: int) -> None:
        """All steps of a threadblock.

        A step begins when the one before has done its local work. Its SENDs may go on, but nobody
        overwrites what they read, nor do those who wait for the step, before they are complete.
        """
        threadblock = self._gpu.threadblocks[number]
        before: list[_Awaited] = [*self._preparation]
        sent: list[_Awaited] = []
        readers: dict[int, list[int]] = defaultdict(list)
        for index, step in enumerate(threadblock.steps):
            if step.waits_for is not None:
                before = [*before, step.waits_for]
            received: list[int] = []
            local: list[int] = []
            for draft in self._drafts_of(step, threadblock.channel):
                slots = range(draft.slot, draft.slot + draft.count)
                if draft.kind is InstructionKind.RECEIVE:
                    draft.peer = threadblock.receive
                    received.append(self._add(draft))
                    continue
                draft.after = [*before, *received, *local]
                if draft.kind is InstructionKind.SEND:
                    draft.peer = threadblock.send
                    position = self._add(draft)
                    sent.append(position)
                    for slot in slots:
                        readers[slot].append(position)
                else:
                    draft.after += [reader for slot in slots for reader in readers.pop(slot, [])]
                    local.append(self._add(draft))
            before = list(local) or before
            self._ends[number, index] = [*before, *sent]

    def _drafts_of(self, step: Step, channel: int) -> list[_Draft]:
        """What a step does, in order: receive, combine, store, send."""
        kinds, count = InstructionKind, step.count
        if step.type is StepType.NOP:
            return []
        source = self._slot(step.source) if step.type.loads else -1
        if step.type is StepType.REDUCE:
            target = self._slot(step.destination)
            return [_Draft(kinds.REDUCE, channel, target, count, source=source)]
        drafts: list[_Draft] = []
        if step.type.receives:
            landing = self._allocate(count)
            drafts.append(_Draft(kinds.RECEIVE, channel, landing, count))
            if step.type.reduces:
                drafts.append(_Draft(kinds.REDUCE, channel, landing, count, source=source))
            source = landing
        if step.type.stores:
            target = self._slot(step.destination)
            drafts.append(_Draft(kinds.COPY, channel, target, count, source=source))
        if step.type.sends:
            drafts.append(_Draft(kinds.SEND, channel, source, count))
        return drafts

    def _add(self, draft: _Draft) -> int:
        self._drafts.append(draft)
        return len(self._drafts) - 1
