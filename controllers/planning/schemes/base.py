"""What places flows on a fabric of arrays, one class per routing scheme that can be planned.

A planner holds the scheme itself and takes from it whatever does not depend on how many flows there
are: seeds, parameters, tables. Only the choice per flow is made over arrays.
"""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import yaml
from pydantic import ValidationError

from controllers.planning.fabric import IntArray
from controllers.planning.flows import FlowArrays
from controllers.planning.placement import Hop, Placement, RoutedFabric, walk
from controllers.schemes import create_scheme, scheme_class


class SchemePlanner(abc.ABC):
    """Places flows by the scheme of the same name; subclasses say how by ``place``."""

    name: ClassVar[str]

    def __init__(self, scheme: Any) -> None:
        self.scheme = scheme

    @abc.abstractmethod
    def place(self, routed: RoutedFabric, flows: FlowArrays) -> Placement:
        """Where the flows go."""


class HopByHopPlanner(SchemePlanner):
    """A scheme in which every switch chooses by itself."""

    def place(self, routed: RoutedFabric, flows: FlowArrays) -> Placement:
        """Walk all flows, choosing at every switch that they meet."""
        self.prepare(routed, flows)
        return walk(routed, flows, lambda hop: self.choose(routed, flows, hop))

    def prepare(self, routed: RoutedFabric, flows: FlowArrays) -> None:
        """Compute what all choices need."""

    @abc.abstractmethod
    def choose(self, routed: RoutedFabric, flows: FlowArrays, hop: Hop) -> IntArray:
        """The edge that each flow of a hop takes, one of its group's."""


_registry: dict[str, type[SchemePlanner]] = {}


def register_planner(planner: type[SchemePlanner]) -> type[SchemePlanner]:
    """Class decorator: make a scheme plannable under its ``name``."""
    if planner.name in _registry:
        raise ValueError(f"planner of {planner.name!r} is registered twice")
    _registry[planner.name] = planner
    return planner


def planner_names() -> list[str]:
    """Names of all schemes that can be planned, sorted."""
    return sorted(_registry)


def create_planner(choice: str, *, seed: int = 0) -> SchemePlanner:
    """The planner of a scheme with this seed.

    ``choice`` is the scheme's name, and any of its parameters that are not to have their defaults:
    NAME:FIELD=VALUE, such as ecmp:per_switch_seed=false. Raises ValueError for an unknown name or
    a bad parameter; the message is one line.
    """
    name, *assignments = choice.split(":")
    if name not in _registry:
        raise ValueError(
            f"routing scheme {name!r} cannot be planned at this scale; "
            f"allowed: {', '.join(planner_names())}"
        )
    fields = scheme_class(name).parameters_type.model_fields
    parameters: dict[str, Any] = {}
    for assignment in assignments:
        field, equals, value = assignment.partition("=")
        if not equals:
            raise ValueError(f"routing scheme {choice}: {assignment!r} is not FIELD=VALUE")
        if field not in fields:
            allowed = ", ".join(sorted(fields)) or "none"
            raise ValueError(f"routing scheme {choice}: {field!r} is no field; allowed: {allowed}")
        try:
            parameters[field] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ValueError(f"routing scheme {choice}: {value!r} is not a YAML value") from error
    try:
        return _registry[name](create_scheme(name, parameters, seed=seed))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
        raise ValueError(f"routing scheme {choice}: {where}: {message}") from error
