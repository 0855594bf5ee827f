"""Fixtures of the tests that build a fabric."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fabric.scenario_runner import ScenarioRunner


@pytest.fixture
def run(tmp_path: Path) -> ScenarioRunner:
    """A runner of scenarios; skips the test without root."""
    if os.geteuid() != 0:
        pytest.skip("needs root: builds a fabric")
    return ScenarioRunner(tmp_path)
