"""What `rocelab plan` writes into files: drawings of the fabric with its flows, topology files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from testbed.drawing import DrawingError, draw_topology, picture_format
from testbed.drawn_flows import DrawnFlow
from testbed.plan_faults import PlannedStarts, troubled_links
from testbed.results import atomic_write
from testbed.scenario import Scenario, build_topology, plan_traffic
from testbed.topology import TopologyError, TopologyFormat, export_topology


class PlanFileError(ValueError):
    """A file cannot be written; the message is one line for the command line's user."""


def check_picture(path: Path) -> str:
    """The format of a picture that will be drawn. Raises PlanFileError."""
    try:
        return picture_format(path)
    except DrawingError as error:
        raise PlanFileError(f"--draw {error}") from error


def draw_plan(
    scenario: Scenario, variants: Sequence[tuple[str, Scenario]], path: Path
) -> list[Path]:
    """Draw each of a scenario's variants; returns the files written.

    Variants that would look the same are drawn once. Where there are several drawings, each
    file's name gets its variant's. Raises PlanFileError, RoutingError.
    """
    kind = check_picture(path)
    drawings: dict[str, tuple[str, Scenario]] = {}
    for name, variant in variants:
        plan = plan_traffic(variant, build_topology(variant))
        choices = (variant.topology, variant.routing, variant.faults)
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
    starts = PlannedStarts(scenario, topology, plan)
    drawn: dict[int, DrawnFlow] = {}
    for flow in starts.plan.flows:
        group = plan.group(flow.connection)
        for number, index in enumerate(group, start=1):
            connection = starts.plan.connections[index]
            label = f"{connection.source_rank} → {connection.destination_rank}"
            if len(group) > 1:
                label += f", QP {number}"
            if index not in drawn:  # later flows of the same queue pair are not shown
                drawn[index] = DrawnFlow(label, starts.of(flow, [index]).ways)
    flows = [drawn[index] for index in sorted(drawn)]
    marks = troubled_links(starts.timeline)
    draw_topology(topology, flows, path, kind, subtitle=subtitle, marks=marks)


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
