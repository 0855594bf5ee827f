"""Variants that the machine did not keep up with: how often they are measured, and how slowly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from synthetic import run_result

from testbed import runner
from testbed.fidelity import Fidelity, Verdict
from testbed.options import RunOptions
from testbed.progress import ProgressReporter
from testbed.scenario import load_scenario

FAITHFUL, DEGRADED, INVALID = Verdict.FAITHFUL, Verdict.DEGRADED, Verdict.INVALID
ENOUGH = 2500.0
"""The dilation that the machine is said to need, of 1000."""


class Fabrics:
    """Stands for a fabric: gives scripted verdicts, and remembers its dilations."""

    def __init__(self, verdicts: list[Verdict], enough: float | None) -> None:
        self.dilation = 1000.0
        self.used: list[float] = []
        self._verdicts = iter(verdicts)
        self._enough = enough

    def measure(self, variant: Any, directory: Path) -> Fidelity:
        self.used.append(self.dilation)
        verdict = next(self._verdicts)
        reasons = [] if verdict is FAITHFUL else ["slow: raise the dilation"]
        return Fidelity(
            verdict=verdict,
            reasons=reasons,
            rules=[],
            dilation_enough=None if verdict is FAITHFUL else self._enough,
        )


class Silent(ProgressReporter):
    def note(self, text: str) -> None:
        pass


@pytest.fixture
def attempts(monkeypatch, tmp_path):
    """Measure one variant; returns the dilations used, the verdict, and the dilation left."""

    def collected(name, overrides, variant, fidelity, *, traced_flow):
        template = run_result().variants[0]
        return template.model_copy(update={"name": name, "fidelity": fidelity})

    monkeypatch.setattr(runner, "collect", collected)
    monkeypatch.setattr(runner, "most_retransmitting_flow", lambda m: 0)
    monkeypatch.setattr(runner, "merge_iterations", lambda results: results[-1])
    monkeypatch.setattr(runner, "queue_samples", lambda m: m)
    monkeypatch.setattr(runner, "rank_intervals", lambda m: m)
    monkeypatch.setattr(runner, "write_chrome_trace", lambda *arguments: None)
    monkeypatch.setattr(Fidelity, "plan", property(lambda self: self), raising=False)
    monkeypatch.setattr(Fidelity, "servers", (), raising=False)
    monkeypatch.setattr(Fidelity, "wall_seconds", 1.0, raising=False)

    def run(
        verdicts: list[Verdict],
        *,
        keep: bool,
        dilation: str = "auto",
        enough: float | None = ENOUGH,
    ) -> tuple[list[float], Verdict, float]:
        scenario = load_scenario("incast", [f"dilation={dilation}"])
        fabrics: Any = Fabrics(verdicts, enough)
        options = RunOptions(directory=tmp_path, variants=("x",), iterations=1, keep_fabric=keep)
        variants = runner._Variants(scenario, options, Silent(), fabrics)
        result, kept = variants.run("x", scenario, tmp_path)
        assert kept is result.fidelity  # what is written beside it is of the same attempt
        assert result.attempts == len(fabrics.used)
        return fabrics.used, result.fidelity.verdict, fabrics.dilation

    return run


@pytest.mark.parametrize("keep", [False, True])
def test_what_is_faithful_is_measured_once(attempts, keep):
    assert attempts([FAITHFUL], keep=keep) == ([1000], FAITHFUL, 1000)


def test_what_is_invalid_is_slowed_down(attempts):
    """On a fabric of all variants the next one begins as usual, for it may be much longer."""
    assert attempts([INVALID, FAITHFUL], keep=False) == ([1000, 2500], FAITHFUL, 2500)
    assert attempts([INVALID, FAITHFUL], keep=True) == ([1000, 2500], FAITHFUL, 1000)
    assert attempts([INVALID] * 3, keep=True)[:2] == ([1000, 2500, 3750], INVALID)


def test_a_degraded_size_of_a_sweep_is_measured_again_and_then_slowed_down(attempts):
    assert attempts([DEGRADED, FAITHFUL], keep=True) == ([1000, 1000], FAITHFUL, 1000)
    verdicts = [DEGRADED, DEGRADED, FAITHFUL]
    assert attempts(verdicts, keep=True) == ([1000, 1000, 2000], FAITHFUL, 1000)
    assert attempts([DEGRADED], keep=False) == ([1000], DEGRADED, 1000)


def test_a_long_one_was_not_disturbed_but_too_fast(attempts, monkeypatch):
    monkeypatch.setattr(Fidelity, "wall_seconds", 60.0, raising=False)
    assert attempts([DEGRADED, FAITHFUL], keep=True) == ([1000, 2000], FAITHFUL, 1000)


def test_the_best_attempt_counts(attempts):
    assert attempts([DEGRADED, INVALID, INVALID], keep=True)[1] is DEGRADED
    assert attempts([INVALID, DEGRADED, INVALID], keep=True)[1] is DEGRADED


def test_a_given_dilation_is_kept_and_what_it_cannot_help_is_not_repeated(attempts):
    assert attempts([INVALID], keep=True, dilation="1000") == ([1000], INVALID, 1000)
    assert attempts([INVALID], keep=True, enough=None) == ([1000], INVALID, 1000)
