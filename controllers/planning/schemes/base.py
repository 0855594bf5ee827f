"""What places flows on a fabric of arrays, one class per routing scheme that can be planned.

A planner holds the scheme itself and takes from it whatever does not depend on how many flows there
are: seeds, parameters, tables. Only the choice per flow is made over arrays.
"""

from __future__ import annotations

import abc
from typing import Any, ClassVar

from controllers.planning.fabric import IntArray
from controllers.planning.flows import FlowArrays
from controllers.planning.placement import Hop, Placement, RoutedFabric, walk
from controllers.schemes import RoutingScheme, create_scheme


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
    _registry[planner.name] = planner
    return planner


def planner_names() -> list[str]:
    """Names of all schemes that can be planned, sorted."""
    return sorted(_registry)


def create_planner(name: str, *, seed: int = 0, scheme: RoutingScheme | None = None) -> Any:
    """The planner of a scheme, by default with the scheme's default parameters and this seed.

    Raises ValueError for an unknown name; the message lists the known ones.
    """
    if name not in _registry:
        raise ValueError(
            f"routing scheme {name!r} cannot be planned at this scale; "
            f"allowed: {', '.join(planner_names())}"
        )
    return _registry[name](scheme or create_scheme(name, seed=seed))
