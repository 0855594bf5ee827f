"""The doctor's checks, on machines that lack something."""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from pathlib import Path

import pytest

from testbed import cli, doctor, kernel_probe
from testbed.doctor import State

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: tries kernel features")


@pytest.fixture
def whole_machine(monkeypatch):
    """A machine with every program, package and kernel feature."""
    monkeypatch.setattr(shutil, "which", lambda name, path=None: f"/usr/bin/{name}")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(doctor.ctypes, "CDLL", lambda name: object())
    monkeypatch.setattr(doctor.Path, "exists", lambda self: True)
    monkeypatch.setattr(kernel_probe, "probe", lambda: dict.fromkeys(kernel_probe.FEATURES))


def states() -> dict[str, State]:
    return {check.name: check.state for check in doctor.examine()}


def test_a_whole_machine_has_no_problem(whole_machine) -> None:
    assert doctor.critical_problems() == []


@pytest.mark.parametrize(
    ("program", "package"),
    [("ovs-vswitchd", "openvswitch-switch"), ("tc", "iproute2"), ("clang", "clang")],
)
def test_a_missing_program_names_its_package(
    whole_machine, monkeypatch, program: str, package: str
) -> None:
    found = shutil.which
    monkeypatch.setattr(
        shutil, "which", lambda name, path=None: None if name == program else found(name)
    )
    (problem,) = doctor.critical_problems()
    assert problem.startswith(f"{program} is missing")
    assert problem.endswith(f"sudo apt-get install {package}")


def test_a_missing_optional_program_is_no_problem(whole_machine, monkeypatch) -> None:
    found = shutil.which
    monkeypatch.setattr(
        shutil, "which", lambda name, path=None: None if name == "tshark" else found(name)
    )
    assert doctor.critical_problems() == []
    assert states()["tshark"] is State.MISSING


def test_missing_python_packages(whole_machine, monkeypatch) -> None:
    absent = {"mininet", "scapy"}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in absent else object()
    )
    mininet, scapy = doctor.critical_problems()
    assert "sudo apt-get install mininet" in mininet
    assert "sudo make setup" in scapy


def test_a_kernel_without_a_feature(whole_machine, monkeypatch) -> None:
    results = {**dict.fromkeys(kernel_probe.FEATURES), "tbf": "Operation not supported"}
    del results["cls_bpf"]
    monkeypatch.setattr(kernel_probe, "probe", lambda: results)
    found = states()
    assert found["tbf"] is State.MISSING
    assert found["cls_bpf"] is State.UNKNOWN
    assert found["htb"] is State.OK
    assert cli.invoke(["doctor"]) == 4


def test_without_clang_the_kernel_is_not_blamed(whole_machine, monkeypatch) -> None:
    found = shutil.which
    monkeypatch.setattr(
        shutil, "which", lambda name, path=None: None if name == "clang" else found(name)
    )
    results = {**dict.fromkeys(kernel_probe.FEATURES), "bpf": "no clang", "cls_bpf": "no program"}
    monkeypatch.setattr(kernel_probe, "probe", lambda: results)
    lacking = {check.name: check for check in doctor.examine() if check.state is not State.OK}
    assert lacking["clang"].remedy == "sudo apt-get install clang"
    assert lacking["bpf"].state is lacking["cls_bpf"].state is State.UNKNOWN
    assert "clang" in lacking["bpf"].detail and not lacking["bpf"].remedy


def test_a_normal_user_learns_what_was_not_tried(whole_machine, monkeypatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = states()
    assert found["root"] is State.MISSING
    assert all(found[name] is State.UNKNOWN for name in kernel_probe.FEATURES)


def test_critical_problems_are_quick() -> None:
    started = time.monotonic()
    doctor.critical_problems()
    assert time.monotonic() - started < 0.3


def test_table_fits_80_columns(capsys) -> None:
    cli.invoke(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 20
    assert max(map(len, lines)) <= 80


@needs_root
def test_probe_tries_every_feature_and_leaves_nothing() -> None:
    interfaces = Path("/sys/class/net")
    before = set(interfaces.iterdir())
    assert list(kernel_probe.probe()) == list(kernel_probe.FEATURES)
    assert set(interfaces.iterdir()) == before
