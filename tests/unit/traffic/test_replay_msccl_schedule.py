"""MSCCL algorithms as schedules, which the collectives' own proof accepts or refuses."""

from __future__ import annotations

import pytest
from msccl_files import (
    algorithm,
    direct_all_to_all,
    pairwise_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    step,
    threadblock,
)

from traffic.collectives.proof import prove
from traffic.collectives.request import ScheduleError
from traffic.collectives.schedule import InstructionKind
from traffic.replay import TraceError
from traffic.replay.msccl import parse_msccl
from traffic.replay.msccl_schedule import msccl_schedule


def ring_reduce_scatter(ranks):
    """In place: rank r's part of the output is the r-th part of its input."""
    gpus = []
    for rank in range(ranks):
        kinds = ["s", *["rrs"] * (ranks - 2), "rrc"]
        steps = []
        for index, kind in enumerate(kinds):
            source = ("i", (rank - 1 - index) % ranks)
            steps.append(step(index, kind, source, ("o", 0) if kind == "rrc" else source))
        gpus.append([threadblock(0, (rank + 1) % ranks, (rank - 1) % ranks, 0, steps)])
    return algorithm("reduce_scatter", gpus, chunks=ranks, buffers=(ranks, 1, 0))


def chain_broadcast(ranks):
    gpus = []
    for rank in range(ranks):
        kind = "s" if rank == 0 else "rcs" if rank < ranks - 1 else "r"
        steps = [step(c, kind, ("o", c), ("o", c)) for c in range(3)]
        send = rank + 1 if rank < ranks - 1 else -1
        gpus.append([threadblock(0, send, rank - 1, 0, steps)])
    return algorithm("broadcast", gpus, chunks=3, buffers=(0, 3, 0))


def written_input():
    """Out of place, but one step adds into the input before it is copied out."""
    gpus = []
    for rank in range(2):
        steps = [
            step(0, "s", ("i", 0), ("s", 0)),
            step(1, "r", ("i", 0), ("s", 0)),
            step(2, "re", ("s", 0), ("i", 0)),
            step(3, "cpy", ("i", 0), ("o", 0)),
        ]
        gpus.append([threadblock(0, 1 - rank, 1 - rank, 0, steps)])
    return algorithm("allreduce", gpus, chunks=1, inplace=0, buffers=(1, 1, 1))


@pytest.mark.parametrize(
    ("data", "elements"),
    [
        (ring_all_reduce(2), 20),
        (ring_all_reduce(8), 800),
        (ring_all_reduce(5, channels=3), 15),
        (ring_all_gather(2), 2),
        (ring_all_gather(6), 60),
        (ring_reduce_scatter(2), 4),
        (ring_reduce_scatter(5), 50),
        (direct_all_to_all(4), 16),
        (chain_broadcast(4), 9),
        (pairwise_all_reduce(), 7),
        (written_input(), 3),
    ],
)
def test_right_algorithms_are_proved(data, elements):
    prove(msccl_schedule(parse_msccl(data), elements))


@pytest.mark.parametrize(
    ("old", "new"), [('type="rrcs"', 'type="rcs"'), ('srcoff="0"', 'srcoff="1"')]
)
def test_wrong_algorithms_are_not(old, new):
    data = ring_all_reduce(4).replace(old.encode(), new.encode(), 1)
    with pytest.raises(ScheduleError):
        prove(msccl_schedule(parse_msccl(data), 4))


def test_a_missing_wait_is_a_race():
    with pytest.raises(ScheduleError):
        prove(msccl_schedule(parse_msccl(pairwise_all_reduce(wait=False)), 1))


def test_a_write_waits_for_the_send_of_what_was_there():
    """A step that waits for another threadblock's step waits for its messages to be read."""
    gpus = []
    for rank in range(2):
        send = [step(0, "s", ("i", 0), ("s", 0), hasdep=1), step(1, "r", ("i", 0), ("s", 0))]
        add = [step(0, "re", ("s", 0), ("i", 0), depid=0, deps=1)]
        peer = 1 - rank
        gpus.append([threadblock(0, peer, peer, 0, send), threadblock(1, -1, -1, 0, add)])
    data = algorithm("allreduce", gpus, chunks=1, buffers=(1, 0, 1))
    schedule = msccl_schedule(parse_msccl(data), 2)
    prove(schedule)
    program = schedule.programs[0]
    send = next(i for i, x in enumerate(program) if x.kind is InstructionKind.SEND)
    reduce = next(x for x in program if x.kind is InstructionKind.REDUCE)
    assert send in reduce.depends_on


def test_bytes_are_the_rings():
    schedule = msccl_schedule(parse_msccl(ring_all_reduce(4, channels=2)), 8000)
    assert schedule.request.channels == 2
    for rank in range(4):
        assert schedule.sent_elements(rank) == {(rank + 1) % 4: 2 * 3 * 8000 // 4}


def test_transfers_within_a_server_are_local():
    schedule = msccl_schedule(parse_msccl(ring_all_reduce(4)), 4, gpus_per_server=2)
    sends = [x for x in schedule.programs[1] if x.kind is InstructionKind.SEND]
    assert not any(x.local for x in sends)  # from rank 1 to 2: another server
    sends = [x for x in schedule.programs[2] if x.kind is InstructionKind.SEND]
    assert all(x.local for x in sends)


@pytest.mark.parametrize(
    ("data", "elements", "message"),
    [
        (ring_all_reduce(3), 10, "10 elements in 3 chunks on 3 gpus"),
        (ring_all_reduce(3), 0, "0 elements"),
        (ring_all_reduce(3).replace(b'"allreduce"', b'"custom"'), 9, "coll 'custom'; allowed"),
        (ring_all_reduce(2).replace(b'"allreduce"', b'"alltoall"'), 2, None),
    ],
)
def test_what_cannot_be_scheduled(data, elements, message):
    parsed = parse_msccl(data)
    if message is None:  # a schedule, but a wrong one
        with pytest.raises(ScheduleError):
            prove(msccl_schedule(parsed, elements))
        return
    with pytest.raises(TraceError, match=message):
        msccl_schedule(parsed, elements)
