"""The program file: what is written is what is read, byte for byte stable, and faults are named."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from controllers.program import ProgramError, load_program, write_program
from controllers.schemes import create_scheme, scheme_names
from testbed.topology import Topology

Build = Callable[..., Topology]


@pytest.fixture
def topology(leaf_spine: Build) -> Topology:
    return leaf_spine(leaves=2, spines=2, servers_per_leaf=2)


@pytest.mark.parametrize("scheme", scheme_names())
def test_round_trip(tmp_path: Path, topology: Topology, scheme: str) -> None:
    entries = create_scheme(scheme, seed=9).entries(topology)
    path = tmp_path / "program.json"
    write_program(path, topology, entries)
    program = load_program(path)
    assert program.topology == "leaf-spine"
    assert [s.datapath_id for s in program.switches] == [s.datapath_id for s in topology.switches]
    assert {s.name: list(s.entries) for s in program.switches} == entries


def test_equal_input_gives_equal_bytes(tmp_path: Path, topology: Topology) -> None:
    texts = []
    for name in ("first", "second"):
        path = tmp_path / name
        write_program(path, topology, create_scheme("ecmp", seed=9).entries(topology))
        texts.append(path.read_bytes())
    assert texts[0] == texts[1]


def test_a_switch_without_entries_is_an_error(tmp_path: Path, topology: Topology) -> None:
    entries = create_scheme("ecmp").entries(topology)
    del entries["spine2"]
    with pytest.raises(KeyError, match="spine2"):
        write_program(tmp_path / "program.json", topology, entries)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 99}, "version 99"),
        ({"switches": [{"name": "leaf1", "entries": []}]}, "datapath_id"),
        ({"switches": 3}, "not iterable"),
    ],
)
def test_faulty_programs_are_named(
    tmp_path: Path, topology: Topology, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "program.json"
    write_program(path, topology, create_scheme("ecmp").entries(topology))
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ProgramError, match=message) as caught:
        load_program(path)
    assert str(path) in str(caught.value)


def test_an_unknown_action_is_named(tmp_path: Path, topology: Topology) -> None:
    path = tmp_path / "program.json"
    write_program(path, topology, create_scheme("ecmp").entries(topology))
    path.write_text(path.read_text().replace('"action":"Output"', '"action":"Teleport"'))
    with pytest.raises(ProgramError, match="Teleport"):
        load_program(path)


@pytest.mark.parametrize("text", [None, "", "{", "[]"], ids=["missing", "empty", "cut", "list"])
def test_unreadable_files_are_program_errors(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "program.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ProgramError, match=r"program\.json"):
        load_program(path)


def test_the_controllers_process_needs_only_its_openflow_library() -> None:
    """Ryu's environment has neither pydantic nor numpy."""
    script = (
        "import sys, controllers.launch\n"
        "print(sorted({'pydantic', 'numpy', 'networkx', 'scapy'} & set(sys.modules)))\n"
        "print([name for name in sys.modules if name.startswith('testbed.')])"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n['testbed.syscalls']\n"
