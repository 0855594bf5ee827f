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
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.exceptions import TyperException

from testbed.arguments import (
    DilationOption,
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
)
from testbed.options import ExitStatus, RunOptions

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
    json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> int:
    """Run a scenario (needs root) and report.

    Status: 0 expectations met, 1 one failed, 2 bad scenario or usage, 3 result invalid, 4 this
    machine lacks something.
    """
    from testbed.progress import create_progress

    loaded = _load(scenario, set_, dilation, pcap)
    variants = _choose_variants(loaded, variant)
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


@app.command()
def plan(
    scenario: Annotated[
        str | None,
        typer.Argument(metavar="[SCENARIO]", help="A scenario file, or the name of one."),
    ] = None,
    set_: SetOption = None,
    dilation: DilationOption = None,
    gpus: Annotated[
        int | None,
        typer.Option("--gpus", metavar="N", help="Plan a full-size fabric, without a scenario."),
    ] = None,
    topology: Annotated[
        str | None, typer.Option("--topology", metavar="NAME", help="Which, e.g. hpn7-pod.")
    ] = None,
    routing: Annotated[
        str | None, typer.Option("--routing", metavar="NAME,…", help="Schemes, e.g. ecmp,te.")
    ] = None,
    flows: Annotated[
        str | None, typer.Option("--flows", metavar="NAME", help="Pattern: permutation, ring, …")
    ] = None,
    qps: Annotated[
        int | None, typer.Option("--qps", metavar="N", help="Queue pairs per connection.")
    ] = None,
    source_ports: Annotated[
        str | None, typer.Option("--source-ports", metavar="POLICY", help="per-pair or per-qp.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", metavar="N", help="Repeat with so many seeds.")
    ] = None,
    failed_links: Annotated[
        float | None,
        typer.Option("--failed-links", metavar="SHARE", help="Of the links, e.g. 0.01."),
    ] = None,
    variant: VariantOption = None,
    draw: Annotated[
        Path | None,
        typer.Option("--draw", metavar="FILE", help="Draw fabric and paths, .svg or .png."),
    ] = None,
    export_topology: Annotated[
        Path | None,
        typer.Option("--export-topology", metavar="FILE", help="Write it for a simulator."),
    ] = None,
    topology_format: Annotated[
        str | None,
        typer.Option("--topology-format", metavar="hpcc|simai", help="Of that file; default hpcc."),
    ] = None,
) -> int:
    """Show what a scenario would do: fabric, addresses, flows, paths, bounds. Needs no root.

    With --routing, show instead the link loads that these schemes would give, without packets:
    to the scenario's traffic or, with --gpus, on a fabric of a published size.
    """
    at_scale = {
        "topology": topology, "routing": routing, "flows": flows, "qps": qps,
        "source_ports": source_ports, "seeds": seeds, "failed_links": failed_links,
    }  # fmt: skip
    given = {name: value for name, value in at_scale.items() if value is not None}
    if gpus is not None:
        of_scenario = (scenario, set_, dilation, variant, draw, export_topology, topology_format)
        if any(value not in (None, []) for value in of_scenario):
            raise CommandError("--gpus plans without a scenario", ExitStatus.USAGE)
        return _plan_at_scale(gpus, given)
    if scenario is None:
        raise CommandError("plan needs a SCENARIO, or --gpus", ExitStatus.USAGE)
    from testbed.plan_view import print_plan

    loaded = _load(scenario, set_, dilation, None)
    chosen = _choose_variants(loaded, variant)
    _check_plan_files(given, draw, export_topology, topology_format)
    if given:
        return _plan_schemes(loaded, chosen[0], given)
    print_plan(loaded, create_console(), chosen)
    _write_plan_files(loaded, chosen, draw, export_topology, topology_format or "hpcc")
    return ExitStatus.OK


@app.command("list")
def list_() -> int:
    """List scenarios, and the strategies that they can name."""
    from testbed.listing import print_list

    print_list()
    return ExitStatus.OK


