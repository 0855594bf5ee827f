"""The `coll` command: options, the run, the table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.arguments import DilationOption, JsonOption, OutputOption, SetOption
from testbed.launching import (
    CommandError,
    errors_logged,
    finish,
    isolated,
    new_run_directory,
    require_machine,
    require_memory,
    usage_errors,
)
from testbed.loading import assignments
from testbed.options import ExitStatus, RunOptions

if TYPE_CHECKING:
    from testbed.progress import ProgressReporter
    from testbed.results import RunResult
    from testbed.schema import Scenario

_SIZES = ("--min", "--max", "--factor")


OperationArgument = Annotated[
    str, typer.Argument(metavar="OPERATION", help="all-reduce, all-to-all, broadcast, …")
]
FabricArgument = Annotated[
    str | None,
    typer.Argument(metavar="[SCENARIO]", help="Whose fabric, NICs and routing to use."),
]
MinOption = Annotated[
    str | None, typer.Option("--min", metavar="SIZE", help="First size, 8K by default.")
]
MaxOption = Annotated[
    str | None, typer.Option("--max", metavar="SIZE", help="Last size, 64M by default.")
]
FactorOption = Annotated[
    float | None, typer.Option("--factor", metavar="N", help="Between sizes, 2 by default.")
]
SizesOption = Annotated[
    str | None, typer.Option("--sizes", metavar="SIZE,…", help="These, instead of a range.")
]
AlgorithmOption = Annotated[
    str, typer.Option("--algorithm", metavar="auto|NAME,…", help="A table for each.")
]
ChannelsOption = Annotated[
    int, typer.Option("--channels", metavar="N", help="Parts worked on side by side.")
]
DtypeOption = Annotated[
    str, typer.Option("--dtype", metavar="TYPE", help="float32, float16 or int32.")
]
ReductionOption = Annotated[str, typer.Option("--op", metavar="sum|max", help="Reduction.")]
TopologyOption = Annotated[
    str | None,
    typer.Option("--topology", metavar="KIND", help="As it is by default; leaf-spine."),
]
IterationsOption = Annotated[
    int, typer.Option("--iterations", metavar="N", min=1, help="Time is their mean.")
]
NoProgressOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


def coll(
    operation: OperationArgument,
    scenario: FabricArgument = None,
    least: MinOption = None,
    most: MaxOption = None,
    factor: FactorOption = None,
    sizes: SizesOption = None,
    algorithm: AlgorithmOption = "auto",
    channels: ChannelsOption = 1,
    dtype: DtypeOption = "float32",
    reduction: ReductionOption = "sum",
    topology: TopologyOption = None,
    set_: SetOption = None,
    iterations: IterationsOption = 1,
    dilation: DilationOption = None,
    output: OutputOption = Path("runs"),
    quiet: NoProgressOption = False,
    json: JsonOption = False,
) -> int:
    """Measure a collective over a range of sizes and print nccl-tests' table (needs root).

    In sizes K, M and G are 1024, 1024² and 1024³ bytes, as in nccl-tests. Status: as for run.
    """
    from testbed.coll.sweep import Sweep
    from testbed.scenario import ScenarioError

    if scenario is not None and topology is not None:
        raise CommandError("--topology goes without a SCENARIO", ExitStatus.USAGE)
    sweep = Sweep(
        operation=operation.replace("_", "-"),
        sizes=_sizes(least, most, factor, sizes),
        algorithms=tuple(algorithm.split(",")),
        channels=channels,
        dtype=dtype,
        reduction=reduction,
        base=scenario,
        topology=topology or "leaf-spine",
        settings=assignments(set_, dilation),
    )
    with usage_errors(ScenarioError):
        loaded = sweep.scenario()
    return _measure(loaded, output, iterations, quiet=quiet, as_json=json)


def _measure(
    scenario: Scenario, output: Path, iterations: int, *, quiet: bool, as_json: bool
) -> int:
    from testbed.progress import create_progress

    variants = tuple(variant.name for variant in scenario.variants)
    require_machine()
    require_memory(scenario, variants)
    progress = create_progress(sys.stderr, quiet=quiet or as_json, transient=True)
    directory = new_run_directory(output, scenario.name)
    options = RunOptions(
        directory=directory, variants=variants, iterations=iterations, keep_fabric=True
    )
    status = isolated(
        lambda: _run_inside(scenario, options, progress, table=not as_json), directory
    )
    return finish(status, directory, lambda r: _print_end(r, directory), as_json=as_json)


def _sizes(
    least: str | None, most: str | None, factor: float | None, sizes: str | None
) -> tuple[int, ...]:
    from testbed.coll.sizes import distinct, size_range

    with usage_errors(ValueError):
        if sizes is not None:
            for name, value in zip(_SIZES, (least, most, factor), strict=True):
                if value is not None:
                    raise ValueError(f"{name} goes without --sizes")
            return distinct([_size("--sizes", text) for text in sizes.split(",")])
        return size_range(
            _size("--min", least or "8K"),
            _size("--max", most or "64M"),
            2.0 if factor is None else factor,
        )


def _size(option: str, text: str) -> int:
    from testbed.coll.sizes import parse_nccl_size

    try:
        return parse_nccl_size(text)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from error


def _run_inside(
    scenario: Scenario, options: RunOptions, progress: ProgressReporter, *, table: bool
) -> int:
    from testbed.coll.table import TablePrinter
    from testbed.runner import run_scenario

    channels = scenario.workload.parameters.model_dump()["channels"]
    printer = TablePrinter(progress.result, channels=channels, iterations=options.iterations)
    with errors_logged(options.directory), progress:
        if not table:
            return int(run_scenario(scenario, options, progress))
        return int(run_scenario(scenario, options, progress, printer.add))


def _print_end(result: RunResult, directory: Path) -> None:
    from testbed.coll.table import footer
    from testbed.report import REPORT_FILE

    for line in footer(result):
        print(line)
    print(f"# report               : {directory / REPORT_FILE}")
