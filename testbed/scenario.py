"""Scenario files: reading, overriding, validating; and their variants.

Everything that can be known to be wrong is found here, before anything is built, and reported as
one line: file, field, value, what is allowed.
"""

from __future__ import annotations

import errno
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from testbed import registries
from testbed.expect import Expectation, ExpectationError, ExpectationOutcome, Value
from testbed.failures import FaultError, FaultTimeline, slowed_from_start
from testbed.gpu_servers import ServerError, server_model, with_servers
from testbed.overrides import OverrideError, apply_overrides, parse_assignment
from testbed.placing import place_jobs
from testbed.schema import Scenario
from testbed.strict_yaml import StrictYamlError, read_mapping
from testbed.topology import Topology, TopologyError, topology_kinds
from traffic.locations import rank_locations
from traffic.placement import PlacementError
from traffic.plan import MessageStrategy, Plan, PlanError, QpScaling, SourcePortPolicy

__all__ = [
    "DEFAULT_VARIANT",
    "Scenario",
    "ScenarioError",
    "build_topology",
    "evaluate_expectations",
    "find_scenario",
    "load_scenario",
    "plan_traffic",
    "read_document",
    "resolve_variants",
    "scenario_files",
    "scenario_from_document",
]

DEFAULT_VARIANT = "default"
"""Name of the only variant of a scenario that lists none."""

PROJECT_SCENARIOS = Path(__file__).resolve().parent.parent / "scenarios"
"""The scenarios that come with the project."""

WALL_RATE_LIMIT = 8.0
"""Bit/s that a link carries at least, in wall time."""

_VALUE_LIMIT = 60
_LONG_WORD = re.compile(rf"\S{{{_VALUE_LIMIT + 1},}}")
_IN_YAML = (("a valid tuple", "a list"), ("a valid boolean", "true or false"))
"""What pydantic calls some types, and what a scenario's file has for them."""
_ENUM_MEMBER = re.compile(r"<[A-Za-z_.]+: ('[^']*')>")
_FIXED_IN_VARIANTS = frozenset({"name", "description", "variants", "expect"})


class ScenarioError(ValueError):
    """The scenario cannot be run; the message is one line: file, field, value, what is allowed."""


def scenario_files() -> dict[str, Path]:
    """Scenario name -> file, from ./scenarios and from those that come with the project."""
    found: dict[str, Path] = {}
    for folder in (PROJECT_SCENARIOS, Path("scenarios")):
        found.update({path.stem: path for path in sorted(folder.glob("*.yaml"))})
    return found


def find_scenario(path_or_name: str | Path) -> Path:
    """The file that a path, or the bare name of a scenario, means. Raises ScenarioError."""
    path = Path(path_or_name)
    try:
        path.stat()
        return path
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise ScenarioError(f"{_short(str(path))}: cannot be read: {error.strerror}") from error
    known = scenario_files()
    if str(path_or_name) in known:
        return known[str(path_or_name)]
    hint = registries.suggestion(path.stem, known)
    raise ScenarioError(f"{_short(str(path_or_name))}: there is no such file or scenario; {hint}")


def load_scenario(
    path_or_name: str | Path, overrides: Iterable[str] = (), *, capture: Iterable[str] = ()
) -> Scenario:
    """Read a scenario, apply ``FIELD=VALUE`` overrides, validate it and plan each of its variants.

    ``capture`` names interfaces to record besides those in the file. Raises ScenarioError.
    """
    path = find_scenario(path_or_name)
    document = read_document(path)
    return scenario_from_document(document, overrides, capture=capture, origin=str(path))


def read_document(path_or_name: str | Path) -> dict[str, Any]:
    """What a scenario's file holds, before it is validated. Raises ScenarioError."""
    path = find_scenario(path_or_name)
    try:
        return read_mapping(path)
    except StrictYamlError as error:
        raise ScenarioError(f"{path}: {_readable(str(error))}") from error


