"""Every collective, by every algorithm that can do it: proven, and of the size that theory says."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traffic.collectives.algorithms import algorithm_names, algorithms_for, create_algorithm
from traffic.collectives.expected import expected_outputs
from traffic.collectives.proof import prove
from traffic.collectives.request import (
    Chunking,
    Collective,
    CollectiveRequest,
    ScheduleError,
    largest_buffer,
)
from traffic.collectives.schedule import InstructionKind
from traffic.plan import Reduction

PAIRS = [
    (collective, algorithm) for collective in Collective for algorithm in algorithms_for(collective)
]


def request_of(collective, ranks, elements, *, seed=0, **fields):
    counts = None
    if collective is Collective.BARRIER:
        elements = 1
    elif collective is Collective.ALL_TO_ALLV:
        drawn = random.Random(seed)
        counts = tuple(
            tuple(drawn.choice((0, 1, elements // ranks + 2)) for _ in range(ranks))
            for _ in range(ranks)
        )
        elements = max(1, largest_buffer(counts))
        if largest_buffer(counts) == 0:
            counts = ((1, *counts[0][1:]), *counts[1:])
    return CollectiveRequest(collective, ranks, elements, counts=counts, **fields)


def servers_of(ranks):
    """Sizes that servers can have so that they are all full."""
    return [size for size in range(1, ranks + 1) if ranks % size == 0]


@pytest.mark.parametrize(("collective", "algorithm"), PAIRS)
def test_every_schedule_is_right(collective, algorithm):
    """For 2 to 33 ranks and 1 to 4 channels, with any root, servers, and as many elements as
    leave slots empty or not; and everybody sends to everyone what the closed form says."""
    drawn = random.Random(f"{collective} {algorithm}")
    chosen = create_algorithm(algorithm)
    for ranks in range(2, 34):
        full = drawn.randint(1, 4)
        for channels in range(1, 5):
            # many ranks can fill all their slots with one number of channels, to save time
            most = 2 * ranks * channels if ranks <= 16 else ranks // 4
            if ranks > 16 and channels == full:
                most = ranks * channels
            request = request_of(
                collective,
                ranks,
                drawn.randint(1, most),
                seed=ranks,
                channels=channels,
                root=drawn.randrange(ranks),
                gpus_per_server=drawn.choice(servers_of(ranks)),
            )
            schedule = chosen.schedule(request)
            prove(schedule)
            for rank in range(ranks):
                sent = schedule.sent_elements(rank)
                assert sent == chosen.sent_elements(request, rank), (request, rank)


@st.composite
def requests(draw):
    collective, algorithm = draw(st.sampled_from(PAIRS))
    ranks = draw(st.integers(2, 12))
    request = request_of(
        collective,
        ranks,
        draw(st.integers(1, 300)),
        seed=draw(st.integers(0, 1000)),
        root=draw(st.integers(0, ranks - 1)),
        channels=draw(st.integers(1, 4)),
        gpus_per_server=draw(st.sampled_from(servers_of(ranks))),
        chunking=Chunking(draw(st.integers(4, 200)), draw(st.integers(1, 3)), 2),
    )
    return request, algorithm


@given(requests())
@settings(max_examples=120, deadline=None)
def test_any_size_and_chunking(drawn):
    request, algorithm = drawn
    chosen = create_algorithm(algorithm)
    schedule = chosen.schedule(request)
    prove(schedule)
    for rank in range(request.ranks):
        assert schedule.sent_elements(rank) == chosen.sent_elements(request, rank)
    inputs = [
        np.arange(sum(request.input_blocks(rank)), dtype=np.int64) * 1000 + rank
        for rank in range(request.ranks)
    ]
    for rank, output in enumerate(expected_outputs(schedule, inputs, Reduction.SUM)):
        assert np.array_equal(output, by_definition(request, inputs, rank))


def by_definition(request, inputs, rank):
    """A rank's output, as the MPI standard and NCCL's manual define the collective."""
    ranks, root = range(request.ranks), request.root
    bounds = np.cumsum([0, *request.blocks])
    mine = slice(bounds[rank], bounds[rank + 1])
    nothing = np.empty(0, dtype=np.int64)
    match request.collective:
        case Collective.BROADCAST:
            return inputs[root]
        case Collective.REDUCE:
            return np.sum(inputs, axis=0) if rank == root else nothing
        case Collective.GATHER:
            return np.concatenate(inputs) if rank == root else nothing
        case Collective.SCATTER:
            return inputs[root][mine]
        case Collective.ALL_GATHER:
            return np.concatenate(inputs)
        case Collective.REDUCE_SCATTER:
            return np.sum(inputs, axis=0)[mine]
        case Collective.ALL_REDUCE | Collective.BARRIER:
            return np.sum(inputs, axis=0)
        case Collective.SEND_RECV:
            return inputs[rank - 1]
    starts = [np.cumsum([0, *(request.count(source, d) for d in ranks)]) for source in ranks]
    return np.concatenate([inputs[s][starts[s][rank] : starts[s][rank + 1]] for s in ranks])


# what theory says of the bytes


@pytest.mark.parametrize("ranks", [2, 3, 8, 16])
@pytest.mark.parametrize("channels", [1, 3])
def test_bytes_of_a_divisible_all_reduce(ranks, channels):
    size = 12 * ranks * channels
    request = CollectiveRequest(Collective.ALL_REDUCE, ranks, size, channels=channels)

    def total(algorithm, rank):
        return sum(create_algorithm(algorithm).schedule(request).sent_elements(rank).values())

    for rank in range(ranks):
        assert total("ring", rank) * ranks == 2 * (ranks - 1) * size
        assert total("direct", rank) * ranks == 2 * (ranks - 1) * size
        if ranks & (ranks - 1) == 0:
            assert total("recursive-halving-doubling", rank) * ranks == 2 * (ranks - 1) * size
    for tree in ("binary-tree", "double-binary-tree"):
        # every edge of every tree carries its share twice
        assert sum(total(tree, rank) for rank in range(ranks)) == 2 * (ranks - 1) * size
        assert max(total(tree, rank) for rank in range(ranks)) <= 3 * size


@pytest.mark.parametrize("collective", [Collective.ALL_GATHER, Collective.REDUCE_SCATTER])
def test_bytes_of_half_an_all_reduce(collective):
    request = CollectiveRequest(collective, 8, 64)
    for algorithm in algorithms_for(collective):
        schedule = create_algorithm(algorithm).schedule(request)
        assert [sum(schedule.sent_elements(rank).values()) for rank in range(8)] == [56] * 8


def test_a_folded_rank_sends_everything_once_and_gets_everything_once():
    request = CollectiveRequest(Collective.ALL_REDUCE, 5, 40)
    schedule = create_algorithm("recursive-halving-doubling").schedule(request)
    assert schedule.sent_elements(1) == {0: 40}
    assert schedule.sent_elements(0) == {1: 40, 2: 10 + 10, 3: 20 + 20}


# servers


def network_elements(schedule, rank):
    request = schedule.request
    sent = schedule.sent_elements(rank)
    return {peer: n for peer, n in sent.items() if not request.is_local(rank, peer)}


@pytest.mark.parametrize("servers", [2, 3, 4])
@pytest.mark.parametrize("gpus", [2, 4, 8])
@pytest.mark.parametrize(
    "collective", [Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER]
)
def test_hierarchical_sends_a_share_of_the_data_along_its_rail(collective, servers, gpus):
    size = 10 * servers * gpus
    request = CollectiveRequest(collective, servers * gpus, size, gpus_per_server=gpus, channels=2)
    times = 2 if collective is Collective.ALL_REDUCE else 1
    schedule = create_algorithm("hierarchical").schedule(request)
    for rank in range(request.ranks):
        ((peer, elements),) = network_elements(schedule, rank).items()
        assert peer % gpus == rank % gpus
        assert elements * servers * gpus == times * (servers - 1) * size


@pytest.mark.parametrize("algorithm", ["pxn", "direct"])
def test_only_pxn_keeps_to_the_rails(algorithm):
    request = CollectiveRequest(Collective.ALL_TO_ALL, 16, 160, gpus_per_server=4)
    schedule = create_algorithm(algorithm).schedule(request)
    crossing = [
        (rank, peer)
        for rank in range(16)
        for peer in network_elements(schedule, rank)
        if rank % 4 != peer % 4
    ]
    assert len(crossing) == (0 if algorithm == "pxn" else 16 * 9)
    # either way a GPU's NIC carries what is for other servers, once
    assert [sum(network_elements(schedule, rank).values()) for rank in range(16)] == [120] * 16


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("largest", "messages"),
    [
        (4 * 30, 1),  # four GPUs' blocks of 30 elements
        (4 * 30 - 1, 2),
        (2 * 30, 2),
        (30, 4),
        (15, 8),  # two for each block
    ],
)
def test_pxn_gathers_what_is_for_one_rank(channels, largest, messages):
    """As few messages leave a NIC as their size allows, and they carry the same bytes."""
    chunking = Chunking(slice_bytes=4 * largest, slices_per_chunk=1)
    request = CollectiveRequest(
        Collective.ALL_TO_ALL, 12, 12 * 30 * channels, channels=channels, gpus_per_server=4,
        chunking=chunking,
    )  # fmt: skip
    schedule = create_algorithm("pxn").schedule(request)
    prove(schedule)
    for rank, program in enumerate(schedule.programs):
        sizes = schedule.layouts[rank].sizes
        sent = [
            sum(sizes[step.slot : step.slot + step.count])
            for step in program
            if step.kind is InstructionKind.SEND and not step.local
        ]
        assert len(sent) == 2 * channels * messages
        assert max(sent) <= largest
        assert sum(sent) == 8 * 30 * channels


def test_rings_over_servers_stay_on_their_rail_and_use_all_nics():
    request = CollectiveRequest(Collective.ALL_REDUCE, 16, 640, gpus_per_server=4, channels=4)
    schedule = create_algorithm("ring").schedule(request)
    edges = [(rank, peer) for rank in range(16) for peer in network_elements(schedule, rank)]
    assert len(edges) == 16
    assert all(rank % 4 == peer % 4 for rank, peer in edges)
    assert {rank % 4 for rank, _ in edges} == {0, 1, 2, 3}


def test_transfers_are_local_exactly_inside_a_server():
    request = CollectiveRequest(Collective.ALL_TO_ALL, 8, 80, gpus_per_server=4)
    for rank, program in enumerate(create_algorithm("pxn").schedule(request).programs):
        for step in program:
            message = step.kind in (InstructionKind.SEND, InstructionKind.RECEIVE)
            assert step.local == (message and rank // 4 == step.peer // 4)


# messages


def test_pairwise_talks_to_one_rank_at_a_time():
    schedule = create_algorithm("pairwise").schedule(
        CollectiveRequest(Collective.ALL_TO_ALL, 6, 60)
    )
    for rank, program in enumerate(schedule.programs):
        sends = [p for p, step in enumerate(program) if step.kind is InstructionKind.SEND]
        assert [program[p].peer for p in sends] == [(rank + step) % 6 for step in range(1, 6)]
        for earlier, later in pairwise(sends):
            assert earlier in program[later].depends_on


def test_chunks_and_slices():
    chunking = Chunking(slice_bytes=400, slices_per_chunk=2)
    request = CollectiveRequest(Collective.BROADCAST, 2, 1000, chunking=chunking)
    schedule = create_algorithm("ring").schedule(request)
    # 1000 elements are 5 chunks of 200, each in slices of 100: 400 bytes
    assert schedule.layouts[1].output == (100,) * 10
    own = create_algorithm("ring").schedule(CollectiveRequest(Collective.BROADCAST, 2, 2**20))
    assert own.layouts[1].output == (2**17,) * 8  # of 512 KiB
    small = CollectiveRequest(Collective.BROADCAST, 2, 6, chunking=chunking)
    # not cut below a 32nd of a slice
    assert create_algorithm("ring").schedule(small).layouts[1].output == (6,)


# what is refused


def test_registry():
    assert algorithm_names() == [
        "binary-tree", "direct", "double-binary-tree", "hierarchical", "pairwise", "pxn",
        "recursive-halving-doubling", "ring",
    ]  # fmt: skip
    with pytest.raises(ScheduleError, match="'star'; allowed: binary-tree, direct"):
        create_algorithm("star")
    with pytest.raises(ScheduleError, match="pxn cannot do gather; allowed: direct"):
        create_algorithm("pxn").schedule(CollectiveRequest(Collective.GATHER, 2, 2))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ranks": 1}, "ranks: 1; allowed: 2 or more"),
        ({"elements": 0}, "elements: 0"),
        ({"channels": 0}, "channels: 0"),
        ({"root": 4}, "root: 4; allowed: 0 to 3"),
        ({"gpus_per_server": 3}, "gpus_per_server: 3 does not divide 4"),
        ({"counts": ((1,),)}, "counts: needed for all-to-allv"),
        ({"collective": Collective.BARRIER}, "elements: 8; allowed for a barrier: 1"),
        ({"collective": Collective.ALL_TO_ALLV}, "counts: needed"),
        ({"collective": Collective.ALL_TO_ALLV, "counts": ((1,),)}, "4 rows of 4"),
        ({"collective": Collective.ALL_TO_ALLV, "counts": ((-2,) * 4,) * 4}, "numbers from 0"),
        ({"collective": Collective.ALL_TO_ALLV, "counts": ((1,) * 4,) * 4}, "counts is 4"),
    ],
)
def test_requests_are_checked(fields, words):
    with pytest.raises(ScheduleError, match=words):
        CollectiveRequest(**{"collective": Collective.REDUCE, "ranks": 4, "elements": 8, **fields})


@pytest.mark.parametrize("field", ["slice_bytes", "slices_per_chunk", "messages_in_flight"])
def test_chunking_is_checked(field):
    with pytest.raises(ScheduleError, match=f"{field}: 0; allowed: 1 or more"):
        Chunking(**{field: 0})
