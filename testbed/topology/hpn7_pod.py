"""Preset: HPN 7.0, dual-ToR and dual-plane (SIGCOMM'24, 10.1145/3651890.3672265).

As deployed: 15 segments of 128 servers with 8 GPUs, NICs of 2 x 200G, 16 ToRs per segment at
1.067:1 and 120 aggregation switches per pod; pods joined at 15:1. The defaults are 2 segments of 2
servers with 4 GPUs below 2 aggregation switches per plane.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from pydantic import Field

from testbed.topology.base import (
    Topology,
    TopologyKind,
    register_topology,
)
from testbed.topology.hpn import (
    CORE_OVERSUBSCRIPTION,
    TOR_OVERSUBSCRIPTION,
    Hpn,
    HpnParameters,
)
from testbed.topology.latency import LatencyParameters
from testbed.units import BitRate


class Hpn7PodParameters(LatencyParameters):
    """How much of the pod to build; the ratios and the two planes are fixed."""

    pods: int = Field(1, ge=1, le=32, description="pods; several are joined at 15:1")
    segments: int = Field(2, ge=1, le=15, description="segments in each pod; as deployed: 15")
    servers_per_segment: int = Field(2, ge=1, le=136, description="as deployed: 128, 8 in reserve")
    gpus_per_server: int = Field(4, ge=1, le=16, description="and as many rails; as deployed: 8")
    spines: int = Field(
        4, ge=2, le=120, description="aggregation switches of both planes; as deployed: 120"
    )
    cores: int = Field(4, ge=2, le=120, description="core switches of both planes, with pods")
    link_rate: BitRate = Field(400e9, description="rate of a NIC, over its two ports")


@register_topology
class Hpn7Pod(TopologyKind):
    """Dual-ToR rails below two planes."""

    name = "hpn7-pod"
    parameters = Hpn7PodParameters

    def build(self, parameters: Any) -> Topology:
        """Return the fabric. Raises TopologyError."""
        p: Hpn7PodParameters = parameters
        topology = Hpn().build(
            HpnParameters.model_construct(
                pods=p.pods,
                segments=p.segments,
                servers_per_segment=p.servers_per_segment,
                gpus_per_server=p.gpus_per_server,
                dual_tor=True,
                dual_plane=True,
                spines=p.spines,
                cores=p.cores if p.pods > 1 else 0,
                link_rate=p.link_rate,
                tor_oversubscription=TOR_OVERSUBSCRIPTION,
                core_oversubscription=CORE_OVERSUBSCRIPTION,
                hop_latency=p.hop_latency,
                nic_latency=p.nic_latency,
            )
        )
        return dataclasses.replace(topology, name=self.name)
