"""The symbolic executor finds what is wrong with a schedule, whatever it is."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traffic.collectives.algorithms import algorithms_for, create_algorithm
from traffic.collectives.graph import ScheduleGraph
from traffic.collectives.proof import prove, races
from traffic.collectives.request import Collective, CollectiveRequest, ScheduleError
from traffic.collectives.schedule import InstructionKind

KINDS = InstructionKind


def schedule_of(algorithm="ring", collective=Collective.ALL_REDUCE, ranks=4, elements=8, **fields):
    request = CollectiveRequest(collective, ranks, elements, **fields)
    return create_algorithm(algorithm).schedule(request)


def position_of(schedule, rank, kind, which=0):
    return [p for p, step in enumerate(schedule.programs[rank]) if step.kind is kind][which]


def edited(schedule, rank, position, **changes):
    programs = [list(program) for program in schedule.programs]
    programs[rank][position] = replace(programs[rank][position], **changes)
    return replace(schedule, programs=tuple(tuple(program) for program in programs))


def without(schedule, rank, position):
    """The schedule without an instruction; who waited for it waits for what it waited for."""
    programs = [list(program) for program in schedule.programs]
    gone = programs[rank].pop(position)
    for index, step in enumerate(programs[rank]):
        needed = set()
        for other in step.depends_on:
            needed.update(gone.depends_on if other == position else [other])
        moved = tuple(sorted(other - (other > position) for other in needed))
        programs[rank][index] = replace(step, depends_on=moved)
    return replace(schedule, programs=tuple(tuple(program) for program in programs))


def test_a_missing_reduction_is_a_lost_contribution():
    schedule = schedule_of()
    broken = without(schedule, 2, position_of(schedule, 2, KINDS.REDUCE))
    with pytest.raises(ScheduleError, match=r"output elements \d+ to \d+ hold .* not .*0, 1, 2, 3"):
        prove(broken)


def test_a_doubled_contribution():
    schedule = schedule_of("binary-tree", ranks=8)
    # rank 4 has two children: let it add the first child's message, its own sum, to itself
    position = position_of(schedule, 4, KINDS.REDUCE, which=1)
    broken = edited(schedule, 4, position, source=schedule.programs[4][position].slot)
    with pytest.raises(ScheduleError, match="contributes twice"):
        prove(broken)


def test_unrelated_elements_are_not_combined():
    schedule = schedule_of()
    position = position_of(schedule, 1, KINDS.REDUCE)
    other = (schedule.programs[1][position].source + 1) % 4
    with pytest.raises(ScheduleError, match="are combined with elements"):
        prove(edited(schedule, 1, position, source=other))


def test_reading_what_is_not_there_yet():
    schedule = schedule_of(collective=Collective.BROADCAST, root=3)
    position = position_of(schedule, 0, KINDS.SEND)
    # without its dependency the chain's second rank may pass on what it has not got
    broken = edited(schedule, 0, position, depends_on=())
    with pytest.raises(ScheduleError, match="reads what is not there yet"):
        prove(broken)


def test_a_message_that_nobody_receives():
    schedule = schedule_of()
    broken = without(schedule, 0, position_of(schedule, 0, KINDS.RECEIVE, which=-1))
    with pytest.raises(ScheduleError, match="rank 3 sends 6 messages to rank 0, which receives 5"):
        prove(broken)


def test_a_receive_without_a_message():
    schedule = schedule_of()
    broken = without(schedule, 3, position_of(schedule, 3, KINDS.SEND, which=-1))
    with pytest.raises(ScheduleError, match="rank 3 sends 5 messages to rank 0, which receives 6"):
        prove(broken)


def test_a_deadlock():
    schedule = schedule_of(ranks=2)
    first = position_of(schedule, 0, KINDS.SEND)
    last = position_of(schedule, 0, KINDS.RECEIVE, which=-1)
    with pytest.raises(ScheduleError, match=r"deadlock: rank \d, instruction \d+ \(.*never begin"):
        prove(edited(schedule, 0, first, depends_on=(last,)))


def test_an_order_of_messages_that_blocks_itself():
    """The first of two messages of a connection waits for the answer to the second."""
    schedule = schedule_of("direct", ranks=2)
    sends = [position_of(schedule, 0, KINDS.SEND, which) for which in (0, 1)]
    program = list(schedule.programs[0])
    program[sends[0]], program[sends[1]] = (
        replace(program[sends[1]], depends_on=(position_of(schedule, 0, KINDS.RECEIVE, which=-1),)),
        program[sends[0]],
    )
    with pytest.raises(ScheduleError, match="deadlock"):
        prove(replace(schedule, programs=(tuple(program), schedule.programs[1])))


def test_a_write_to_an_input():
    schedule = schedule_of()
    position = position_of(schedule, 0, KINDS.REDUCE)
    step = schedule.programs[0][position]
    with pytest.raises(ScheduleError, match="writes an input buffer"):
        prove(edited(schedule, 0, position, slot=step.source, source=step.slot))


def test_ends_of_different_size():
    schedule = schedule_of(elements=7)
    for rank in range(4):
        position = position_of(schedule, rank, KINDS.SEND)
        slot = schedule.programs[rank][position].slot
        if schedule.layouts[rank].sizes[slot] == 2:
            break
    sizes = schedule.layouts[rank].sizes
    with pytest.raises(ScheduleError, match="differ in slot sizes"):
        prove(edited(schedule, rank, position, slot=sizes.index(1)))


def test_buffers_of_the_wrong_size():
    schedule = schedule_of()
    layouts = (replace(schedule.layouts[0], output=(1, 1)), *schedule.layouts[1:])
    with pytest.raises(ScheduleError, match=r"must have \(8, 8\) elements"):
        prove(replace(schedule, layouts=layouts))


@pytest.mark.parametrize("collective", [c for c in Collective if c is not Collective.ALL_TO_ALLV])
def test_no_dependency_and_no_work_is_superfluous(collective):
    """Without any one dependency on work that touches the same slot there is a race; without any
    one local instruction the result is wrong or something is missing."""
    for algorithm in algorithms_for(collective):
        elements = 1 if collective is Collective.BARRIER else 10
        schedule = schedule_of(algorithm, collective, 5, elements)
        for rank, program in enumerate(schedule.programs):
            for position, step in enumerate(program):
                if step.kind in (KINDS.REDUCE, KINDS.COPY):
                    with pytest.raises(ScheduleError):
                        prove(without(schedule, rank, position))
                    kept = edited(schedule, rank, position, depends_on=())
                    if step.kind is KINDS.REDUCE:
                        with pytest.raises(ScheduleError):
                            prove(kept)


def test_a_message_that_may_land_too_early_is_a_race():
    """Two messages of different senders into one place, one read before the other comes."""
    schedule = schedule_of("direct", Collective.REDUCE, ranks=3, elements=1)
    # both arrivals at the root into the same scratch slot
    receives = [position_of(schedule, 0, KINDS.RECEIVE, which) for which in (0, 1)]
    first = schedule.programs[0][receives[0]].slot
    broken = edited(schedule, 0, receives[1], slot=first)
    assert races(ScheduleGraph(schedule)) == []
    assert races(ScheduleGraph(broken)) != []


def has_race(graph):
    """By definition: any two accesses to a slot, one of them writing, in no order."""
    before: list[set[int]] = [set() for _ in graph.steps]
    for number in graph.order:
        if graph.steps[number].kind is KINDS.RECEIVE:
            before[number] |= before[graph.partner[number]]
        for needed in graph.needs(number):
            before[number] |= before[needed] | {needed}
    accesses = []
    for number, step in enumerate(graph.steps):
        rank = graph.rank[number]
        if step.kind is KINDS.SEND:
            landing = graph.steps[graph.partner[number]].slot
            accesses += [(rank, step.slot + i, False, number) for i in range(step.count)]
            accesses += [(step.peer, landing + i, True, number) for i in range(step.count)]
        elif step.kind is not KINDS.RECEIVE:
            accesses += [(rank, step.slot + i, True, number) for i in range(step.count)]
            accesses += [(rank, step.source + i, False, number) for i in range(step.count)]

    def ordered(first, second):
        return first in before[second] or (
            graph.steps[first].kind is KINDS.SEND and graph.partner[first] in before[second]
        )

    return any(
        one[:2] == other[:2]
        and (one[2] or other[2])
        and one[3] != other[3]
        and not ordered(one[3], other[3])
        and not ordered(other[3], one[3])
        for one, other in combinations(accesses, 2)
    )


@given(
    st.sampled_from([Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE]),
    st.integers(2, 5),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_races_are_found_exactly_when_there_are_any(collective, ranks, data):
    algorithm = data.draw(st.sampled_from(algorithms_for(collective)))
    schedule = schedule_of(algorithm, collective, ranks, data.draw(st.integers(1, 2 * ranks)))
    assert not has_race(ScheduleGraph(schedule))
    for _ in range(data.draw(st.integers(0, 3))):
        rank = data.draw(st.integers(0, ranks - 1))
        if not schedule.programs[rank]:
            continue
        position = data.draw(st.integers(0, len(schedule.programs[rank]) - 1))
        depends_on = schedule.programs[rank][position].depends_on
        kept = tuple(needed for needed in depends_on if data.draw(st.booleans()))
        schedule = edited(schedule, rank, position, depends_on=kept)
    graph = ScheduleGraph(schedule)
    assert bool(races(graph)) == has_race(graph)
