"""`rocelab plan --routing`: link loads that schemes give, as tables and without packets.

With ``--gpus`` on fabrics of the published sizes, else for a scenario's own fabric and traffic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from controllers.planning.catalogue import CATALOGUE, create_fabric
from controllers.planning.fabric import ArrayFabric, from_topology, live_links
from controllers.planning.flows import PATTERNS, FlowArrays, make_flows
from controllers.planning.schemes import create_planner
from controllers.planning.study import Question, Summary, study
from testbed.failures import FaultTimeline, StepKind
from testbed.report.quantities import format_quantity, plural, three_digits
from testbed.scenario import build_topology, plan_traffic, resolve_variants
from testbed.schema import Scenario
from traffic.plan import Plan

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

COLUMNS = 80

SOURCE_PORT_POLICIES = ("per-pair", "per-qp")

SEED_LIMIT = 10_000

QP_LIMIT = 256
"""QPs of a connection; 16 384 GPUs then have 4 million."""

DEFAULT_TOPOLOGY = next(iter(CATALOGUE))
DEFAULT_PATTERN = next(iter(PATTERNS))

_TIER_NAMES = {1: "leaf", 2: "spine", 3: "core"}

EXPLANATION = (
    "load: what a link is offered over its capacity while the NICs send at their rate; links that "
    "no flow may take do not count. "
    "slowdown: the busiest link's load, which a synchronous collective waits for; if even: with "
    "the same load on all links of a kind; per connection: by the busiest link among its own."
)


@dataclass(frozen=True)
class ScaleOptions:
    """What the command line asks for; None means the default, which may depend on the fabric."""

    gpus: int
    routing: str = "ecmp"
    topology: str = DEFAULT_TOPOLOGY
    flows: str = DEFAULT_PATTERN
    qps: int | None = None
    source_ports: str = "per-pair"
    seeds: int = 1
    failed_links: float = 0.0


def print_scale_plan(options: ScaleOptions, console: Console, bar: Console) -> None:
    """Plan and print; progress goes to ``bar``.

    Raises ValueError; the message names the option, its value and what is allowed.
    """
    schemes = _schemes(options.routing)
    _check(options)
    fabric = create_fabric(options.topology, options.gpus)
    # A QP has one NIC port, so a NIC with two ports needs two QPs to send at its full rate.
    qps = options.qps or fabric.nic_ports
    flows = partial(
        make_flows,
        fabric,
        options.flows,
        gpus=options.gpus,
        qps=qps,
        port_per_qp=options.source_ports == "per-qp",
    )
    question = Question(
        fabric,
        lambda seed: flows(seed=seed),
        failed_links=options.failed_links,
        seeds=range(options.seeds),
    )
    summaries = _study(schemes, question, bar)
    ports = "a source port per QP" if options.source_ports == "per-qp" else "one source port each"
    what = f"{options.flows} of {options.gpus:,} GPUs, {plural(qps, 'QP')} per pair, {ports}"
    _print_all(what, question, schemes, summaries, console)


def print_scenario_loads(
    scenario: Scenario,
    variant: str,
    *,
    routing: str,
    seeds: int = 1,
    failed_links: float = 0.0,
    console: Console,
    bar: Console,
) -> None:
    """Plan the traffic of a scenario's variant with other schemes, as if all of it went at once.

    That is when its first flow starts: links that the switches know to be down by then are. The
    first seed is the scenario's, so that its scheme chooses as it would in the run. Raises
    ValueError as ``print_scale_plan``.
    """
    schemes = _schemes(routing)
    _check_common(seeds, failed_links)
    resolved = dict(resolve_variants(scenario))[variant]
    topology = build_topology(resolved)
    plan = plan_traffic(resolved, topology)
    fabric = from_topology(topology)
    flows = flows_of_plan(fabric, plan)
    timeline = FaultTimeline(resolved.faults, topology)
    known = timeline.views_at(min(flow.start for flow in plan.flows))[StepKind.GLOBAL]
    question = Question(
        fabric,
        lambda seed: flows,
        failed_links=failed_links,
        seeds=range(resolved.seed, resolved.seed + seeds),
        live=live_links(topology, known),
    )
    summaries = _study(schemes, question, bar)
    pairs = plural(len(plan.connections), "queue pair")
    what = f"variant {variant}: {pairs} of {resolved.workload.kind}"
    if known.failed:
        what += f", {', '.join(sorted(known.failed))} down"
    _print_all(what, question, schemes, summaries, console)


def flows_of_plan(fabric: ArrayFabric, plan: Plan) -> FlowArrays:
    """A plan's connections, all at once; the busiest NIC sends or receives at its rate."""
    payload = Counter[int]()
    for flow in plan.flows:
        group = plan.group(flow.connection)
        for index in group:
            payload[index] += flow.payload_bytes // len(group)
    connections = plan.connections
    sources = np.array([c.source_rank for c in connections])
    destinations = np.array([c.destination_rank for c in connections])
    sizes = np.array([float(payload[c.index]) for c in connections])
    line_rates = fabric.nic_rates * fabric.nic_ports
    busiest = max(
        (np.bincount(ends, sizes, minlength=fabric.nics) / line_rates).max()
        for ends in (sources, destinations)
    )
    return FlowArrays(
        sources=sources,
        destinations=destinations,
        nic_ports=np.array([c.source_nic_port for c in connections]),
        source_ports=np.array([c.source_port for c in connections]),
        destination_qps=np.array([c.destination_qp_num for c in connections]),
        rates=sizes / busiest,
        connections=np.unique([c.group for c in connections], return_inverse=True)[1],
    )


