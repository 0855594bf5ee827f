"""Emulated time: dilation, skipping, and the board that says when to skip."""

from __future__ import annotations

import os
import time

import pytest

from testbed.activity import ActivityBoard
from testbed.clock import EmulatedClock


def test_emulated_time_is_wall_time_divided_by_the_dilation():
    clock = EmulatedClock(bytearray(4096), 1000.0)
    clock.start()
    before = time.monotonic()
    time.sleep(0.05)
    emulated, wall = clock.now(), time.monotonic() - before
    assert emulated == pytest.approx(wall / 1000, rel=0.1)
    assert clock.wall() == pytest.approx(wall, rel=0.1)
    assert clock.to_wall(0.002) == pytest.approx(2.0)


def test_skipping_jumps_exactly_to_the_target_and_never_back():
    clock = EmulatedClock(bytearray(4096), 10_000.0)
    clock.start()
    saved = clock.skip_to(0.067)
    assert 0.067 <= clock.now() < 0.0671
    assert saved == pytest.approx(670, rel=0.01)
    assert clock.skip_to(0.01) == 0.0
    assert clock.now() >= 0.067
    assert clock.skipped == pytest.approx(saved)
    assert clock.wall() < 5


def test_the_page_is_shared_with_forked_processes():
    clock = EmulatedClock.shared(100.0)
    clock.start()
    pid = os.fork()
    if pid == 0:
        clock.skip_to(5.0)
        os._exit(0)
    os.waitpid(pid, 0)
    assert clock.now() >= 5.0


def test_a_dilation_of_zero_is_refused():
    with pytest.raises(ValueError, match="above 0"):
        EmulatedClock(bytearray(4096), 0)


def test_the_board_tells_who_waits_for_what():
    board = ActivityBoard(3)
    rows = [board.row(i) for i in range(3)]
    for i, row in enumerate(rows):
        row.begin(1)
        row.wait(float("inf") if i == 0 else i * 1.5)
    assert board.all_waiting()
    assert board.next_timer() == 1.5
    rows[1].begin(2)
    assert not board.all_waiting()
    rows[1].sent(3)
    rows[2].received(2)
    rows[2].finish_rank()
    assert board.rows["sent_frames"].tolist() == [0, 3, 0]
    assert board.rows["received_frames"].tolist() == [0, 0, 2]
    assert board.rows["finished_ranks"].tolist() == [0, 0, 1]


def test_the_board_tells_servers_which_ports_have_lost_their_link():
    board = ActivityBoard(2, interfaces=5)
    flags = board.port_flags
    board.port_down[3] = 1
    assert list(flags) == [0, 0, 0, 1, 0]
    assert board.rows["sent_frames"].tolist() == [0, 0]
    board.row(1).sent(7)
    assert list(flags) == [0, 0, 0, 1, 0]
