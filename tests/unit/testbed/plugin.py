"""A file of somebody else's, imported as a user's own program would import it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest


def import_file(path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a module and import it; it is forgotten when the test ends."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
