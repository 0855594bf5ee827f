"""When a scenario is repeated, and when it is not. Needs no fabric."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.fidelity import Verdict
from tests.fabric.scenario_runner import (
    ATTEMPTS,
    ScenarioRunner,
    ToleranceMissed,
    assert_between,
    assert_close,
)

pytestmark = pytest.mark.filterwarnings("ignore:repeated")


class Rehearsal(ScenarioRunner):
    """Gives verdicts in turn instead of running anything."""

    def __init__(self, *verdicts: Verdict) -> None:
        super().__init__(Path("nowhere"))
        self._verdicts = list(verdicts)
        self.dilations: list[float] = []

    def run(self, scenario: Any, **options: Any) -> Any:
        self.dilations.append(scenario["dilation"])
        return SimpleNamespace(verdict=self._verdicts.pop(0), variants=[])


def miss(result: Any) -> None:
    raise ToleranceMissed("off")


def accept(result: Any) -> None:
    """Find nothing wrong."""


def test_an_invalid_run_is_repeated_at_twice_the_dilation() -> None:
    run = Rehearsal(Verdict.INVALID, Verdict.INVALID, Verdict.DEGRADED)
    result = run({}, dilation=100, check=accept)
    assert result.verdict is Verdict.DEGRADED
    assert run.dilations == [100, 200, 400]


def test_a_missed_tolerance_is_forgiven_only_while_degraded() -> None:
    run = Rehearsal(Verdict.DEGRADED, Verdict.FAITHFUL, Verdict.FAITHFUL)
    with pytest.raises(ToleranceMissed):
        run({}, dilation=100, check=miss)
    assert run.dilations == [100, 200]


@pytest.mark.parametrize("verdict", [Verdict.DEGRADED, Verdict.INVALID])
def test_the_last_attempt_decides(verdict: Verdict) -> None:
    run = Rehearsal(*[verdict] * ATTEMPTS)
    with pytest.raises((ToleranceMissed, pytest.fail.Exception)):
        run({}, dilation=100, check=miss)
    assert len(run.dilations) == ATTEMPTS


def test_both_runs_of_a_comparison_are_repeated() -> None:
    run = Rehearsal(Verdict.DEGRADED, Verdict.FAITHFUL, Verdict.FAITHFUL, Verdict.FAITHFUL)
    misses = iter([True, False])

    def check(one: Any, two: Any) -> None:
        if next(misses):
            raise ToleranceMissed("off")

    run.at_two_dilations({}, dilation=100, check=check)
    assert run.dilations == [100, 200, 200, 400]


def test_other_failures_are_final() -> None:
    def wrong(result: Any) -> None:
        raise AssertionError("a byte is wrong")

    run = Rehearsal(Verdict.DEGRADED)
    with pytest.raises(AssertionError, match="a byte is wrong"):
        run({}, dilation=100, check=wrong)


def test_tolerances() -> None:
    assert_close(103.0, 100.0, tolerance=0.03, what="x")
    assert_between(1, 1, 2, what="x")
    with pytest.raises(ToleranceMissed, match=r"x: 96.9, expected 100: off by 3.10% of 3%"):
        assert_close(96.9, 100.0, tolerance=0.03, what="x")
    with pytest.raises(ToleranceMissed):
        assert_close(float("nan"), 100.0, tolerance=0.03, what="x")
    with pytest.raises(ToleranceMissed):
        assert_between(2.1, 1, 2, what="x")
