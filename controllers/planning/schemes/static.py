"""D-mod-K over arrays: the destination NIC's number alone decides, digit by digit."""

from __future__ import annotations

import numpy as np

from controllers.planning.fabric import ArrayFabric, IntArray
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
        self._divisors = choices_below(fabric)

    def choose(self, routed: RoutedFabric, flows: FlowArrays, hop: Hop) -> IntArray:
        """The digit of the destination that belongs to the switch's tier."""
        sizes = routed.groups.sizes(hop.groups)
        numbers = self._numbers[flows.destinations[hop.flows]]
        digits = numbers // self._divisors[routed.fabric.tiers[hop.switches]]
        return routed.groups.member(hop.groups, digits % sizes)


def choices_below(fabric: ArrayFabric) -> IntArray:
    """By tier: the product of the widest fans of up ports in the tiers below it."""
    fans = np.bincount(fabric.lower, minlength=fabric.switches)
    widest = [max(fans[fabric.tiers == t].max(), 1) for t in range(1, fabric.tiers.max() + 1)]
    return np.concatenate([[1, 1], np.cumprod(widest)[:-1]]).astype(np.int64)
