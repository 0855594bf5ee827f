"""The alpha-beta model: closed forms where there are any, bounds, and the choice by size."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traffic.codec import PACKET_HEADERS
from traffic.collectives.algorithms import algorithms_for, create_algorithm
from traffic.collectives.choice import DEFAULT_TABLE, AlgorithmRule, AlgorithmTable
from traffic.collectives.cost import CostModel, estimate, lower_bound
from traffic.collectives.request import (
    Chunking,
    Collective,
    CollectiveRequest,
    ScheduleError,
)
from traffic.nvlink import NvlinkSettings

ALPHA, RATE = 2e-6, 400e9
MODEL = CostModel(latency=ALPHA, rate=RATE, path_mtu=None)
ONE_MESSAGE = Chunking(2**30, 1, 8)


def seconds(size):
    return size * 8 / RATE


def time_of(collective, algorithm, ranks, size, chunking=ONE_MESSAGE, model=MODEL, **fields):
    request = CollectiveRequest(collective, ranks, size // 4, chunking=chunking, **fields)
    return estimate(create_algorithm(algorithm).schedule(request), model)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_ring_all_reduce_is_steps_of_alpha_and_beta(ranks):
    size = 4096 * ranks
    # the last acknowledgement takes one more alpha
    steps = 2 * (ranks - 1) * (ALPHA + seconds(size / ranks))
    assert time_of(Collective.ALL_REDUCE, "ring", ranks, size) == pytest.approx(steps + ALPHA)


@pytest.mark.parametrize("pieces", [1, 2, 8])
def test_a_chain_is_a_pipeline(pieces):
    size, ranks = 2**20, 5
    chunking = Chunking(size // pieces, 1, 100)
    piece = seconds(size / pieces)
    expected = (ranks - 1) * (ALPHA + piece) + (pieces - 1) * piece + ALPHA
    assert time_of(Collective.BROADCAST, "ring", ranks, size, chunking) == pytest.approx(expected)


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_recursive_halving_doubling(ranks):
    size = 2**20
    steps = ranks.bit_length() - 1
    expected = 2 * steps * ALPHA + 2 * (ranks - 1) / ranks * seconds(size) + ALPHA
    measured = time_of(Collective.ALL_REDUCE, "recursive-halving-doubling", ranks, size)
    assert measured == pytest.approx(expected)


def test_pairwise_waits_for_its_acknowledgement_and_direct_does_not():
    ranks, size = 8, 2**16
    block = seconds(size / ranks)
    direct = time_of(Collective.ALL_TO_ALL, "direct", ranks, size)
    pairwise = time_of(Collective.ALL_TO_ALL, "pairwise", ranks, size)
    assert direct == pytest.approx(7 * block + 2 * ALPHA)
    assert pairwise == pytest.approx(7 * (block + 2 * ALPHA))


def test_incast_is_limited_by_the_receiver():
    assert time_of(Collective.GATHER, "direct", 9, 9 * 2**16) == pytest.approx(
        8 * seconds(2**16) + 2 * ALPHA
    )


def test_a_window_that_is_too_small_for_the_round_trip_halves_the_rate():
    piece = ALPHA * RATE / 8  # bytes that take one alpha: a round trip holds three of them
    size = int(piece) * 60
    times = [
        time_of(Collective.SEND_RECV, "direct", 2, size, Chunking(int(piece), 1, window))
        for window in (1, 2, 3, 100)
    ]
    assert times[0] == pytest.approx(180 * ALPHA)
    assert times[1] == pytest.approx(90 * ALPHA, rel=0.03)
    assert times[2] == pytest.approx(62 * ALPHA)
    assert times[3] == times[2]


def test_nvlink_takes_what_stays_in_the_server():
    slow = CostModel(latency=1e-3, rate=1e9, nvlink=NvlinkSettings(rate=8e12, latency=1e-6))
    inside = time_of(Collective.ALL_REDUCE, "ring", 8, 2**20, model=slow, gpus_per_server=8)
    assert inside < 1e-3
    flat = time_of(Collective.ALL_REDUCE, "ring", 8, 2**20, model=slow)
    tiers = time_of(Collective.ALL_REDUCE, "hierarchical", 8, 2**20, model=slow, gpus_per_server=4)
    assert tiers < 0.35 * flat


def test_latency_can_differ_between_paths():
    request = CollectiveRequest(Collective.BROADCAST, 4, 10, chunking=ONE_MESSAGE)
    schedule = create_algorithm("ring").schedule(request)
    far = estimate(schedule, MODEL, latency=lambda source, destination: 1.0 * (source == 2))
    assert far == pytest.approx(2.0 + 3 * seconds(40))  # there, and the acknowledgement back


def test_packets_have_headers():
    with_headers = CostModel(latency=0, rate=RATE, path_mtu=4096)
    extra = with_headers.transfer_time(2 * 4096) - MODEL.transfer_time(2 * 4096)
    # per packet also preamble, check sequence and gap; once the RETH and immediate data
    assert extra == pytest.approx((2 * (PACKET_HEADERS + 24) + 20) * 8 / RATE)


def test_trees_win_when_small_and_rings_when_large():
    def ratio(size):
        def default(algorithm):
            return time_of(Collective.ALL_REDUCE, algorithm, 16, size, chunking=None)

        return default("ring") / default("double-binary-tree")

    assert ratio(8 * 2**10) > 2
    assert ratio(64 * 2**20) < 1


@given(
    st.sampled_from([c for c in Collective if c is not Collective.ALL_TO_ALLV]),
    st.integers(2, 10),
    st.integers(1, 10**5),
    st.integers(0, 9),
    st.integers(1, 3),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_nothing_beats_the_lower_bound(collective, ranks, elements, root, channels, paired):
    request = CollectiveRequest(
        collective,
        ranks,
        1 if collective is Collective.BARRIER else elements,
        root=root % ranks,
        channels=channels,
        gpus_per_server=2 if paired and ranks % 2 == 0 else 1,
    )
    for algorithm in algorithms_for(collective):
        bound = lower_bound(request, MODEL)
        assert estimate(create_algorithm(algorithm).schedule(request), MODEL) >= bound * 0.999999


def test_some_algorithms_reach_the_bound():
    size = 64 * 2**20
    for collective, algorithm in [
        (Collective.ALL_REDUCE, "ring"),
        (Collective.ALL_GATHER, "ring"),
        (Collective.REDUCE_SCATTER, "ring"),
        (Collective.BROADCAST, "ring"),
        (Collective.ALL_TO_ALL, "direct"),
        (Collective.GATHER, "direct"),
    ]:
        request = CollectiveRequest(collective, 8, size // 4)
        measured = estimate(create_algorithm(algorithm).schedule(request), MODEL)
        assert measured == pytest.approx(lower_bound(request, MODEL), rel=0.12)


# choice


def test_default_table_knows_every_collective():
    for collective in Collective:
        for size in (1, 2**16, 2**30):
            for gpus in (1, 8):
                algorithm = DEFAULT_TABLE.choose(collective, size, gpus)
                assert algorithm in algorithms_for(collective)


def test_choice_by_size_and_servers():
    assert DEFAULT_TABLE.choose(Collective.ALL_REDUCE, 2**10) == "double-binary-tree"
    assert DEFAULT_TABLE.choose(Collective.ALL_REDUCE, 2**30) == "ring"
    assert DEFAULT_TABLE.choose(Collective.ALL_REDUCE, 2**30, gpus_per_server=8) == "hierarchical"
    assert DEFAULT_TABLE.choose(Collective.BROADCAST, 2**20) == "binary-tree"
    assert DEFAULT_TABLE.choose(Collective.ALL_TO_ALL, 2**20) == "direct"
    assert DEFAULT_TABLE.choose(Collective.ALL_TO_ALL, 2**20, gpus_per_server=8) == "pxn"


def test_rules_can_be_put_before_the_default():
    mine = (AlgorithmRule(Collective.ALL_REDUCE, "hierarchical", up_to=2**20),)
    table = DEFAULT_TABLE.overridden(mine)
    assert table.choose(Collective.ALL_REDUCE, 2**20) == "hierarchical"
    assert table.choose(Collective.ALL_REDUCE, 2**20 + 1) == "ring"
    assert table.choose(Collective.BROADCAST, 2**20) == "binary-tree"
    with pytest.raises(ScheduleError, match="no rule for gather of 5 bytes"):
        AlgorithmTable(mine).choose(Collective.GATHER, 5)