def scenario_from_document(
    document: Mapping[str, Any],
    overrides: Iterable[str] = (),
    *,
    capture: Iterable[str] = (),
    origin: str,
) -> Scenario:
    """As ``load_scenario``, but for a plain mapping; ``origin`` begins every error's message."""
    try:
        changed = apply_overrides(document, dict(map(parse_assignment, overrides)))
        if extra := list(capture):
            listed = changed.get("capture") or []
            changed["capture"] = [*listed, *extra] if isinstance(listed, list) else listed
        scenario = _validate(changed)
        _check(scenario)
    except (OverrideError, ScenarioError) as error:
        raise ScenarioError(f"{origin}: {_readable(str(error))}") from error
    return scenario


def resolve_variants(scenario: Scenario) -> list[tuple[str, Scenario]]:
    """Every variant as a complete scenario of its own, in the file's order.

    Raises ScenarioError; not for a scenario that ``load_scenario`` has returned.
    """
    resolved = []
    base = {k: v for k, v in scenario.document.items() if k not in ("variants", "expect")}
    for variant in scenario.variants:
        for path in variant.set:
            if path.split(".")[0] in _FIXED_IN_VARIANTS:
                raise ScenarioError(f"variants.{variant.name}: {path} cannot differ by variant")
        try:
            resolved.append((variant.name, _validate(apply_overrides(base, variant.set))))
        except (OverrideError, ScenarioError) as error:
            raise ScenarioError(f"variants.{variant.name}: {error}") from error
    return resolved or [(DEFAULT_VARIANT, _validate(base))]


def build_topology(scenario: Scenario) -> Topology:
    """The topology that the scenario asks for. Raises ScenarioError."""
    choice = scenario.topology
    try:
        topology = topology_kinds()[choice.kind]().build(choice.parameters)
        if scenario.server is not None:
            topology = with_servers(topology, server_model(scenario.server))
    except (TopologyError, ServerError) as error:
        raise ScenarioError(str(error)) from error
    for position, name in enumerate(scenario.capture):
        if name not in topology.interfaces:
            hint = registries.suggestion(name, topology.interfaces)
            raise ScenarioError(f"capture.{position}: {name!r} is no interface; {_short(hint)}")
    try:
        FaultTimeline(scenario.faults, topology)
        return slowed_from_start(topology, scenario.faults)
    except FaultError as error:
        raise ScenarioError(f"faults.{error}") from error


def plan_traffic(scenario: Scenario, topology: Topology) -> Plan:
    """The traffic that the scenario asks for, fixed by its seed. Raises ScenarioError."""
    choice = scenario.workload

    def planned(jobs: Sequence[Sequence[int]]) -> Plan:
        return registries.workload(choice.kind).plan(
            choice.parameters,
            world_size=len(topology.ranks),
            seed=scenario.seed,
            qp_scaling=_qp_scaling(scenario),
            locations=rank_locations(topology),
            jobs=jobs,
        )

    try:
        plan = planned(place_jobs(scenario.placement, topology, planned))
    except PlacementError as error:
        raise ScenarioError(f"placement: {error}") from error
    except PlanError as error:
        field = str(error).split(":")[0]
        known = field in type(choice.parameters).model_fields
        raise ScenarioError(f"workload{'.' if known else ': '}{error}") from error
    if not plan.flows:
        raise ScenarioError(
            f"workload: {choice.kind} sends nothing over the network; "
            "allowed: at least one message between GPUs that do not share NVLink"
        )
    for position, drop in enumerate(scenario.faults.drop):
        if drop.connection >= len(plan.connections):
            raise ScenarioError(
                f"faults.drop.{position}.connection: {drop.connection} is not one of the "
                f"{len(plan.connections)} connections, counted from 0"
            )
    for connection in plan.connections:
        if not topology.connected(connection.source_rank, connection.destination_rank):
            raise ScenarioError(
                f"workload: rank {connection.source_rank} sends to rank "
                f"{connection.destination_rank}, but no path of {topology.name} joins their NICs"
            )
    return plan


