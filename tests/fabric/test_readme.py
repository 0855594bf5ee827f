"""README.md as a user reads it: its commands are run, its scenario is loaded, its lab is a test.

A comment before a block says otherwise: `<!-- test: skip, reason -->`, or, for a program that reads
from its terminal, `<!-- test: input TEXT -->`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from testbed.scenario import load_scenario

ROOT = Path(__file__).resolve().parents[2]
TIME_LIMIT = 300.0
"""Wall seconds for one command."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: builds fabrics")

_BLOCK = re.compile(
    r"(?:<!-- test: (?P<word>skip|input),? ?(?P<rest>[^\n]*) -->\n)?"
    r"```(?P<kind>\w+)\n(?P<body>.*?)```",
    re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    kind: str
    body: str
    skip: str
    input: str


def blocks(kind: str) -> list[Block]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return [
        Block(
            kind=match["kind"],
            body=match["body"],
            skip=match["rest"] if match["word"] == "skip" else "",
            input=match["rest"] if match["word"] == "input" else "",
        )
        for match in _BLOCK.finditer(text)
        if match["kind"] == kind
    ]


def commands() -> list[tuple[str, Block]]:
    return [
        (line.removeprefix("$ "), block)
        for block in blocks("console")
        for line in block.body.splitlines()
        if line.startswith("$ ")
    ]


def test_the_page_has_commands_and_its_first_runs_the_main_job() -> None:
    assert commands()[0][0] == "sudo make run"
    assert len([command for command, block in commands() if not block.skip]) >= 5


@pytest.mark.fabric
@needs_root
@pytest.mark.timeout(TIME_LIMIT + 30)
@pytest.mark.parametrize(("command", "block"), [pytest.param(*c, id=c[0]) for c in commands()])
def test_commands(command: str, block: Block) -> None:
    if block.skip:
        pytest.skip(block.skip)
    arguments = shlex.split(command)
    if arguments[0] == "sudo":
        arguments = arguments[1:]  # we are root already, and a container may have no sudo
    done = subprocess.run(
        arguments,
        cwd=ROOT,
        input=block.input + "\n" if block.input else "",
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.strip(), "it printed nothing"


def test_scenarios_on_the_page_are_valid(tmp_path: Path) -> None:
    found = blocks("yaml")
    assert found
    for number, block in enumerate(found):
        path = tmp_path / f"readme{number}.yaml"
        path.write_text(block.body, encoding="utf-8")
        assert load_scenario(path).expect


@pytest.mark.fabric
@needs_root
@pytest.mark.timeout(TIME_LIMIT)
@pytest.mark.parametrize("block", [pytest.param(b, id="scenario") for b in blocks("yaml")])
def test_scenarios_on_the_page_meet_their_expectations(tmp_path: Path, block: Block) -> None:
    folder = tmp_path / "scenarios"
    folder.mkdir()
    (folder / "readme.yaml").write_text(block.body, encoding="utf-8")
    _pytest(folder)


@pytest.mark.fabric
@needs_root
@pytest.mark.timeout(TIME_LIMIT)
@pytest.mark.parametrize("block", [pytest.param(b, id="lab") for b in blocks("python")])
def test_labs_on_the_page_pass(tmp_path: Path, block: Block) -> None:
    (tmp_path / "test_lab.py").write_text(block.body, encoding="utf-8")
    _pytest(tmp_path)


def _pytest(folder: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(folder), str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
