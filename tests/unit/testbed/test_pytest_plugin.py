"""The pytest plugin, as pytest sees it, with a stand-in for the run itself."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from testbed.scenario import load_scenario

pytest_plugins = ["pytester"]

SCENARIO = """
name: small
topology: {kind: leaf-spine}
workload: {kind: incast}
expect: [dropped_packets == 0]
"""


# pytester forgets the modules that a run imported, and numpy cannot be loaded twice.
load_scenario("incast")


@pytest.fixture
def project(pytester, monkeypatch):
    """A project with one scenario and one YAML file that is none."""
    folder = pytester.mkdir("scenarios")
    (folder / "small.yaml").write_text(SCENARIO)
    (pytester.path / "other.yaml").write_text("services: []")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return pytester


@pytest.fixture
def outcome(monkeypatch, tmp_path):
    """Makes every run of `rocelab` end in a given way; returns the command lines."""
    commands: list[list[str]] = []

    def becomes(status: int, *, met: bool = True, stderr: str = "") -> list[list[str]]:
        document = {
            "directory": str(tmp_path),
            "variants": {"default": {"dropped_packets": 3, "goodput": None}},
            "expectations": [{"text": "dropped_packets == 0", "actual": "3", "met": met}],
        }

        def run(command, **_):
            commands.append(command)
            stdout = json.dumps(document) if status in (0, 1) else ""
            return subprocess.CompletedProcess(command, status, stdout, stderr)

        monkeypatch.setattr(subprocess, "run", run)
        return commands

    return becomes


def test_scenarios_are_collected_and_nothing_else(project) -> None:
    result = project.runpytest("--collect-only", "-q")
    result.stdout.fnmatch_lines(["scenarios/small.yaml::small"])
    result.stdout.no_fnmatch_line("*other.yaml*")


def test_a_scenario_that_meets_its_expectations_passes(project, outcome) -> None:
    commands = outcome(0)
    project.runpytest().assert_outcomes(passed=1)
    ((_, *command),) = commands
    assert command[:3] == ["-m", "testbed.cli", "run"]
    assert command[3].endswith("scenarios/small.yaml")
    assert "--json" in command


def test_a_failed_expectation_is_shown(project, outcome) -> None:
    outcome(1, met=False)
    result = project.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["small.yaml: expected:", "*dropped_packets == 0  (3)"])
    result.stdout.no_fnmatch_line("*Traceback*")


@pytest.mark.parametrize("status", [2, 3, 4])
def test_a_run_without_a_valid_result_fails(project, outcome, status: int) -> None:
    outcome(status, stderr="rocelab: the ledger is open")
    result = project.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"small.yaml: status {status}", "rocelab: the ledger is open"])


def test_a_bad_scenario_fails_without_a_run(project, outcome) -> None:
    commands = outcome(0)
    (project.path / "scenarios" / "small.yaml").write_text(SCENARIO + "sead: 3\n")
    result = project.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["small.yaml: *sead: unknown field; did you mean 'seed'*"])
    assert commands == []


def test_without_root_scenarios_are_skipped_but_checked(project, monkeypatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    result = project.runpytest("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*needs root*"])


LAB = """
import pytest

def test_lab(run_scenario):
    run = run_scenario("small", {"nic.timeout": 10, "workload.message_size": "64 KiB"}, seed=3)
    assert run.status == %d
    assert run["default"].dropped_packets == 3
    assert run["default"].goodput is None
    with pytest.raises(AttributeError, match="no metric 'drops'; known: dropped_packets, goodput"):
        run["default"].drops
    assert bool(run.failed_expectations) is %s
"""


@pytest.mark.parametrize(("status", "met"), [(0, True), (1, False)])
def test_a_lab_judges_for_itself(project, outcome, status: int, met: bool) -> None:
    commands = outcome(status, met=met)
    project.makepyfile(LAB % (status, not met))
    project.runpytest("test_a_lab_judges_for_itself.py").assert_outcomes(passed=1)
    text = " ".join(commands[0])
    assert '--set nic.timeout=10 --set workload.message_size="64 KiB" --set seed=3' in text


def test_a_lab_fails_when_there_is_no_result(project, outcome) -> None:
    outcome(3, stderr="rocelab: fidelity was lost")
    project.makepyfile(LAB % (0, False))
    result = project.runpytest("test_a_lab_fails_when_there_is_no_result.py")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*fidelity was lost*"])