@app.command()
def report(
    run_directory: Annotated[Path, typer.Argument(metavar="RUN_DIRECTORY", help="Of a run.")],
) -> int:
    """Build report.html and its charts again from a run's result.json."""
    from testbed.report import write_report
    from testbed.results import ResultError, read_result

    try:
        path = write_report(read_result(run_directory), run_directory)
    except ResultError as error:
        raise CommandError(str(error), ExitStatus.USAGE) from error
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

    loaded = _load(scenario, set_, dilation, None)
    require_machine()
    progress = create_progress(sys.stderr, quiet=False)
    directory = new_run_directory(output, f"{loaded.name}-shell")
    options = RunOptions(directory=directory, variants=_choose_variants(loaded, None)[:1])
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


def _load(
    scenario: str, overrides: list[str] | None, dilation: str | None, capture: list[str] | None
) -> Scenario:
    from testbed.scenario import ScenarioError, load_scenario

    assignments = list(overrides or [])
    if dilation is not None:
        assignments.append(f"dilation={dilation}")
    try:
        return load_scenario(scenario, assignments, capture=capture or ())
    except ScenarioError as error:
        raise CommandError(str(error), ExitStatus.USAGE) from error


def _plan_schemes(scenario: Scenario, variant: str, options: dict[str, Any]) -> int:
    from testbed.plan_scale import print_scenario_loads

    for name in options:
        if name not in ("routing", "seeds", "failed_links") or "routing" not in options:
            needed = "--routing or --gpus" if name in ("seeds", "failed_links") else "--gpus"
            raise CommandError(f"--{name.replace('_', '-')} goes with {needed}", ExitStatus.USAGE)
    bar = create_console(stderr=True)
    try:
        print_scenario_loads(scenario, variant, console=create_console(), bar=bar, **options)
    except ValueError as error:
        raise CommandError(str(error), ExitStatus.USAGE) from error
    return ExitStatus.OK


def _plan_at_scale(gpus: int, options: dict[str, Any]) -> int:
    from testbed.plan_scale import ScaleOptions, print_scale_plan

    try:
        print_scale_plan(
            ScaleOptions(gpus=gpus, **options), create_console(), create_console(stderr=True)
        )
    except ValueError as error:
        raise CommandError(str(error), ExitStatus.USAGE) from error
    return ExitStatus.OK


def _choose_variants(scenario: Scenario, wanted: list[str] | None) -> tuple[str, ...]:
    from testbed.registries import suggestion
    from testbed.scenario import DEFAULT_VARIANT

    names = [variant.name for variant in scenario.variants] or [DEFAULT_VARIANT]
    for name in wanted or []:
        if name not in names:
            hint = suggestion(name, names)
            raise CommandError(f"--variant {name}: no such variant; {hint}", ExitStatus.USAGE)
    return tuple(name for name in names if not wanted or name in wanted)


def _check_plan_files(
    at_scale: dict[str, Any], drawing: Path | None, topology_file: Path | None, format: str | None
) -> None:
    """Refuse files that nothing would be written to, before anything is printed."""
    from testbed.plan_files import PlanFileError, check_picture

    for option, path in (("draw", drawing), ("export-topology", topology_file)):
        if at_scale and path is not None:
            other = next(iter(at_scale)).replace("_", "-")
            raise CommandError(f"--{option} goes without --{other}", ExitStatus.USAGE)
    if format is not None and topology_file is None:
        raise CommandError("--topology-format goes with --export-topology", ExitStatus.USAGE)
    if drawing is not None:
        try:
            check_picture(drawing)
        except PlanFileError as error:
            raise CommandError(str(error), ExitStatus.USAGE) from error


def _write_plan_files(
    scenario: Scenario,
    variants: Sequence[str],
    drawing: Path | None,
    topology_file: Path | None,
    topology_format: str,
) -> None:
    """What `plan` is asked to write; prints the names of the files."""
    if drawing is None and topology_file is None:
        return
    from testbed.plan_files import PlanFileError, draw_plan, write_topology
    from testbed.scenario import resolve_variants

    chosen = [(name, variant) for name, variant in resolve_variants(scenario) if name in variants]
    try:
        if drawing is not None:
            for path in draw_plan(scenario, chosen, drawing):
                print(path)
        if topology_file is not None:
            write_topology(chosen[0][1], topology_file, topology_format)
            print(topology_file)
    except PlanFileError as error:
        raise CommandError(str(error), ExitStatus.USAGE) from error


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
