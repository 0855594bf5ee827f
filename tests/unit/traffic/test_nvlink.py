"""NVLink of one server: rate, latency, turns at both ends, and that no byte gets lost."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traffic.nvlink import LocalPath, NvlinkSettings, NvSwitch
from traffic.plan import Op, OpKind

RATE, LATENCY = 8e9, 0.5
"""A gigabyte in a second, so that durations are easy to read."""
GB = 10**9


class Gpu:
    """Remembers what it is told."""

    def __init__(self, rank, memory=b""):
        self.rank = rank
        self.memory = memoryview(bytearray(memory))
        self.sent = {}
        self.received = {}
        self.lateness = []

    def local_sent(self, op_id, now):
        assert op_id not in self.sent
        self.sent[op_id] = now

    def local_received(self, source, tag, now, lateness):
        assert (source, tag) not in self.received
        self.lateness.append(lateness)
        self.received[source, tag] = now


def message(source, destination, length, tag=0, *, op_id=0, offset=0, remote_offset=0):
    return Op(
        op_id, source, OpKind.LOCAL_SEND, offset, length, tag=tag, remote_offset=remote_offset,
        peer=destination,
    )  # fmt: skip


def server(count):
    switch = NvSwitch(NvlinkSettings(RATE, LATENCY))
    gpus = [Gpu(rank) for rank in range(count)]
    for gpu in gpus:
        switch.attach(gpu)
    return switch, gpus


def run(switch):
    """To its end, at the times that it asks for; returns them."""
    times = []
    while (event := switch.next_event()) < float("inf"):
        times.append(event)
        switch.advance(event)
    return times


def test_a_message_takes_latency_and_length_over_rate():
    switch, gpus = server(2)
    switch.send(message(0, 1, 2 * GB), 1.0)
    run(switch)
    assert gpus[1].received == {(0, 0): pytest.approx(1 + LATENCY + 2)}
    assert gpus[0].sent == {0: pytest.approx(1 + LATENCY + 2 + LATENCY)}
    assert switch.next_event() == float("inf")


def test_messages_of_one_sender_leave_one_after_the_other():
    switch, gpus = server(3)
    for tag, destination in enumerate((1, 2, 1)):
        switch.send(message(0, destination, GB, tag, op_id=tag), 0.0)
    run(switch)
    assert gpus[1].received == {
        (0, 0): pytest.approx(1 + LATENCY),
        (0, 2): pytest.approx(3 + LATENCY),
    }
    assert gpus[2].received == {(0, 1): pytest.approx(2 + LATENCY)}


def test_messages_for_one_receiver_arrive_one_after_the_other():
    switch, gpus = server(4)
    for source in (1, 2, 3):
        switch.send(message(source, 0, GB), 0.0)
    run(switch)
    assert sorted(gpus[0].received.values()) == pytest.approx([1.5, 2.5, 3.5])


def test_a_message_that_waits_to_leave_does_not_hold_the_way_in():
    switch, gpus = server(4)
    switch.send(message(0, 1, 10 * GB), 0.0)
    switch.send(message(0, 3, GB, op_id=1), 0.0)  # leaves at 10 s
    switch.advance(1.0)
    switch.send(message(2, 3, GB), 1.0)
    run(switch)
    assert gpus[3].received == {
        (2, 0): pytest.approx(2 + LATENCY),
        (0, 0): pytest.approx(11 + LATENCY),
    }


def test_both_directions_are_independent():
    switch, gpus = server(2)
    switch.send(message(0, 1, GB), 0.0)
    switch.send(message(1, 0, GB), 0.0)
    run(switch)
    assert gpus[0].received[1, 0] == gpus[1].received[0, 0] == pytest.approx(1.5)


def test_being_late_does_not_add_up():
    """Whoever looks once a minute sees all at the end of it, not one message a minute."""
    switch, gpus = server(2)
    for tag in range(20):
        switch.send(message(0, 1, GB, tag, op_id=tag), 0.0)
    switch.advance(60.0)
    assert len(gpus[1].received) == len(gpus[0].sent) == 20
    assert gpus[1].lateness == pytest.approx([60 - LATENCY - 1 - number for number in range(20)])


def test_the_bytes_are_those_at_the_time_of_arrival_and_land_where_they_should():
    switch = NvSwitch(NvlinkSettings(RATE, LATENCY))
    first, second = Gpu(0, bytes(range(32))), Gpu(1, bytes(32))
    switch.attach(first)
    switch.attach(second)
    switch.send(message(0, 1, 8, offset=4, remote_offset=16), 0.0)
    assert bytes(second.memory) == bytes(32)
    run(switch)
    assert bytes(second.memory) == bytes(16) + bytes(range(4, 12)) + bytes(8)
    assert switch.carried_bytes == 8


def test_a_stranger_is_refused():
    switch, _ = server(2)
    with pytest.raises(KeyError, match="rank 5 is not on the NVLink of rank 0"):
        switch.send(message(0, 5, 8), 0.0)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rate": 0.0}, "rate: 0.0 bit/s of NVLink; allowed: more than 0"),
        ({"rate": float("inf")}, "rate: inf"),
        ({"latency": -1.0}, "latency: -1.0 s of NVLink; allowed: 0 or more"),
    ],
)
def test_settings_that_make_no_sense(fields, words):
    with pytest.raises(ValueError, match=words):
        NvlinkSettings(**fields)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 5), st.integers(0, 3), st.integers(1, 3), st.integers(1, 3 * GB)),
        min_size=1,
        max_size=25,
    ),
    st.integers(0, 2**32),
)
def test_every_message_arrives_once_and_no_port_is_faster_than_its_rate(messages, seed):
    switch, gpus = server(4)
    chooser = random.Random(seed)
    ops = []
    for index, (start, source, step, length) in enumerate(sorted(messages)):
        while switch.next_event() <= start:
            switch.advance(switch.next_event())
        op = message(source, (source + step) % 4, length, tag=index, op_id=index)
        ops.append((start, op))
        switch.send(op, start)
        if chooser.random() < 0.2:
            switch.advance(start)
    run(switch)
    arrivals = {}
    for start, op in ops:
        arrival = gpus[op.peer].received[op.rank, op.tag]
        assert arrival >= start + LATENCY + op.length / GB - 1e-9
        assert gpus[op.rank].sent[op.op_id] == pytest.approx(arrival + LATENCY)
        arrivals.setdefault(("in", op.peer), []).append((arrival, op.length, start))
        arrivals.setdefault(("out", op.rank), []).append((arrival, op.length, start))
    for ends in arrivals.values():
        first = min(start for _, _, start in ends)
        assert max(arrival for arrival, _, _ in ends) >= (
            first + LATENCY + sum(length for _, length, _ in ends) / GB - 1e-6
        )
    assert sum(len(gpu.received) for gpu in gpus) == len(messages)
    assert switch.carried_bytes == sum(length for _, _, _, length in messages)


def mesh(rates):
    """GPUs wired to each other; a pair at rate 0 shares the GPUs' ports of RATE instead."""
    paths = tuple(tuple(LocalPath(rate or RATE, private=rate > 0) for rate in row) for row in rates)
    switch = NvSwitch(NvlinkSettings(max(map(max, rates)), LATENCY, paths))
    gpus = [Gpu(rank) for rank in range(10, 10 + len(rates))]
    for gpu in gpus:
        gpu.memory = memoryview(bytearray(GB // 100))
        switch.attach(gpu)
    return switch, gpus


def test_private_wires_do_not_wait_for_each_other():
    """Ranks are places by their order; one message to each of two peers, at their own rates."""
    switch, gpus = mesh([[0, RATE, 2 * RATE], [RATE, 0, 0], [2 * RATE, 0, 0]])
    size = GB // 100
    switch.send(message(10, 11, size), 0.0)
    switch.send(message(10, 12, size, op_id=1), 0.0)
    switch.send(message(10, 12, size, tag=1, op_id=2), 0.0)
    run(switch)
    assert gpus[1].received == {(10, 0): pytest.approx(LATENCY + 0.01)}
    assert gpus[2].received == {
        (10, 0): pytest.approx(LATENCY + 0.005),
        (10, 1): pytest.approx(LATENCY + 0.01),
    }


def test_paths_that_are_shared_take_turns_beside_the_private_ones():
    switch, gpus = mesh([[0, 0, 0, RATE], [0, 0, 0, 0], [0, 0, 0, 0], [RATE, 0, 0, 0]])
    size = GB // 100
    for peer in (11, 12, 13):
        switch.send(message(10, peer, size, op_id=peer), 0.0)
    run(switch)
    arrivals = [gpu.received[10, 0] for gpu in gpus[1:]]
    assert arrivals == [pytest.approx(LATENCY + t) for t in (0.01, 0.02, 0.01)]
