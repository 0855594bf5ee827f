"""What `rocelab plan` writes into files: drawings of the fabric with its flows, topology files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from testbed.drawing import DrawingError, DrawnFlow, draw_topology, picture_format
from testbed.results import atomic_write
from testbed.routes import plan_routes
from testbed.scenario import Scenario, build_topology, plan_traffic
from testbed.topology import TopologyError, TopologyFormat, export_topology


class PlanFileError(ValueError):
    """A file cannot be written; the message is one line for the command line's user."""


def draw_plan(
    scenario: Scenario, variants: Sequence[tuple[str, Scenario]], path: Path
) -> list[Path]:
    """Draw each of a scenario's variants; returns the files written.

    Variants that would look the same are drawn once. Where there are several drawings, each
    file's name gets its variant's. Raises PlanFileError, RoutingError.
    """
    try:
        kind = picture_format(path)
    except DrawingError as error:
        raise PlanFileError(f"--draw {error}") from error
    drawings: dict[str, tuple[str, Scenario]] = {}
    for name, variant in variants:
        plan = plan_traffic(variant, build_topology(variant))
        choices = (variant.topology, variant.routing)
        key = plan.plan_hash() + "".join(choice.model_dump_json() for choice in choices)
        drawings.setdefault(key, (name, variant))
    written = []
    for name, variant in drawings.values():
        several = len(drawings) > 1
        target = path.with_name(f"{path.stem}-{name}{path.suffix}") if several else path
        words = [scenario.name, *([name] if several else []), variant.routing.scheme]
        with _written(target) as temporary:
            _draw(variant, temporary, kind, ", ".join(dict.fromkeys(words)))
        written.append(target)
    return written


def _draw(scenario: Scenario, path: Path, kind: str, subtitle: str) -> None:
    topology = build_topology(scenario)
    plan = plan_traffic(scenario, topology)
    routes = plan_routes(scenario, topology, plan)
    sending = {index for flow in plan.flows for index in plan.group(flow.connection)}
    flows = []
    for index in sorted(sending):
        connection = routes.plan.connections[index]
        label = f"{connection.source_rank} → {connection.destination_rank}"
        group = plan.group(connection.group)
        if len(group) > 1:
            label += f", QP {group.index(index) + 1}"
        ways = tuple(path.interfaces for path in routes.paths[index, False])
        flows.append(DrawnFlow(label, ways))
    draw_topology(topology, flows, path, kind, subtitle=subtitle)


def write_topology(scenario: Scenario, path: Path, format: str) -> None:
    """Write a scenario's topology as a simulator's file. Raises PlanFileError."""
    names = [known.value for known in TopologyFormat]
    if format not in names:
        raise PlanFileError(
            f"--topology-format {format}: no such format; allowed: {', '.join(names)}"
        )
    try:
        text = export_topology(build_topology(scenario), format)
    except TopologyError as error:
        raise PlanFileError(f"--export-topology: {error}") from error
    with _written(path) as temporary:
        temporary.write_text(text, encoding="ascii")


@contextmanager
def _written(path: Path) -> Iterator[Path]:
    """A temporary file that takes the path's name. Raises PlanFileError: what the system says."""
    try:
        target = path.resolve()
        if target.exists() and not target.is_file():
            raise PlanFileError(f"{path}: is no file")
        with atomic_write(target) as temporary:
            yield temporary
    except OSError as error:
        raise PlanFileError(f"{path}: cannot be written: {error.strerror}") from error
