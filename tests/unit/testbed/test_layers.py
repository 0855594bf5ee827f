"""Who may import whom: testbed uses controllers and traffic, which know its plain modules only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

PLAIN = {"activity", "clock", "plain_file", "priority", "syscalls", "topology", "units"}
"""Of testbed: what knows nothing of a run."""


def imported(path: Path) -> Iterator[str]:
    """The project's modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, path
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.split(".")[0] in ("testbed", "controllers", "traffic", "tests"):
                yield name


def files(*parts: str) -> list[Path]:
    place = ROOT.joinpath(*parts)
    return sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]


def wrong(paths: list[Path], allowed: set[str]) -> list[tuple[str, str]]:
    """Imports of anything but ``allowed``: packages, or modules of testbed as testbed.NAME."""
    assert paths
    found = []
    for path in paths:
        for name in imported(path):
            package, module, *_ = [*name.split("."), ""]
            if package not in allowed and f"{package}.{module}" not in allowed:
                found.append((str(path.relative_to(ROOT)), name))
    return found


@pytest.mark.parametrize("package", ["controllers", "traffic"])
def test_what_stands_below_the_run_does_not_know_it(package: str) -> None:
    allowed = {package, *(f"testbed.{name}" for name in PLAIN)}
    assert wrong(files(package), allowed) == []


@pytest.mark.parametrize("module", sorted(PLAIN - {"topology"}))
def test_plain_modules_import_nothing_of_the_project(module: str) -> None:
    assert wrong(files("testbed", module), set()) == []


def test_topologies_import_plain_modules_only() -> None:
    plain = {f"testbed.{name}" for name in PLAIN}
    assert wrong(files("testbed", "topology"), plain) == []


def test_the_product_does_not_import_its_tests() -> None:
    assert wrong(files("testbed"), {"testbed", "controllers", "traffic"}) == []
