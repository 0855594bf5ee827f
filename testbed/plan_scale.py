"""`rocelab plan --gpus N`: routing schemes on fabrics of the published sizes, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from controllers.planning.catalogue import CATALOGUE, create_fabric
from controllers.planning.fabric import ArrayFabric
from controllers.planning.flows import PATTERNS
from controllers.planning.schemes import create_planner
from controllers.planning.study import Question, Summary, study
from testbed.report.quantities import format_quantity, plural, three_digits

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
    "load: what a link is offered over its capacity while every GPU sends at its NIC's rate. "
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
    question = Question(
        fabric,
        options.flows,
        options.gpus,
        # A QP has one NIC port, so a NIC with two ports needs two QPs to send at its full rate.
        qps=options.qps or fabric.nic_ports,
        port_per_qp=options.source_ports == "per-qp",
        failed_links=options.failed_links,
        seeds=range(options.seeds),
    )
    summaries = _study(schemes, question, bar)
    names = _names(schemes)
    _print_head(options, question, console)
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
    for option, number, most in (
        ("gpus", options.gpus, CATALOGUE[options.topology].limit),
        ("qps", options.qps, QP_LIMIT),
        ("seeds", options.seeds, SEED_LIMIT),
    ):
        least = 2 if option == "gpus" else 1
        if number is not None and not least <= number <= most:
            on = f" with {options.topology}" if option == "gpus" else ""
            raise ValueError(f"--{option} {number}: allowed{on}: {least} to {most}")
    if not 0 <= options.failed_links < 1:
        raise ValueError(f"--failed-links {options.failed_links}: allowed: 0 to below 1")


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


def _print_head(options: ScaleOptions, question: Question, console: Console) -> None:
    fabric = question.fabric
    console.print(f"{fabric.name}: {_size(fabric)}", markup=False, soft_wrap=True)
    qps = plural(question.qps, "QP")
    ports = "a source port per QP" if question.port_per_qp else "one source port per pair"
    failed = f", {100 * question.failed_links:g} % of links failed" if options.failed_links else ""
    console.print(
        f"{options.flows} of {options.gpus:,} GPUs, {qps} each, {ports}, "
        f"{plural(len(question.seeds), 'seed')}{failed}\n",
        markup=False,
        soft_wrap=True,
    )


def _size(fabric: ArrayFabric) -> str:
    parts = [plural(fabric.nics, "GPU")]
    for tier in range(1, int(fabric.tiers.max()) + 1):
        parts.append(plural(int((fabric.tiers == tier).sum()), _TIER_NAMES[tier]))
    rates = " and ".join(format_quantity(rate, "bit/s") for rate in sorted(set(fabric.up_rates)))
    return f"{', '.join(parts)}, {plural(fabric.links, 'link')} of {rates}"


def _load_table(names: Sequence[str], summaries: Sequence[Summary], console: Console) -> Table:
    table = _table(console)
    for column in ("scheme", "links"):
        table.add_column(column, no_wrap=True)
    for column in ("mean load", "max", "p99", "max/mean", "p99", "idle"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, summary in zip(names, summaries, strict=True):
        for index, layer in enumerate(summary.layers):
            table.add_row(
                "" if index else name,
                layer.name,
                three_digits(layer.mean),
                three_digits(layer.most.mean),
                three_digits(layer.most.p99),
                three_digits(layer.ratio.mean),
                three_digits(layer.ratio.p99),
                f"{100 * layer.idle:.0f} %",
            )
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
