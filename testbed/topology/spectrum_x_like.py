"""Preset: a Spectrum-X fabric, rail-optimised and non-blocking with links of one rate.

As published (SimAI's generator of topologies, aliyun/SimAI, gen_Topo_Template.py): 4096 GPUs in
servers of 8, one NIC of 400G each; 64 leaves with 64 GPUs below and one link to each of 64 spines,
so 1:1. The defaults are 2 pods of 2 servers with 4 GPUs and 2 spines, all ratios the same.
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
from testbed.topology.latency import LatencyParameters
from testbed.topology.rail_optimised import RailOptimised, RailOptimisedParameters
from testbed.units import BitRate


class SpectrumXLikeParameters(LatencyParameters):
    """How much of the fabric to build; there are as many spines as servers in a pod."""

    pods: int = Field(2, ge=1, le=8, description="groups of servers on one set of rail leaves")
    servers_per_pod: int = Field(2, ge=1, le=64, description="and as many spines; as published: 64")
    gpus_per_server: int = Field(4, ge=1, le=16, description="and as many rails; as published: 8")
    link_rate: BitRate = Field(400e9, description="rate of every link")


@register_topology
class SpectrumXLike(TopologyKind):
    """Rails at 1:1, a spine for every GPU below a leaf."""

    name = "spectrum-x-like"
    parameters = SpectrumXLikeParameters

    def build(self, parameters: Any) -> Topology:
        """Return the fabric. Raises TopologyError."""
        p: SpectrumXLikeParameters = parameters
        topology = RailOptimised().build(
            RailOptimisedParameters.model_construct(
                pods=p.pods,
                servers_per_pod=p.servers_per_pod,
                gpus_per_server=p.gpus_per_server,
                spines=p.servers_per_pod,
                link_rate=p.link_rate,
                oversubscription=1.0,
                hop_latency=p.hop_latency,
                nic_latency=p.nic_latency,
            )
        )
        return dataclasses.replace(topology, name=self.name)
