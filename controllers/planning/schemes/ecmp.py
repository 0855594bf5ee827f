"""ECMP over arrays: every switch hashes the 5-tuple with its own basis."""

from __future__ import annotations

import numpy as np

from controllers.planning.fabric import IntArray
from controllers.planning.flows import FlowArrays
from controllers.planning.hashing import flow_hashes, links_of
from controllers.planning.placement import Hop, RoutedFabric
from controllers.planning.schemes.base import HopByHopPlanner, register_planner
from controllers.schemes.ecmp import Ecmp


@register_planner
class EcmpPlanner(HopByHopPlanner):
    """Open vSwitch's multipath hash, as in ``controllers.schemes.ecmp``."""

    name = "ecmp"
    scheme: Ecmp

    def prepare(self, routed: RoutedFabric, flows: FlowArrays) -> None:
        """Every switch's basis; a switch's datapath id is its number + 1."""
        switches = range(routed.fabric.switches)
        self._bases = np.array([self.scheme.basis(switch + 1) for switch in switches])

    def choose(self, routed: RoutedFabric, flows: FlowArrays, hop: Hop) -> IntArray:
        """Hash where there is more than one edge."""
        return hashed_edges(self.scheme, self._bases, routed, flows, hop)


def hashed_edges(
    scheme: Ecmp, bases: IntArray, routed: RoutedFabric, flows: FlowArrays, hop: Hop
) -> IntArray:
    """The edges that switches choose by the 5-tuple; ``bases`` is by switch."""
    fabric, parameters = routed.fabric, scheme.parameters
    sizes = routed.groups.sizes(hop.groups)
    values = flow_hashes(
        fabric.addresses[flows.sources[hop.flows]],
        fabric.addresses[flows.destinations[hop.flows]],
        flows.source_ports[hop.flows],
        fields=parameters.fields,
        bases=bases[hop.switches],
    )
    links = links_of(values, algorithm=parameters.algorithm, links=sizes)
    return routed.groups.member(hop.groups, links)
