"""What commands have in common: how they end, and what they need to run something.

That is root, enough memory, a directory for the results and namespaces.

Errors are one line on standard error, and a status (testbed.options.ExitStatus).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.options import (
    ExitStatus,
    OutputError,
    create_run_directory,
    give_to_caller_of_sudo,
    point_latest_at,
)

if TYPE_CHECKING:
    from rich.console import Console

    from testbed.results import RunResult
    from testbed.schema import Scenario

SIGNALLED = 128
"""Added to the number of the signal that ended a run, as shells do."""

MEMORY_SHARE = 0.75
"""Of the machine's memory, what payload may take; the rest is for programs and packets."""

BROKEN_OFF = 100
"""Status of a run's inner process that has said in one line why there is no result."""

INTERRUPTED = SIGNALLED + signal.SIGINT


class CommandError(Exception):
    """The command ends here, with one line and a status."""

    def __init__(self, message: str, status: ExitStatus) -> None:
        super().__init__(message)
        self.status = status


@contextmanager
def usage_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Errors of these kinds are the user's: their text, and the status for wrong usage."""
    try:
        yield
    except kinds as error:
        raise CommandError(str(error), ExitStatus.USAGE) from error


def silence_stdout() -> None:
    """Whoever read our output has left; give the interpreter nothing to flush at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(message: str, status: int) -> int:
    """Say in one line what is wrong; returns the status."""
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(message.split()))
    with contextlib.suppress(BrokenPipeError):  # nobody listens; the status says it
        print(f"rocelab: {text}", file=sys.stderr)
    return int(status)


def create_console(*, stderr: bool = False) -> Console:
    """Standard output, or standard error, as rich writes to it."""
    from rich.console import Console

    return Console(highlight=False, stderr=stderr)


def require_machine() -> None:
    """Raise CommandError if a run cannot even begin on this machine."""
    from testbed.doctor import SYSTEM_PATH, critical_problems

    if os.geteuid() != 0:
        program = Path(sys.argv[0]).resolve()
        module = program == Path(__file__).with_name("cli.py").resolve()  # python -m testbed.cli
        start = [sys.executable, "-m", "testbed.cli"] if module else [str(program)]
        command = shlex.join(["sudo", *start, *sys.argv[1:]])
        raise CommandError(f"needs root; run: {command}", ExitStatus.MACHINE)
    os.environ["PATH"] = SYSTEM_PATH
    problems = critical_problems()
    if problems:
        more = f" (and {len(problems) - 1} more; see: rocelab doctor)" if problems[1:] else ""
        raise CommandError(problems[0] + more, ExitStatus.MACHINE)


def require_memory(scenario: Scenario, variants: tuple[str, ...]) -> None:
    """Raise CommandError for a fabric that has more interfaces than the switches' programs count,
    or if the registered memory of all ranks does not fit into this machine."""
    from testbed.asic.mmu import MAX_PORTS
    from testbed.scenario import build_topology, plan_traffic, resolve_variants

    present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name, variant in resolve_variants(scenario):
        if name not in variants:
            continue
        topology = build_topology(variant)
        if len(topology.interfaces) > MAX_PORTS:
            raise CommandError(
                f"topology: the fabric of {name} has {len(topology.interfaces)} interfaces; "
                f"allowed: at most {MAX_PORTS}; `rocelab plan --gpus` takes larger ones",
                ExitStatus.USAGE,
            )
        plan = plan_traffic(variant, topology)
        needed = sum(memory.total for memory in plan.memory)
        if needed > present * MEMORY_SHARE:
            raise CommandError(
                f"the ranks of {name} need {needed / 2**30:.1f} GiB of memory for their payload; "
                f"this machine has {present / 2**30:.1f} GiB in all: send smaller messages",
                ExitStatus.MACHINE,
            )


def new_run_directory(output: Path, name: str) -> Path:
    """A directory for a run that starts now. Raises CommandError."""
    with usage_errors(OutputError):
        return create_run_directory(output, name, datetime.now())


def isolated(function: Callable[[], int], directory: Path) -> int:
    """Run a function in namespaces of its own; returns its status. Raises CommandError.

    The directory goes to who called sudo, or goes away if nothing was written.
    """
    from testbed.isolation import IsolationError, run_isolated

    try:
        return run_isolated(function)
    except IsolationError as error:
        message = f"this machine gives a run no namespaces of its own: {error}"
        raise CommandError(message, ExitStatus.MACHINE) from error
    finally:
        if any(directory.iterdir()):
            give_to_caller_of_sudo(directory)
        else:
            directory.rmdir()


def tell_end(status: int, directory: Path) -> int:
    """Say what ended a run before its time, if that was not said; returns the status."""
    if status == BROKEN_OFF:
        return ExitStatus.INVALID
    number = status - SIGNALLED
    logs = f"; logs are in {directory}" if directory.exists() else ""
    name = signal.Signals(number).name
    if number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        return complain(f"interrupted by {name}{logs}", status)
    return complain(f"the run was killed by {name}{logs}", ExitStatus.INVALID)


def finish(
    status: int, directory: Path, print_result: Callable[[RunResult], None], *, as_json: bool
) -> int:
    """End a run: print its result, as JSON or by ``print_result``, if it has one; the status."""
    if status >= BROKEN_OFF:
        return tell_end(status, directory)
    from testbed import summary
    from testbed.results import RESULT_FILE, read_result

    try:
        if (directory / RESULT_FILE).exists():  # else what prevented a result has been said
            point_latest_at(directory)
            result = read_result(directory)
            if as_json:
                print(summary.as_json(result, directory, status))
            else:
                print_result(result)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough; the run is as good as before
        silence_stdout()
    return status


@contextmanager
def errors_logged(directory: Path) -> Iterator[None]:
    """Turn an unforeseen error into one line and a log beside the results; status 3."""
    try:
        yield
    except Exception as error:
        log = directory / "error.log"
        details = f"details: {log}"
        try:
            log.write_text(traceback.format_exc(), encoding="utf-8")
        except OSError as unwritable:  # such as a full disk
            details = f"{log}: {unwritable.strerror}"
        complain(f"{type(error).__name__}: {error} ({details})", ExitStatus.INVALID)
        raise SystemExit(BROKEN_OFF) from error
