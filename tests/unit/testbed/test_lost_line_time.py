"""How much of its line rate a NIC did not reach, as the verdict sees it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from testbed.collect import _lost_line_time

FRAME = 1e-7


def measured(*ports: tuple[int, float]) -> Any:
    """Ports that sent so many frames, each of them so late."""
    made = [
        SimpleNamespace(busy_time=frames * FRAME, send_lateness=[late] * frames)
        for frames, late in ports
    ]
    return SimpleNamespace(reports=[SimpleNamespace(ports=made)])


def test_the_worst_nic_counts() -> None:
    assert _lost_line_time(measured((1000, 0.0), (1000, 0.25 * FRAME)), 0.0) == pytest.approx(0.2)
    assert _lost_line_time(measured((0, 0.0)), 0.0) == 0


def test_a_single_packet_of_few_does_not_decide() -> None:
    """Two frames' time is allowed: most of a run of five packets, nothing of a long one."""
    assert _lost_line_time(measured((5, 0.4 * FRAME)), 2 * FRAME) == 0
    assert _lost_line_time(measured((1000, 0.25 * FRAME)), 2 * FRAME) == pytest.approx(
        0.2, abs=0.01
    )
