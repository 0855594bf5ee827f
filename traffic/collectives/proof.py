"""The symbolic executor: proves that a schedule leaves every rank with what it must hold.

``prove`` runs a schedule on sets of contributions instead of numbers and compares the outputs with
the collective's postcondition, which knows nothing of the algorithm. ``races`` shows that no other
order of the instructions can give anything else: of two accesses to a slot, one of them writing,
one must be ordered before the other.
"""

from __future__ import annotations

from itertools import accumulate

from traffic.collectives.graph import ScheduleGraph, execute
from traffic.collectives.request import ScheduleError, postcondition
from traffic.collectives.schedule import InstructionKind, Schedule

_Contribution = tuple[int, int]
"""(element of the input buffer, bit set of the ranks whose input is combined)"""


def prove(schedule: Schedule) -> None:
    """Raise ScheduleError, with what is wrong and where, unless the schedule is right.

    Found are: messages without another end, deadlocks, reads of what is not there yet, lost,
    doubled and misplaced contributions, races, and buffers of the wrong size.
    """
    _check_buffers(schedule)
    graph = ScheduleGraph(schedule)
    offsets = [list(accumulate(layout.input, initial=0)) for layout in schedule.layouts]

    def combine(target: _Contribution, source: _Contribution) -> _Contribution:
        if target[0] != source[0]:
            raise ScheduleError(
                f"elements {source[0]} are combined with elements {target[0]} of the input"
            )
        if target[1] & source[1]:
            twice = target[1] & source[1]
            raise ScheduleError(f"rank {twice.bit_length() - 1} contributes twice")
        return target[0], target[1] | source[1]

    memories = execute(graph, lambda rank, slot: (offsets[rank][slot], 1 << rank), combine)
    for rank, memory in enumerate(memories):
        _check_output(schedule, rank, memory)
    conflicts = races(graph)
    if conflicts:
        first, second = conflicts[0]
        raise ScheduleError(
            f"{len(conflicts)} races, one between {graph.describe(first)} and "
            f"{graph.describe(second)}"
        )


def _check_buffers(schedule: Schedule) -> None:
    request = schedule.request
    for rank, layout in enumerate(schedule.layouts):
        needed = sum(request.input_blocks(rank)), sum(request.output_blocks(rank))
        if (sum(layout.input), sum(layout.output)) != needed:
            raise ScheduleError(f"rank {rank}: input and output must have {needed} elements")


def _check_output(schedule: Schedule, rank: int, memory: list[_Contribution | None]) -> None:
    layout = schedule.layouts[rank]
    requirements = [r for r in postcondition(schedule.request, rank) if r.length]
    offset, index = 0, 0
    for slot, size in enumerate(layout.output, layout.first_output):
        if size == 0:
            continue
        while offset >= requirements[index].offset + requirements[index].length:
            index += 1
        needed = requirements[index]
        if offset + size > needed.offset + needed.length:
            raise ScheduleError(f"rank {rank}: slot {slot} straddles two blocks of the output")
        right = needed.source_offset + offset - needed.offset, needed.contributors
        if memory[slot] != right:
            raise ScheduleError(
                f"rank {rank}: output elements {offset} to {offset + size - 1} hold "
                f"{_describe(memory[slot])}, not {_describe(right)}"
            )
        offset += size


def _describe(value: _Contribution | None) -> str:
    if value is None:
        return "nothing"
    ranks = [str(bit) for bit in range(value[1].bit_length()) if value[1] >> bit & 1]
    return f"input elements from {value[0]} of ranks {', '.join(ranks)}"


def races(graph: ScheduleGraph) -> list[tuple[int, int]]:
    """Pairs of instructions that conflict in some slot and may happen in either order.

    Not all such pairs, but none only if there are none: order is transitive, so it is enough that
    each access is ordered after the write before it, and before the next, in one possible order.
    Only dependencies and messages count as order; that messages of a connection do not overtake
    each other is not relied upon.
    """
    before, known = _happens_before(graph)
    writer: dict[tuple[int, int], int] = {}
    """Of each slot, its last writer so far, and below those who have read it since."""
    readers: dict[tuple[int, int], list[int]] = {}
    found = []
    for number in graph.order:
        read, written = _places(graph, number)
        done = before[number]
        for place in read:
            if place in writer and not done & known[writer[place]]:
                found.append((writer[place], number))
            readers.setdefault(place, []).append(number)
        for place in written:
            if place in writer and not done & known[writer[place]]:
                found.append((writer[place], number))
            for reader in readers.pop(place, ()):
                if reader != number and not done & known[reader]:
                    found.append((reader, number))
            writer[place] = number
    return found


def _happens_before(graph: ScheduleGraph) -> tuple[list[int], list[int]]:
    """For each instruction two bit sets: those complete before it begins, and who tells that it is.

    For a RECEIVE, the first has those complete before its message is sent. A message has been read
    and has landed once either end is complete.
    """
    before = [0] * len(graph.steps)
    bit = [0] * len(graph.steps)
    for index, number in enumerate(graph.order):
        bit[number] = 1 << index
        step = graph.steps[number]
        done = before[graph.partner[number]] if step.kind is InstructionKind.RECEIVE else 0
        base = graph.base[graph.rank[number]]
        for needed in step.depends_on:
            done |= before[base + needed] | bit[base + needed]
        before[number] = done
    known = [
        own | bit[partner] if partner >= 0 else own
        for own, partner in zip(bit, graph.partner, strict=True)
    ]
    return before, known


def _places(
    graph: ScheduleGraph, number: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(rank, slot) of what an instruction reads and writes; a message's SEND writes at its peer."""
    step, rank = graph.steps[number], graph.rank[number]
    if step.kind is InstructionKind.RECEIVE:
        return [], []
    if step.kind is InstructionKind.SEND:
        read, peer = step.slot, step.peer
        written = graph.steps[graph.partner[number]].slot
    else:
        read, peer, written = step.source, rank, step.slot
    if step.count == 1:
        return [(rank, read)], [(peer, written)]
    count = range(step.count)
    return [(rank, read + k) for k in count], [(peer, written + k) for k in count]