def _print_all(
    what: str,
    question: Question,
    schemes: Sequence[str],
    summaries: Sequence[Summary],
    console: Console,
) -> None:
    names = _names(schemes)
    _print_head(what, question, console)
    _print(_load_table(names, summaries, console), console)
    _print(_slowdown_table(names, summaries, console), console)
    for choice, name in zip(schemes, names, strict=True):
        if choice != name:
            console.print(f"{name}: {choice}", markup=False, soft_wrap=True)
    console.print(EXPLANATION, width=min(console.width, COLUMNS), markup=False)


def _schemes(text: str) -> list[str]:
    """The schemes of a list, each once. Raises ValueError for one that cannot be planned."""
    choices = list(dict.fromkeys(choice.strip() for choice in text.split(",")))
    for choice in choices:
        try:
            create_planner(choice)
        except ValueError as error:
            raise ValueError(f"--routing {text}: {error}") from error
    return choices


def _check(options: ScaleOptions) -> None:
    for option, value, allowed in (
        ("topology", options.topology, tuple(CATALOGUE)),
        ("flows", options.flows, tuple(PATTERNS)),
        ("source-ports", options.source_ports, SOURCE_PORT_POLICIES),
    ):
        if value not in allowed:
            raise ValueError(f"--{option} {value}: allowed: {', '.join(allowed)}")
    for option, number, least, most in (
        ("gpus", options.gpus, 2, CATALOGUE[options.topology].limit),
        ("qps", options.qps, 1, QP_LIMIT),
    ):
        if number is not None and not least <= number <= most:
            on = f" with {options.topology}" if option == "gpus" else ""
            raise ValueError(f"--{option} {number}: allowed{on}: {least} to {most}")
    _check_common(options.seeds, options.failed_links)


def _check_common(seeds: int, failed_links: float) -> None:
    if not 1 <= seeds <= SEED_LIMIT:
        raise ValueError(f"--seeds {seeds}: allowed: 1 to {SEED_LIMIT}")
    if not 0 <= failed_links < 1:
        raise ValueError(f"--failed-links {failed_links}: allowed: 0 to below 1")


def _study(schemes: Sequence[str], question: Question, bar: Console) -> list[Summary]:
    from rich.progress import Progress

    with Progress(console=bar, transient=True, disable=not bar.is_terminal) as progress:
        task = progress.add_task("planning", total=1.0)
        return study(schemes, question, progress=lambda done: progress.update(task, completed=done))


def _names(schemes: Sequence[str]) -> list[str]:
    """What tables call the schemes: those with parameters get a number instead of them."""
    numbers = count(1)
    return [
        f"{choice.split(':')[0]} ({next(numbers)})" if ":" in choice else choice
        for choice in schemes
    ]


def _print_head(what: str, question: Question, console: Console) -> None:
    fabric, share = question.fabric, 100 * question.failed_links
    failed = f", {share:g} % of links failed" if share else ""
    seeds = plural(len(question.seeds), "seed")
    console.print(f"{fabric.name}: {_size(fabric)}", markup=False, soft_wrap=True)
    console.print(f"{what}, {seeds}{failed}\n", markup=False, soft_wrap=True)


def _size(fabric: ArrayFabric) -> str:
    parts = [plural(fabric.nics, "NIC")]
    for tier in range(1, int(fabric.tiers.max()) + 1):
        parts.append(plural(int((fabric.tiers == tier).sum()), _TIER_NAMES[tier]))
    rates = " and ".join(format_quantity(rate, "bit/s") for rate in sorted(set(fabric.up_rates)))
    return ", ".join(parts) + (f", {plural(fabric.links, 'link')} of {rates}" if rates else "")


def _load_table(names: Sequence[str], summaries: Sequence[Summary], console: Console) -> Table:
    table = _table(console)
    for column in ("scheme", "links"):
        table.add_column(column, no_wrap=True)
    for column in ("mean load", "max", "p99", "max/mean", "p99", "idle"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, summary in zip(names, summaries, strict=True):
        for index, layer in enumerate(summary.layers):
            figures = (
                three_digits(layer.mean),
                three_digits(layer.most.mean),
                three_digits(layer.most.p99),
                three_digits(layer.ratio.mean),
                three_digits(layer.ratio.p99),
                f"{100 * layer.idle:.0f} %",
            )
            cells = figures if layer.links else ("–",) * len(figures)
            table.add_row("" if index else name, layer.name, *cells)
    return table


def _slowdown_table(names: Sequence[str], summaries: Sequence[Summary], console: Console) -> Table:
    table = _table(console)
    table.add_column("scheme", no_wrap=True)
    for column in ("slowdown", "p99", "if even", "per connection", "QPs without path"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, summary in zip(names, summaries, strict=True):
        table.add_row(
            name,
            three_digits(summary.slowdown.mean),
            three_digits(summary.slowdown.p99),
            three_digits(summary.even_slowdown),
            three_digits(summary.connection_slowdown),
            f"{100 * summary.lost:.2g} %",
        )
    return table


def _table(console: Console) -> Table:
    from rich import box
    from rich.table import Table

    return Table(
        box=box.SIMPLE_HEAD if console.is_terminal else None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="bold",
    )


def _print(table: Table, console: Console) -> None:
    console.print(table)
    if not console.is_terminal:
        console.print()
