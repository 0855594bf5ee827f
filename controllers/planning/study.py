"""What a scheme makes of some flows, over many seeds: link loads, their ratio, the slowdown.

A link's *load* is what it is offered over its capacity, when the NICs send at their rate. The
*slowdown* is the load of the busiest link, but at least 1: the time in which that link carries its
bytes, over the time in which the NICs would send theirs; a synchronous collective waits for it. It
is the least that any transport can reach on these paths. A connection's slowdown is that of the
busiest link among its own. Links that no flow may take, because none of its equal-cost paths leads
over them, do not count: a job on a part of a fabric leaves the others idle whatever the scheme.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from controllers.planning.fabric import ArrayFabric, BoolArray, FloatArray
from controllers.planning.flows import FlowArrays
from controllers.planning.placement import Placement, RoutedFabric, possible_edges
from controllers.planning.schemes import create_planner

_TIER_NAMES = ("NIC", "leaf", "spine", "core")


@dataclass(frozen=True)
class Question:
    """What to plan: ``flows`` gives those of a seed.

    ``failed_links`` is the share of the links between switches that are down, drawn by the seed;
    ``live`` are those that are up before that, by default all.
    """

    fabric: ArrayFabric
    flows: Callable[[int], FlowArrays]
    failed_links: float = 0.0
    seeds: Sequence[int] = (0,)
    live: BoolArray | None = None


@dataclass(frozen=True)
class Statistic:
    """A figure over the seeds."""

    mean: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Statistic:
        """The mean and the 99th percentile."""
        return cls(float(np.mean(values)), float(np.percentile(values, 99)))


@dataclass(frozen=True)
class Layer:
    """The edges from one tier to another that some flow may take; ``links`` is how many."""

    name: str
    links: int
    mean: float
    most: float
    idle: float

    @property
    def ratio(self) -> float:
        """The busiest link's load over the mean; 1 where there is no load."""
        return self.most / self.mean if self.mean else 1.0


@dataclass(frozen=True)
class Outcome:
    """One scheme with one seed. ``lost`` is the share of the QPs that have no path.

    ``even_slowdown`` is what the slowdown would be if each layer carried its load evenly.
    """

    layers: tuple[Layer, ...]
    slowdown: float
    connection_slowdown: float
    even_slowdown: float
    lost: float


@dataclass(frozen=True)
class LayerSummary:
    """A layer over all seeds; ``links``, ``mean`` and ``idle`` are means of it."""

    name: str
    links: float
    mean: float
    most: Statistic
    ratio: Statistic
    idle: float


@dataclass(frozen=True)
class Summary:
    """One scheme over all seeds."""

    scheme: str
    layers: tuple[LayerSummary, ...]
    slowdown: Statistic
    connection_slowdown: float
    even_slowdown: float
    lost: float

    @classmethod
    def of(cls, scheme: str, outcomes: Sequence[Outcome]) -> Summary:
        """Aggregate."""
        return cls(
            scheme,
            tuple(_summarise(layers) for layers in zip(*(o.layers for o in outcomes), strict=True)),
            Statistic.of([outcome.slowdown for outcome in outcomes]),
            float(np.mean([outcome.connection_slowdown for outcome in outcomes])),
            float(np.mean([outcome.even_slowdown for outcome in outcomes])),
            float(np.mean([outcome.lost for outcome in outcomes])),
        )


def study(
    schemes: Sequence[str],
    question: Question,
    *,
    progress: Callable[[float], None] = lambda _: None,
) -> list[Summary]:
    """Plan every scheme with every seed; the same seed means the same flows and failed links.

    ``progress`` is told the share that is done. Raises ValueError for an unknown scheme or pattern.
    """
    outcomes: dict[str, list[Outcome]] = {scheme: [] for scheme in schemes}
    steps = len(schemes) * len(question.seeds)
    for done, (scheme, outcome) in enumerate(_outcomes(schemes, question), start=1):
        outcomes[scheme].append(outcome)
        progress(done / steps)
    return [Summary.of(scheme, found) for scheme, found in outcomes.items()]


def _outcomes(schemes: Sequence[str], question: Question) -> Iterator[tuple[str, Outcome]]:
    fabric = question.fabric
    healthy = RoutedFabric.of(fabric)
    for seed in question.seeds:
        live = draw_live_links(fabric, question.failed_links, seed)
        if question.live is not None:
            live &= question.live
        routed = healthy.with_live(live)
        flows = question.flows(seed)
        for scheme in schemes:
            placement = create_planner(scheme, seed=seed).place(routed, flows)
            yield scheme, judge(placement, routed)


def draw_live_links(fabric: ArrayFabric, failed: float, seed: int) -> BoolArray:
    """Which links between switches are up when a share of them, drawn at random, has failed."""
    live = np.ones(fabric.links, dtype=bool)
    random = np.random.default_rng([seed, 1])  # apart from the numbers that the flows draw
    live[random.permutation(fabric.links)[: round(failed * fabric.links)]] = False
    return live


def judge(placement: Placement, routed: RoutedFabric) -> Outcome:
    """The figures of one placement on a fabric."""
    fabric = placement.fabric
    loads: FloatArray = placement.loads / fabric.capacities
    layers = tuple(_layers(fabric, loads, possible_edges(routed, placement.flows)))
    return Outcome(
        layers,
        slowdown=max(float(loads.max()), 1.0),
        connection_slowdown=float(np.maximum(placement.worst(loads), 1.0).mean()),
        even_slowdown=max([1.0, *(layer.mean for layer in layers)]),
        lost=float(placement.lost.mean()),
    )


def _layers(fabric: ArrayFabric, loads: FloatArray, possible: BoolArray) -> Iterator[Layer]:
    """The layers between switches, in the order in which a packet meets them."""
    top = int(fabric.tiers.max())
    climb = [(tier, tier + 1) for tier in range(1, top)]
    for lower, upper in climb + [(b, a) for a, b in reversed(climb)]:
        name = f"{_TIER_NAMES[lower]} to {_TIER_NAMES[upper]}"
        found = loads[(fabric.edge_tiers == (lower, upper)).all(axis=1) & possible]
        if found.size:
            idle = float((found == 0).mean())
            yield Layer(name, found.size, float(found.mean()), float(found.max()), idle)
        else:
            yield Layer(name, 0, 0.0, 0.0, 0.0)


def _summarise(layers: Sequence[Layer]) -> LayerSummary:
    return LayerSummary(
        layers[0].name,
        float(np.mean([layer.links for layer in layers])),
        float(np.mean([layer.mean for layer in layers])),
        Statistic.of([layer.most for layer in layers]),
        Statistic.of([layer.ratio for layer in layers]),
        float(np.mean([layer.idle for layer in layers])),
    )
