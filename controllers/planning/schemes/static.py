"""D-mod-K over arrays: the destination NIC's number alone decides, digit by digit."""

from __future__ import annotations

import numpy as np

from controllers.planning.fabric import ArrayFabric, BoolArray, IntArray
from controllers.planning.flows import FlowArrays
from controllers.planning.placement import Hop, RoutedFabric
from controllers.planning.schemes.base import HopByHopPlanner, register_planner


@register_planner
class StaticPlanner(HopByHopPlanner):
    """Port d div (choices below) mod K, as in ``controllers.schemes.static``."""

    name = "static"

    def prepare(self, routed: RoutedFabric, flows: FlowArrays) -> None:
        """Number the NICs prefix by prefix, and count the choices below every tier."""
        fabric = routed.fabric
        order = np.argsort(fabric.nic_sets, kind="stable")
        self._numbers = np.empty(fabric.nics, dtype=np.int64)
        self._numbers[order] = np.arange(fabric.nics)
        self._divisors = choices_before(fabric)

    def choose(self, routed: RoutedFabric, flows: FlowArrays, hop: Hop) -> IntArray:
        """The digit of the destination that belongs to the switch's tier."""
        sizes = routed.groups.sizes(hop.groups)
        numbers = self._numbers[flows.destinations[hop.flows]]
        up = climbing(routed, hop).astype(np.int64)
        digits = numbers // self._divisors[up, routed.fabric.tiers[hop.switches]]
        return routed.groups.member(hop.groups, digits % sizes)


def choices_before(fabric: ArrayFabric) -> IntArray:
    """``controllers.routes.choices_before`` by (climbing or not, tier)."""
    top = int(fabric.tiers.max())
    fans = np.bincount(fabric.lower, minlength=fabric.switches)
    widest = [max(int(fans[fabric.tiers == tier].max()), 1) for tier in range(1, top + 1)]
    below = np.concatenate([[1, 1], np.cumprod(widest)[:-1]])
    down = below[np.maximum(np.arange(top + 1) - 2, 0)]
    return np.stack([down, below]).astype(np.int64)


def climbing(routed: RoutedFabric, hop: Hop) -> BoolArray:
    """Whether the flows of a hop go up from where they are."""
    first = routed.groups.member(hop.groups, np.zeros_like(hop.groups))
    up: BoolArray = first < routed.fabric.links
    return up
