"""pytest for scenarios: YAML files are tests, and labs get a `run_scenario` fixture.

`sudo pytest scenarios/` runs every scenario; its `expect` decides. A lab writes

    def test_selective_repeat_sends_less_again(run_scenario):
        run = run_scenario("incast", {"workload.senders": 3})
        assert run["selective-repeat"].retransmitted_packets <= run["go-back-n"].naks * 64

Each run is a process of its own, so that a test's interpreter, with its threads and captured
streams, never enters the namespaces of a fabric.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from testbed.results import RunResult

NEEDS_ROOT = "needs root: builds a fabric; run it with sudo"
"""Why a scenario is skipped."""

_OK, _EXPECTATION_FAILED = 0, 1


class ScenarioFailed(Exception):  # noqa: N818
    """A scenario did not do what it says; the message is for the test's report."""


class VariantMetrics:
    """The metrics of one variant as attributes, in SI units or bytes; None if there is no value."""

    def __init__(self, name: str, metrics: Mapping[str, Any]) -> None:
        self._name = name
        self._metrics = dict(metrics)

    def __getattr__(self, metric: str) -> Any:
        if metric.startswith("_") or metric not in self._metrics:
            known = ", ".join(sorted(self.__dict__.get("_metrics", {})))
            raise AttributeError(f"no metric {metric!r}; known: {known}")
        return self._metrics[metric]

    def __repr__(self) -> str:
        return f"VariantMetrics({self._name!r}, {self._metrics!r})"


@dataclass(frozen=True)
class ScenarioRun:
    """One finished run: ``run["go-back-n"].goodput``, ``run.result`` for all the rest.

    A scenario without variants has a single one, named "default". ``status`` is 0 or, if an
    expectation failed, 1.
    """

    status: int
    directory: Path
    variants: Mapping[str, VariantMetrics]
    failed_expectations: tuple[str, ...]

    def __getitem__(self, variant: str) -> VariantMetrics:
        return self.variants[variant]

    @property
    def result(self) -> RunResult:
        """The whole result.json."""
        from testbed.results import read_result

        return read_result(self.directory)


def execute(path_or_name: str | Path, assignments: Iterable[str], output: Path) -> ScenarioRun:
    """Run a scenario in a process of its own; results go below ``output``.

    Raises ScenarioFailed when there is no valid result: bad scenario, machine too slow, ….
    """
    command = [sys.executable, "-m", "testbed.cli", "run", str(path_or_name)]
    for assignment in assignments:
        command += ["--set", assignment]
    command += ["--output", str(output), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (_OK, _EXPECTATION_FAILED) or not done.stdout.strip():
        reasons = _reasons(done.stdout) + done.stderr.strip().splitlines()
        raise ScenarioFailed("\n".join([f"status {done.returncode}", *reasons]))
    outcome = json.loads(done.stdout)
    return ScenarioRun(
        status=done.returncode,
        directory=Path(outcome["directory"]),
        variants={name: VariantMetrics(name, m) for name, m in outcome["variants"].items()},
        failed_expectations=tuple(
            f"{expectation['text']}  ({expectation['actual']})"
            for expectation in outcome["expectations"]
            if not expectation["met"]
        ),
    )


def _reasons(output: str) -> list[str]:
    """Why a run that was measured is invalid."""
    return list(json.loads(output)["reasons"]) if output.strip() else []


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect scenario files: *.yaml below a directory named `scenarios`."""
    if file_path.suffix == ".yaml" and "scenarios" in file_path.parent.parts:
        return ScenarioFile.from_parent(parent, path=file_path)
    return None


class ScenarioFile(pytest.File):
    """A scenario file, which is one test."""

    def collect(self) -> Iterable[pytest.Item]:
        """The test."""
        yield ScenarioItem.from_parent(self, name=self.path.stem)


class ScenarioItem(pytest.Item):
    """Runs a scenario and passes if all of its expectations are met."""

    def runtest(self) -> None:
        """Validate it, then run it; skipped without root once it is known to be valid."""
        from testbed.scenario import ScenarioError, load_scenario

        try:
            load_scenario(self.path)
        except ScenarioError as error:
            raise ScenarioFailed(str(error)) from error
        if os.geteuid() != 0:
            pytest.skip(NEEDS_ROOT)
        run = execute(self.path, [], _output_directory(self.config, self.path.stem))
        if run.failed_expectations:
            raise ScenarioFailed("expected:\n  " + "\n  ".join(run.failed_expectations))

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None
    ) -> str | Any:
        """A failed expectation is a message, not a traceback."""
        if isinstance(excinfo.value, ScenarioFailed):
            return f"{self.path.name}: {excinfo.value}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where the test is, for pytest's output."""
        return self.path, None, f"scenario {self.name}"


def _output_directory(config: pytest.Config, name: str) -> Path:
    # pytest hands its factory of temporary directories to fixtures only, and an item that is no
    # Python function has none; the attribute is where the tmp_path fixture takes it from.
    factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
    return factory.mktemp(name)


@pytest.fixture
def run_scenario(tmp_path: Path) -> Callable[..., ScenarioRun]:
    """A function that runs a scenario, by path or name, with overrides by dotted field.

    ``run_scenario("incast", {"nic.timeout": 10}, seed=3)``. Skips the test without root and fails
    it when there is no valid result; whether expectations of the file were met is left to the test.
    """

    def run(
        path_or_name: str | Path, overrides: Mapping[str, Any] | None = None, /, **fields: Any
    ) -> ScenarioRun:
        if os.geteuid() != 0:
            pytest.skip(NEEDS_ROOT)
        assignments = [
            f"{field}={json.dumps(value)}"
            for field, value in {**(overrides or {}), **fields}.items()
        ]
        try:
            return execute(path_or_name, assignments, tmp_path)
        except ScenarioFailed as error:
            pytest.fail(f"{path_or_name}: {error}", pytrace=False)

    return run
