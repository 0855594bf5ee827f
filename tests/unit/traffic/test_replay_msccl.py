"""MSCCL algorithms: the ring that msccl-tools writes is proved and replayed, wrong ones are not."""

from __future__ import annotations

import gzip
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msccl_files import (
    algorithm,
    direct_all_to_all,
    pairwise_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    step,
    threadblock,
)

from traffic.replay import NodeKind, TraceError
from traffic.replay.msccl import msccl_trace, parse_msccl
from traffic.replay.msccl_check import verify_msccl


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("channels", [1, 2])
def test_a_ring_is_proved_and_sends_the_rings_bytes(ranks, channels):
    ring = parse_msccl(ring_all_reduce(ranks, channels))
    assert (len(ring.gpus), ring.collective, ring.in_place) == (ranks, "allreduce", True)
    verify_msccl(ring)
    size = 1024 * ranks * channels
    trace = msccl_trace(ring, size)
    for nodes in trace.ranks:
        sent = [node for node in nodes if node.kind is NodeKind.SEND]
        assert sum(node.size for node in sent) == 2 * (ranks - 1) * size // ranks
        assert len(sent) == 2 * (ranks - 1) * channels
        assert len({(node.peer, node.tag) for node in sent}) == len(sent)


def test_steps_follow_each_other_within_a_threadblock():
    nodes = msccl_trace(parse_msccl(ring_all_reduce(3)), 3000).ranks[0]
    assert [node.kind for node in nodes] == [
        NodeKind.SEND, *[NodeKind.RECEIVE, NodeKind.SEND] * 3, NodeKind.RECEIVE,
    ]  # fmt: skip
    for before, node in itertools.pairwise(nodes):
        assert node.dependencies == (before.node_id,)
    assert {node.size for node in nodes} == {1000}


@pytest.mark.parametrize("make", [ring_all_gather, direct_all_to_all])
@pytest.mark.parametrize("ranks", [2, 5])
def test_other_collectives_are_proved(make, ranks):
    parsed = parse_msccl(make(ranks))
    verify_msccl(parsed)
    assert msccl_trace(parsed, 64 * ranks).world_size == ranks


def test_steps_of_another_threadblock_are_waited_for():
    parsed = parse_msccl(gzip.compress(pairwise_all_reduce()))
    verify_msccl(parsed)
    nodes = msccl_trace(parsed, 8).ranks[0]
    nop = next(node for node in nodes if "nop" in node.name)
    receive = next(node for node in nodes if node.kind is NodeKind.RECEIVE)
    assert receive.node_id in nop.dependencies


def test_a_race_between_threadblocks_is_found():
    with pytest.raises(TraceError, match=r"nobody has written|races with"):
        verify_msccl(parse_msccl(pairwise_all_reduce(wait=False)))


def test_a_write_that_does_not_wait_for_a_reader_is_a_race():
    # tb 1 overwrites the chunk that tb 0 sends, without waiting for it
    gpus = []
    for rank in range(2):
        send = [step(0, "s", ("i", 0), ("i", 0)), step(1, "r", ("i", 1), ("s", 0))]
        copy = [step(0, "cpy", ("i", 1), ("i", 0))]
        peer = 1 - rank
        gpus.append([threadblock(0, peer, peer, 0, send), threadblock(1, -1, -1, 0, copy)])
    data = algorithm("allreduce", gpus, chunks=2, buffers=(2, 0, 1))
    with pytest.raises(TraceError, match="tb 1, step 0: races with step 0 of tb 0 for chunk 0"):
        verify_msccl(parse_msccl(data))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('type="rrcs"', 'type="rcs"', "allreduce leaves"),
        ('type="rrs"', 'type="rcs"', "are added twice|allreduce leaves"),
        ('srcoff="0"', 'srcoff="1"', "are added twice|allreduce leaves"),
    ],
)
def test_an_algorithm_with_a_wrong_step_is_not_proved(old, new, message):
    data = ring_all_reduce(4).replace(old.encode(), new.encode(), 1)
    with pytest.raises(TraceError, match=message):
        verify_msccl(parse_msccl(data))


def test_a_deadlock_is_named():
    receive_first = [step(0, "r", ("i", 0), ("s", 0)), step(1, "s", ("i", 0), ("s", 0))]
    gpus = [[threadblock(0, 1 - g, 1 - g, 0, receive_first)] for g in range(2)]
    parsed = parse_msccl(algorithm("allreduce", gpus, chunks=1, buffers=(1, 0, 1)))
    with pytest.raises(TraceError, match="gpu 0, tb 0 waits forever at step 0 r"):
        verify_msccl(parsed)
    with pytest.raises(TraceError, match="waits for itself"):
        msccl_trace(parsed, 8)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<algo", '<!DOCTYPE a [<!ENTITY b "c">]><algo', "line 1: a DOCTYPE is not allowed"),
        ("</algo>", "", "XML: no element found"),
        ('type="rrcs"', 'type="xyz"', "line 1, step: type 'xyz'; allowed: s, r, rcs"),
        ('ngpus="3"', 'ngpus="4"', "ngpus 4, but 3 elements gpu"),
        ('coll="allreduce"', "", "algo: no attribute coll"),
        ('nchunksperloop="3"', 'nchunksperloop="0"', "0 chunks; allowed: 1 to"),
        ('<gpu id="2"', '<gpu id="1"', "gpu: id 1; expected each of 0 to 2 once"),
        ('send="1"', 'send="7"', "gpu 0, tb 0: peer 7"),
        ('send="1"', 'send="-1"', "gpu 0, tb 0, step 0 s: the threadblock has no peer"),
        ('srcoff="0"', 'srcoff="3"', "chunks 3 to 3 of buffer i, which has 3"),
        ('srcbuf="i"', 'srcbuf="x"', "srcbuf 'x'; allowed: i, o, s"),
        (
            '<tb id="0"',
            '<tb id="1" send="1" recv="2" chan="0"/><tb id="0"',
            "gpu 0, tb 1: send peer 1 on channel 0 belongs to tb 0",
        ),
        ('depid="-1" deps="-1"', 'depid="0" deps="-1"', "depid 0, but deps -1"),
        ('depid="-1" deps="-1"', 'depid="3" deps="0"', "waits for step 0 of tb 3, which is not"),
        ('<step s="0"', '<step s="5"', "step: s '5'; expected 0"),
        ('cnt="1"', 'cnt="one"', "cnt 'one' is no whole number"),
        ("<gpu", "<server", "element server within algo"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_line(old, new, message):
    data = ring_all_reduce(3)
    assert old.encode() in data
    with pytest.raises(TraceError) as error:
        parse_msccl(data.replace(old.encode(), new.encode(), 1))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_sizes_must_fit_the_chunks():
    with pytest.raises(TraceError, match="1000 bytes; allowed: multiples of 3"):
        msccl_trace(parse_msccl(ring_all_reduce(3)), 1000)


def test_unknown_collectives_cannot_be_proved():
    data = ring_all_reduce(3).replace(b'coll="allreduce"', b'coll="custom"')
    with pytest.raises(TraceError, match="'custom'; what it has to compute is known for"):
        verify_msccl(parse_msccl(data))


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_damaged_files_give_an_algorithm_or_a_trace_error(data):
    whole = ring_all_reduce(2)
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(32, 126))
    try:
        parsed = parse_msccl(bytes(damaged[: data.draw(st.integers(0, len(damaged)))] or whole))
        verify_msccl(parsed)
        msccl_trace(parsed, 64 * parsed.chunks_per_loop)
    except TraceError as error:
        assert "\n" not in str(error)
