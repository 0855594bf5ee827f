"""Runs of small scenarios whose physics is checked, repeated slower where the machine was at fault.

A tolerance is never loosened. A run that the machine could not keep up with is repeated at twice
the dilation, which changes nothing but the time that software has; a run that is faithful and
still wrong fails at once.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.fidelity import Verdict, worst
from testbed.options import ExitStatus
from testbed.results import RunResult, VariantResult, read_result

ATTEMPTS = 3
"""Each at twice the dilation of the one before."""

Check = Callable[[RunResult], None]


class ToleranceMissed(AssertionError):  # noqa: N818
    """A figure that depends on timing is off; worth another attempt if the run was degraded."""


def assert_close(actual: float, expected: float, *, tolerance: float, what: str) -> None:
    """``actual`` is within ``tolerance`` of ``expected``, both relative to the latter."""
    error = abs(actual - expected) / abs(expected)
    if not error <= tolerance:
        raise ToleranceMissed(
            f"{what}: {actual:.6g}, expected {expected:.6g}: off by {error:.2%} of {tolerance:.0%}"
        )


def assert_between(actual: float, low: float, high: float, *, what: str) -> None:
    """``low`` <= ``actual`` <= ``high``, for a figure that depends on timing."""
    if not low <= actual <= high:
        raise ToleranceMissed(f"{what}: {actual:.6g}, expected {low:.6g} to {high:.6g}")


def only_variant(result: RunResult) -> VariantResult:
    """The variant of a scenario that names none."""
    (variant,) = result.variants
    return variant


class ScenarioRunner:
    """Runs scenarios given as mappings; results go below ``directory``.

    With ``keep_fabric`` variants that differ in their workload only share a fabric.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._runs = 0

    def __call__(
        self,
        scenario: Mapping[str, Any],
        *,
        dilation: float,
        check: Check,
        keep_fabric: bool = False,
    ) -> RunResult:
        """Run a scenario until ``check`` accepts its result; see the module's text on attempts."""
        (result,) = self._attempt(scenario, [dilation], check, keep_fabric=keep_fabric)
        return result

    def at_two_dilations(
        self,
        scenario: Mapping[str, Any],
        *,
        dilation: float,
        check: Callable[[RunResult, RunResult], None],
    ) -> None:
        """Run a scenario at a dilation and at twice as much until ``check`` accepts both results.

        Another attempt repeats both, so that what was degraded is not what the other is held to.
        """
        self._attempt(scenario, [dilation, 2 * dilation], check)

    def _attempt(
        self,
        scenario: Mapping[str, Any],
        dilations: Sequence[float],
        check: Callable[..., None],
        *,
        keep_fabric: bool = False,
    ) -> list[RunResult]:
        for attempt in range(ATTEMPTS):
            last = attempt == ATTEMPTS - 1
            results = [
                self.run({**scenario, "dilation": k * 2**attempt}, keep_fabric=keep_fabric)
                for k in dilations
            ]
            verdict = worst(result.verdict for result in results)
            if verdict is Verdict.INVALID:
                reasons = "; ".join(
                    reason
                    for result in results
                    for variant in result.variants
                    for reason in variant.fidelity.reasons
                )
                if last:
                    pytest.fail(f"invalid: {reasons}")
                warnings.warn(f"repeated: invalid: {reasons}", stacklevel=3)
                continue
            try:
                check(*results)
            except ToleranceMissed as miss:
                if last or verdict is Verdict.FAITHFUL:
                    raise
                warnings.warn(f"repeated: {miss}", stacklevel=3)
                continue
            return results
        raise AssertionError("unreachable: the last attempt returns or fails")

    def run(self, scenario: Mapping[str, Any], *, keep_fabric: bool = False) -> RunResult:
        """Run once. Fails the test if there is no result, whatever its verdict."""
        self._runs += 1
        output = self._directory / str(self._runs)
        output.mkdir()
        path = output / "scenario.yaml"
        path.write_text(yaml.safe_dump(dict(scenario)), encoding="utf-8")
        command = [sys.executable, "-m", "testbed.cli", "run", str(path), "--quiet"]
        if keep_fabric:
            command.append("--keep-fabric")
        done = subprocess.run(
            [*command, "--output", str(output / "runs")],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode not in (ExitStatus.OK, ExitStatus.INVALID):
            pytest.fail(f"status {done.returncode}: {done.stdout}{done.stderr}")
        return read_result(self.latest)

    @property
    def latest(self) -> Path:
        """Directory of the latest run: captures, CSV files."""
        return self._directory / str(self._runs) / "runs" / "latest"
