"""What Wireshark makes of a capture."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

needs_tshark = pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")


def tshark(path: Path, *arguments: str) -> list[str]:
    """Lines that tshark prints about a capture."""
    result = subprocess.run(
        ["tshark", "-r", str(path), *arguments], capture_output=True, text=True, check=True
    )
    return result.stdout.splitlines()


def matching(path: Path, display_filter: str) -> int:
    """Number of frames that a display filter accepts."""
    return len(tshark(path, "-Y", display_filter))


def fields(path: Path, *names: str, display_filter: str = "") -> list[tuple[str, ...]]:
    """Fields of every frame, or of those that a display filter accepts, as text."""
    columns = [part for name in names for part in ("-e", name)]
    lines = tshark(path, "-Y", display_filter, "-T", "fields", *columns)
    return [tuple(line.split("\t")) for line in lines]
