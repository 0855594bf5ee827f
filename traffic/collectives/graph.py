"""The graph of a schedule across ranks: which SEND meets which RECEIVE, and an order that works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TypeVar

from traffic.collectives.request import ScheduleError
from traffic.collectives.schedule import Instruction, InstructionKind, Schedule

_Value = TypeVar("_Value")


class ScheduleGraph:
    """All instructions under one numbering: ``number = base[rank] + position in the program``.

    ``sizes[rank]`` are the elements of a rank's slots. ``partner[number]`` is the other end of a
    message, -1 for local work; ``previous[number]`` the SEND or RECEIVE before it on its
    connection, -1 for the first. ``order`` lists all numbers as
    they may complete. Raises ScheduleError for messages without another end and for deadlocks.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.sizes = [layout.sizes for layout in schedule.layouts]
        self.base: list[int] = []
        self.steps: list[Instruction] = []
        self.rank: list[int] = []
        for rank, program in enumerate(schedule.programs):
            self.base.append(len(self.steps))
            self.steps += program
            self.rank += [rank] * len(program)
        self.partner = [-1] * len(self.steps)
        self.previous = [-1] * len(self.steps)
        self._match()
        self.order = self._topological_order()

    def needs(self, number: int) -> Iterator[int]:
        """Numbers of the instructions that one names as its dependencies."""
        base = self.base[self.rank[number]]
        return (base + position for position in self.steps[number].depends_on)

    def describe(self, number: int) -> str:
        """An instruction in words, for messages."""
        step, rank = self.steps[number], self.rank[number]
        position = number - self.base[rank]
        peer = f" with rank {step.peer}" if step.peer >= 0 else ""
        return f"rank {rank}, instruction {position} ({step.kind} of slot {step.slot}{peer})"

    def _match(self) -> None:
        sends: dict[tuple[int, int, int], list[int]] = {}
        receives: dict[tuple[int, int, int], list[int]] = {}
        for number, step in enumerate(self.steps):
            rank = self.rank[number]
            if step.kind is InstructionKind.SEND:
                sends.setdefault((rank, step.peer, step.channel), []).append(number)
            elif step.kind is InstructionKind.RECEIVE:
                receives.setdefault((step.peer, rank, step.channel), []).append(number)
        for connection in sends.keys() | receives.keys():
            sent, received = sends.get(connection, []), receives.get(connection, [])
            if len(sent) != len(received):
                source, destination, channel = connection
                raise ScheduleError(
                    f"channel {channel}: rank {source} sends {len(sent)} messages to rank "
                    f"{destination}, which receives {len(received)}"
                )
            for ends in (sent, received):
                for earlier, later in pairwise(ends):
                    self.previous[later] = earlier
            for send, receive in zip(sent, received, strict=True):
                self.partner[send], self.partner[receive] = receive, send
                self._check_ends(send, receive)

    def _check_ends(self, send: int, receive: int) -> None:
        ends = []
        for number in (send, receive):
            step = self.steps[number]
            sizes = self.sizes[self.rank[number]]
            ends.append((step.local, sizes[step.slot : step.slot + step.count]))
        if ends[0] != ends[1]:
            raise ScheduleError(
                f"{self.describe(send)} and {self.describe(receive)} differ in slot sizes or in "
                "whether they are local"
            )

    def _topological_order(self) -> list[int]:
        unmet = [0] * len(self.steps)
        dependents: list[list[int]] = [[] for _ in self.steps]
        for number, step in enumerate(self.steps):
            base, count = self.base[self.rank[number]], len(step.depends_on)
            for position in step.depends_on:
                dependents[base + position].append(number)
            if self.previous[number] >= 0:
                dependents[self.previous[number]].append(number)
                count += 1
            if step.kind is InstructionKind.RECEIVE:
                dependents[self.partner[number]].append(number)
                count += 1
            unmet[number] = count
        order = [number for number, count in enumerate(unmet) if count == 0]
        for number in order:  # grows while it is walked: a queue
            for dependent in dependents[number]:
                unmet[dependent] -= 1
                if unmet[dependent] == 0:
                    order.append(dependent)
        if len(order) != len(unmet):
            stuck = next(number for number, count in enumerate(unmet) if count)
            raise ScheduleError(f"deadlock: {self.describe(stuck)} can never begin")
        return order


def execute(
    graph: ScheduleGraph,
    initial: Callable[[int, int], _Value],
    combine: Callable[[_Value, _Value], _Value],
) -> list[list[_Value | None]]:
    """Run a schedule on any kind of values; returns what every rank's slots hold at the end.

    ``initial(rank, slot)`` is what an input slot holds, ``combine(target, source)`` what a REDUCE
    leaves in its target. Empty slots are passed over. Raises ScheduleError when an instruction
    writes an input or reads a slot that holds nothing yet.
    """
    layouts, sizes = graph.schedule.layouts, graph.sizes
    memories: list[list[_Value | None]] = [
        [initial(rank, slot) for slot in range(layout.first_output)]
        + [None] * (len(layout.output) + len(layout.scratch))
        for rank, layout in enumerate(layouts)
    ]
    for number in graph.order:
        step, rank = graph.steps[number], graph.rank[number]
        kind = step.kind
        if kind is InstructionKind.RECEIVE:
            continue  # its SEND has put the message there; without races, when does not matter
        if kind is InstructionKind.SEND:
            source, first = memories[rank], step.slot
            receive = graph.steps[graph.partner[number]]
            peer, second = step.peer, receive.slot
        else:
            source, first = memories[rank], step.source
            peer, second = rank, step.slot
        target = memories[peer]
        if second < layouts[peer].first_output:
            raise ScheduleError(f"{graph.describe(number)} writes an input buffer")
        for place in range(step.count):
            if sizes[rank][first + place] == 0:
                continue
            value = source[first + place]
            if kind is InstructionKind.REDUCE and value is not None:
                other = target[second + place]
                value = None if other is None else combine(other, value)
            if value is None:
                raise ScheduleError(f"{graph.describe(number)} reads what is not there yet")
            target[second + place] = value
    return memories
