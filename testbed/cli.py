"""`rocelab`, the command line: run | coll | plan | list | report | doctor | shell.

Everything heavy is imported inside the command that needs it, so that `--help` answers at once.
Errors are one line on standard error; results go to standard output; see ExitStatus for what is
returned.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.exceptions import TyperException

from testbed.arguments import (
    DilationOption,
    JsonOption,
    OutputOption,
    PcapOption,
    QuietOption,
    ScenarioArgument,
    SetOption,
    VariantOption,
)
from testbed.coll.command import coll
from testbed.launching import (
    BROKEN_OFF,
    INTERRUPTED,
    CommandError,
    complain,
    create_console,
    errors_logged,
    finish,
    isolated,
    new_run_directory,
    require_machine,
    require_memory,
    silence_stdout,
    tell_end,
    usage_errors,
)
from testbed.loading import choose_variants, load
from testbed.options import ExitStatus, RunOptions
from testbed.plan_command import plan

if TYPE_CHECKING:
    from rich.console import Console

    from testbed.doctor import Check
    from testbed.progress import ProgressReporter
    from testbed.results import RunResult
    from testbed.schema import Scenario

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="RoCELab: emulates RoCEv2 fabrics for AI training, packet by packet.",
)


@app.command()
def run(
    scenario: ScenarioArgument,
    set_: SetOption = None,
    dilation: DilationOption = None,
    variant: VariantOption = None,
    pcap: PcapOption = None,
    keep_fabric: Annotated[
        bool,
        typer.Option(
            "--keep-fabric", help="Build one for all variants that differ in their workload only."
        ),
    ] = False,
    output: OutputOption = Path("runs"),
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> int:
    """Run a scenario (needs root) and report.

    Status: 0 expectations met, 1 one failed, 2 bad scenario or usage, 3 result invalid, 4 this
    machine lacks something.
    """
    from testbed.progress import create_progress

    loaded = load(scenario, set_, dilation, pcap)
    variants = choose_variants(loaded, variant)
    require_machine()
    require_memory(loaded, variants)
    progress = create_progress(sys.stderr, quiet=quiet or json)
    directory = new_run_directory(output, loaded.name)
    options = RunOptions(directory=directory, variants=variants, keep_fabric=keep_fabric)
    status = isolated(lambda: _run_inside(loaded, options, progress), directory)
    return finish(
        status, directory, lambda r: _print_outcome(r, directory, quiet=quiet), as_json=json
    )


app.command()(coll)
app.command()(plan)


@app.command("list")
def list_(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="Of a strategy or section: list its fields.")
    ] = "",
) -> int:
    """List scenarios, and the strategies that they can name; or the fields of one.

    NAME is a topology, routing scheme or workload, a section of a scenario such as nic or faults,
    or metrics, for those that expectations may use.
    """
    from testbed.field_list import UnknownNameError, print_fields
    from testbed.listing import print_list

    if not name:
        print_list()
        return ExitStatus.OK
    with usage_errors(UnknownNameError):
        print_fields(name)
    return ExitStatus.OK


@app.command()
def report(
    run_directory: Annotated[Path, typer.Argument(metavar="RUN_DIRECTORY", help="Of a run.")],
) -> int:
    """Build report.html and its charts again from a run's result.json."""
    from testbed.report import write_report
    from testbed.results import ResultError, read_result

    try:
        with usage_errors(ResultError):
            path = write_report(read_result(run_directory), run_directory)
    except OSError as error:
        raise CommandError(f"{run_directory}: {error.strerror}", ExitStatus.USAGE) from error
    print(path)
    return ExitStatus.OK


@app.command()
def doctor() -> int:
    """Show what this machine can do, what it lacks and the command that mends it."""
    from testbed.doctor import State, examine

    checks = examine()
    _print_checks(checks, create_console())
    lacking = any(check.critical and check.state is State.MISSING for check in checks)
    return ExitStatus.MACHINE if lacking else ExitStatus.OK


@app.command()
def shell(
    scenario: ScenarioArgument,
    set_: SetOption = None,
    dilation: DilationOption = None,
    output: OutputOption = Path("runs"),
) -> int:
    """Build a scenario's fabric and open Mininet's command line on it (needs root)."""
    from testbed.progress import create_progress

    loaded = load(scenario, set_, dilation, None)
    require_machine()
    progress = create_progress(sys.stderr, quiet=False)
    directory = new_run_directory(output, f"{loaded.name}-shell")
    options = RunOptions(directory=directory, variants=choose_variants(loaded, None)[:1])
    status = isolated(lambda: _shell_inside(loaded, options, progress), directory)
    return tell_end(status, directory) if status >= BROKEN_OFF else status


def main() -> None:
    """Entry point of the `rocelab` command."""
    _open_standard_streams()
    sys.exit(invoke(sys.argv[1:]))


def invoke(arguments: Sequence[str]) -> int:
    """Run a command line; returns the exit status and lets no exception out."""
    try:
        # Without standalone mode a command's return value, or an Exit's code, comes back.
        status = app(args=list(arguments) or ["--help"], prog_name="rocelab", standalone_mode=False)
        sys.stdout.flush()
        return int(status or 0)
    except CommandError as error:
        return complain(str(error), error.status)
    except TyperException as error:
        return complain(error.format_message(), ExitStatus.USAGE)
    except (typer.Abort, KeyboardInterrupt):
        return complain("interrupted", INTERRUPTED)
    except (BrokenPipeError, SystemExit):  # the latter is Typer's answer to the former
        silence_stdout()
        return ExitStatus.OK


def _open_standard_streams() -> None:
    """Where a shell closed one (`>&-`) Python has none, and the next file takes its number."""
    for number, mode in enumerate(("r", "w", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
            os.set_inheritable(number, True)
            name = ("stdin", "stdout", "stderr")[number]
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _run_inside(scenario: Scenario, options: RunOptions, progress: ProgressReporter) -> int:
    from testbed.runner import run_scenario

    with errors_logged(options.directory), progress:
        return int(run_scenario(scenario, options, progress))


def _shell_inside(scenario: Scenario, options: RunOptions, progress: ProgressReporter) -> int:
    from testbed.runner import run_shell

    with errors_logged(options.directory), progress:
        return int(run_shell(scenario, options, progress))


def _print_outcome(result: RunResult, directory: Path, *, quiet: bool) -> None:
    from testbed import summary
    from testbed.report import REPORT_FILE
    from testbed.report.terminal import print_summary

    if quiet:
        print(summary.one_line(result, directory))
    else:
        print_summary(result, directory / REPORT_FILE, create_console())


def _print_checks(checks: Sequence[Check], console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    from testbed.doctor import State

    table = Table(box=None, pad_edge=False)
    for column in ("", "what", "for", "detail"):
        table.add_column(column, overflow="fold", no_wrap=column in ("", "what"))
    styles = {State.OK: "green", State.MISSING: "bold red", State.UNKNOWN: "yellow"}
    for check in checks:
        optional = check.state is State.MISSING and not check.critical
        style = "yellow" if optional else styles[check.state]
        parts = ("can do without" if optional else "", check.detail, check.remedy)
        row = (check.name, check.purpose, ": ".join(filter(None, parts)))
        table.add_row(Text(check.state.value, style), *map(Text, row))
    console.print(table)


if __name__ == "__main__":
    main()
