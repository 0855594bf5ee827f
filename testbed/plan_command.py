"""The `plan` command: a scenario on paper, or schemes on a fabric of full size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.arguments import DilationOption, SetOption, VariantOption
from testbed.launching import CommandError, create_console, usage_errors
from testbed.loading import choose_variants, load
from testbed.options import ExitStatus, give_to_caller_of_sudo

if TYPE_CHECKING:
    from testbed.schema import Scenario

ScenarioOrNone = Annotated[
    str | None, typer.Argument(metavar="[SCENARIO]", help="A scenario file, or the name of one.")
]
GpusOption = Annotated[
    int | None,
    typer.Option("--gpus", metavar="N", help="Plan a full-size fabric, without a scenario."),
]
TopologyOption = Annotated[
    str | None, typer.Option("--topology", metavar="NAME", help="Which, e.g. hpn7-pod.")
]
RoutingOption = Annotated[
    str | None,
    typer.Option("--routing", metavar="NAME,…", help="Schemes, e.g. ecmp,te:granularity=nic."),
]
FlowsOption = Annotated[
    str | None, typer.Option("--flows", metavar="NAME", help="Pattern: permutation, ring, …")
]
QpsOption = Annotated[
    int | None, typer.Option("--qps", metavar="N", help="Queue pairs per connection.")
]
SourcePortsOption = Annotated[
    str | None, typer.Option("--source-ports", metavar="POLICY", help="per-pair or per-qp.")
]
SeedsOption = Annotated[
    int | None, typer.Option("--seeds", metavar="N", help="Repeat with so many seeds.")
]
FailedLinksOption = Annotated[
    float | None, typer.Option("--failed-links", metavar="SHARE", help="Of the links, e.g. 0.01.")
]
DrawOption = Annotated[
    Path | None, typer.Option("--draw", metavar="FILE", help="Draw fabric and paths, .svg or .png.")
]
ExportTopologyOption = Annotated[
    Path | None,
    typer.Option("--export-topology", metavar="FILE", help="Write it for a simulator."),
]
TopologyFormatOption = Annotated[
    str | None,
    typer.Option("--topology-format", metavar="hpcc|simai", help="Of that file; default hpcc."),
]


def plan(
    scenario: ScenarioOrNone = None,
    set_: SetOption = None,
    dilation: DilationOption = None,
    gpus: GpusOption = None,
    topology: TopologyOption = None,
    routing: RoutingOption = None,
    flows: FlowsOption = None,
    qps: QpsOption = None,
    source_ports: SourcePortsOption = None,
    seeds: SeedsOption = None,
    failed_links: FailedLinksOption = None,
    variant: VariantOption = None,
    draw: DrawOption = None,
    export_topology: ExportTopologyOption = None,
    topology_format: TopologyFormatOption = None,
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

    loaded = load(scenario, set_, dilation)
    chosen = choose_variants(loaded, variant)
    _check_plan_files(given, draw, export_topology, topology_format)
    if given:
        return _plan_schemes(loaded, chosen[0], given)
    print_plan(loaded, create_console(), chosen)
    _write_plan_files(loaded, chosen, draw, export_topology, topology_format or "hpcc")
    return ExitStatus.OK


def _plan_schemes(scenario: Scenario, variant: str, options: dict[str, Any]) -> int:
    from testbed.plan_scale import print_scenario_loads

    for name in options:
        if name not in ("routing", "seeds", "failed_links") or "routing" not in options:
            needed = "--routing or --gpus" if name in ("seeds", "failed_links") else "--gpus"
            raise CommandError(f"--{name.replace('_', '-')} goes with {needed}", ExitStatus.USAGE)
    bar = create_console(stderr=True)
    with usage_errors(ValueError):
        print_scenario_loads(scenario, variant, console=create_console(), bar=bar, **options)
    return ExitStatus.OK


def _plan_at_scale(gpus: int, options: dict[str, Any]) -> int:
    from testbed.plan_scale import ScaleOptions, print_scale_plan

    bar = create_console(stderr=True)
    with usage_errors(ValueError):
        print_scale_plan(ScaleOptions(gpus=gpus, **options), create_console(), bar)
    return ExitStatus.OK


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
        with usage_errors(PlanFileError):
            check_picture(drawing)


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
    with usage_errors(PlanFileError):
        if drawing is not None:
            for path in draw_plan(scenario, chosen, drawing):
                give_to_caller_of_sudo(path)
                print(path)
        if topology_file is not None:
            write_topology(chosen[0][1], topology_file, topology_format)
            give_to_caller_of_sudo(topology_file)
            print(topology_file)
