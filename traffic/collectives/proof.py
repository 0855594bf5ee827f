"""The symbolic executor: proves that a schedule leaves every rank with what it must hold.

``prove`` runs a schedule on sets of contributions instead of numbers and compares the outputs with
the collective's postcondition, which knows nothing of the algorithm. ``races`` shows that no other
order of the instructions can give anything else: of two accesses to a slot, one of them writing,
one must be ordered before the other.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate, pairwise

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
    before, position = _happens_before(graph)

    def ordered(first: int, second: int) -> bool:
        # a message has been read and has landed once either end knows that it is complete
        known = 1 << position[first]
        if graph.steps[first].kind is InstructionKind.SEND:
            known |= 1 << position[graph.partner[first]]
        return bool(before[second] & known)

    found = []
    for readers, writers in _accesses(graph):
        writers.sort(key=position.__getitem__)
        found += [pair for pair in pairwise(writers) if not ordered(*pair)]
        for reader in readers:
            place = bisect_left(writers, position[reader], key=position.__getitem__)
            pairs = [(writer, reader) for writer in writers[max(place - 1, 0) : place]]
            pairs += [(reader, writer) for writer in writers[place : place + 1] if writer != reader]
            found += [pair for pair in pairs if not ordered(*pair)]
    return found


def _happens_before(graph: ScheduleGraph) -> tuple[list[int], list[int]]:
    """For each instruction a bit set of those complete before it begins; the bits' positions.

    For a RECEIVE, it is those complete before its message is sent.
    """
    before = [0] * len(graph.steps)
    position = [0] * len(graph.steps)
    for index, number in enumerate(graph.order):
        position[number] = index
        step = graph.steps[number]
        done = before[graph.partner[number]] if step.kind is InstructionKind.RECEIVE else 0
        base = graph.base[graph.rank[number]]
        for needed in step.depends_on:
            done |= before[base + needed] | 1 << position[base + needed]
        before[number] = done
    return before, position


def _accesses(graph: ScheduleGraph) -> list[tuple[list[int], list[int]]]:
    """(readers, writers) of every slot that is written; a message's SEND writes at its peer."""
    places: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    for number, step in enumerate(graph.steps):
        rank = graph.rank[number]
        if step.kind is InstructionKind.RECEIVE:
            continue
        if step.kind is InstructionKind.SEND:
            read, peer = step.slot, step.peer
            written = graph.steps[graph.partner[number]].slot
        else:
            read, peer, written = step.source, rank, step.slot
        for place in range(step.count):
            places.setdefault((rank, read + place), ([], []))[0].append(number)
            places.setdefault((peer, written + place), ([], []))[1].append(number)
    return [access for access in places.values() if access[1]]