def _qp_scaling(scenario: Scenario) -> QpScaling:
    nic = scenario.nic
    return QpScaling(
        qps_per_connection=nic.qps_per_connection,
        message_strategy=MessageStrategy(nic.message_strategy),
        source_port_policy=SourcePortPolicy(nic.source_port_policy),
        source_ports=nic.source_ports,
        flowlet_gap=nic.flowlet_gap,
    )


def expectations(scenario: Scenario) -> list[Expectation]:
    """The scenario's expectations, parsed. Raises ScenarioError."""
    variants = [variant.name for variant in scenario.variants] or [DEFAULT_VARIANT]
    metrics = registries.metric_names()
    parsed = []
    for position, text in enumerate(scenario.expect):
        try:
            parsed.append(Expectation.parse(text, metrics=metrics, variants=variants))
        except ExpectationError as error:
            raise ScenarioError(f"expect.{position}: {error}") from error
    return parsed


def evaluate_expectations(
    scenario: Scenario, metrics: Mapping[str, Mapping[str, Value | None]]
) -> list[ExpectationOutcome]:
    """Judge a run: ``metrics`` is variant -> metric -> value in SI units or bytes."""
    return [expectation.evaluate(metrics) for expectation in expectations(scenario)]


def _check(scenario: Scenario) -> None:
    """Plan every variant and throw the plan away, to find now what could not be run later."""
    expectations(scenario)
    several = bool(scenario.variants)
    for name, variant in resolve_variants(scenario):
        try:
            topology = build_topology(variant)
            _check_wall_rates(variant, topology)
            plan_traffic(variant, topology)
        except ScenarioError as error:
            where = f"variants.{name}: " if several else ""
            raise ScenarioError(f"{where}{error}") from error


def _check_wall_rates(scenario: Scenario, topology: Topology) -> None:
    """The kernel's scheduler counts whole bytes per second."""
    slowest = min((i.rate for i in topology.interfaces.values()), default=math.inf)
    slowest = min([slowest, *(fault.rate for fault in scenario.faults.slow)])
    if scenario.dilation != "auto" and slowest / scenario.dilation < WALL_RATE_LIMIT:
        raise ScenarioError(
            f"dilation: {scenario.dilation:g} slows a link of {slowest:g} bit/s down to "
            f"{slowest / scenario.dilation:.3g} bit/s; allowed: at most "
            f"{slowest / WALL_RATE_LIMIT:g} here"
        )


def _validate(document: Mapping[str, Any]) -> Scenario:
    try:
        return Scenario.from_document(document)
    except ValidationError as error:
        raise ScenarioError(_in_one_line(error)) from error


def _in_one_line(error: ValidationError) -> str:
    details = error.errors(include_url=False)
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    return _describe(details[0]) + more


def _describe(details: ErrorDetails) -> str:
    location = [str(part) for part in details["loc"]]
    kind = details["type"]
    message = details["msg"].removeprefix("Value error, ")
    context = details.get("ctx", {})
    if "field" in context:  # raised by a section about one of its fields
        location.append(str(context["field"]))
    elif kind == "missing":
        message = "this field is required"
    elif kind == "extra_forbidden":
        message = "unknown field"
    elif kind != "value_error":  # pydantic's own messages leave out the value
        message = message.replace("Input should be", "must be")
        for python, yaml in _IN_YAML:
            message = message.replace(python, yaml)
        message = _ENUM_MEMBER.sub(r"\1", message)
        message = f"{_short(repr(details['input']))} {message[0].lower()}{message[1:]}"
    return f"{'.'.join(location) or 'scenario'}: {' '.join(message.split())}"


def _readable(text: str) -> str:
    """One line for a terminal: what a file holds may be endless, or move the cursor."""
    return _LONG_WORD.sub(lambda word: _short(word[0]), " ".join(text.split()))


def _short(text: str) -> str:
    return text if len(text) <= _VALUE_LIMIT else text[: _VALUE_LIMIT - 1] + "…"
