"""`rocelab coll` as a user runs it: the table, its files, and what it leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.fidelity import Verdict
from testbed.options import ExitStatus
from testbed.results import read_result

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: builds a fabric")

COMMAND = (sys.executable, "-m", "testbed.cli", "coll")
SIZES = [65536, 131072, 262144]
RANKS = 4


def test_an_all_reduce_over_sizes(tmp_path: Path) -> None:
    """One fabric, three sizes: correct sums, the closed form's bytes, a table and a timeline."""
    done = subprocess.run(
        [
            *(*COMMAND, "all-reduce", "--min", "64K", "--max", "256K", "--factor", "2"),
            *("--algorithm", "ring", "--set", "topology.servers_per_leaf=2"),
            *("--dilation", "10000", "--quiet", "--output", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (ExitStatus.OK, ExitStatus.INVALID), done.stderr
    directory = tmp_path / "latest"
    result = read_result(directory)
    rows = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    assert [int(row[0]) for row in rows] == SIZES
    assert [row[8] for row in rows] == ["0"] * 3  # wrong elements
    assert max(map(len, done.stdout.splitlines()[:-1])) <= 80
    assert "# algorithm: ring" in done.stdout
    for variant, size in zip(result.variants, SIZES, strict=True):
        assert variant.ledger.closed
        assert variant.collective is not None
        assert variant.collective.model_time is not None
        sent = sum(flow.sent_bytes - flow.retransmitted_bytes for flow in variant.flows)
        assert sent == 2 * (RANKS - 1) * size
        events = json.loads((directory / variant.name / "timeline.json").read_text())
        assert sum(e["ph"] == "X" for e in events["traceEvents"]) > 0
        timeline = variant.timeline
        assert timeline is not None
        for rank in timeline.ranks:
            assert sum(rank.shares.values()) == pytest.approx(timeline.duration)
    assert [path.name for path in directory.rglob("program.json")] == ["program.json"]  # one fabric
    assert (directory / "bandwidth.png").exists()
    assert (done.returncode == ExitStatus.INVALID) == (result.verdict is Verdict.INVALID)
