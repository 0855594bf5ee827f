"""E-ECMP over arrays: the leaf hashes 5-tuple and destination QP into two slots."""

from __future__ import annotations

import numpy as np

from controllers.labels import SLOTS
from controllers.planning.fabric import IntArray
from controllers.planning.flows import FlowArrays
from controllers.planning.hashing import label_hashes
from controllers.planning.placement import RoutedFabric
from controllers.planning.schemes.base import register_planner
from controllers.planning.schemes.labelled import LabelledPlanner


@register_planner
class EnhancedEcmpPlanner(LabelledPlanner):
    """As ``controllers.labels.label_of``."""

    name = "e-ecmp"

    def slots(self, routed: RoutedFabric, flows: FlowArrays) -> tuple[IntArray, IntArray]:
        """Both slots by hash, each with its own seed of the leaf."""
        fabric = routed.fabric
        first, second = (
            label_hashes(
                fabric.addresses[flows.sources],
                fabric.addresses[flows.destinations],
                flows.source_ports,
                flows.destination_qps,
                seeds=seeds,
                use_destination_qp=self.scheme.parameters.use_destination_qp,
            )
            % np.uint64(SLOTS)
            for seeds in self.seeds(fabric.nic_leaves[flows.sources, flows.nic_ports])
        )
        return first.astype(np.int64), second.astype(np.int64)
