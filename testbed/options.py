"""What a run is told besides its scenario, the directory that it writes to, and what it returns."""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from pathlib import Path

LATEST = "latest"
"""Name of the link to the newest run beside the runs' directories."""


class ExitStatus(IntEnum):
    """What `rocelab` returns to the shell."""

    OK = 0
    EXPECTATION_FAILED = 1
    USAGE = 2
    INVALID = 3
    MACHINE = 4


class OutputError(OSError):
    """Nothing can be written there; the message is one line."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """``directory`` is this run's own, existing and empty. ``variants`` are the names of those to
    run, in the scenario's order.

    Each runs ``iterations`` times. With ``keep_fabric`` variants that differ in nothing but their
    workload run on one fabric, one after the other.
    """

    directory: Path
    variants: tuple[str, ...]
    iterations: int = 1
    keep_fabric: bool = False


def create_run_directory(output: Path, name: str, started: datetime) -> Path:
    """Make ``output/<time>-<name>``, with a number where it exists already. Raises OutputError."""
    stem = f"{started:%Y%m%d-%H%M%S}-{name}"
    if Path("/run") in (resolved := output.resolve(), *resolved.parents):
        raise OutputError(f"--output {output}: cannot be below /run; a run has a /run of its own")
    try:
        if not output.is_dir():
            output.mkdir(parents=True, exist_ok=True)
            give_to_caller_of_sudo(output)
        # root may write where the file system refuses it, so only an attempt tells
        with tempfile.TemporaryFile(dir=output):
            pass
        for number in range(1, 1000):
            directory = output / (stem if number == 1 else f"{stem}-{number}")
            try:
                directory.mkdir()
            except FileExistsError:
                continue
            return directory
    except OSError as error:
        raise OutputError(f"--output {output}: cannot be written to: {error.strerror}") from error
    raise OutputError(f"--output {output}: holds 999 runs named {stem}")


def give_to_caller_of_sudo(made: Path) -> None:
    """Let who called sudo own a file, or a directory and all in it, to delete it without root."""
    caller = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if os.geteuid() != 0 or not all(number.isdecimal() for number in caller):
        return
    user, group = map(int, caller)
    with contextlib.suppress(OSError):  # a convenience; some file systems have no owners
        for path in (made, *made.rglob("*")):
            os.chown(path, user, group, follow_symlinks=False)


def point_latest_at(directory: Path) -> None:
    """Make ``latest``, beside a run directory, a link to it; a file of that name is left alone."""
    link = directory.parent / LATEST
    if link.exists() and not link.is_symlink():
        return
    with contextlib.suppress(OSError):  # a convenience; some file systems have no links
        fresh = directory.parent / f".{LATEST}.{directory.name}"
        fresh.symlink_to(directory.name)
        fresh.replace(link)
