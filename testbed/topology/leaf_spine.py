"""Leaf-spine: a two-stage folded Clos, every leaf wired to every spine once."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from testbed.topology.base import (
    SWITCH_PORT_LIMIT,
    Topology,
    TopologyError,
    TopologyKind,
    TopologyParameters,
    register_topology,
)
from testbed.topology.builder import TopologyBuilder
from testbed.units import BitRate, Duration


class LeafSpineParameters(TopologyParameters):
    """Size and rates of a leaf-spine fabric."""

    leaves: int = Field(2, ge=1, le=64, description="leaf switches")
    spines: int = Field(2, ge=0, le=64, description="spine switches; 0 only with a single leaf")
    servers_per_leaf: int = Field(4, ge=1, description="servers below each leaf")
    gpus_per_server: int = Field(1, ge=1, le=16, description="GPUs, each with its own NIC")
    link_rate: BitRate = Field(400e9, description="rate of a NIC's link")
    uplink_rate: BitRate | None = Field(
        None, description="rate of a leaf-spine link; default link_rate"
    )
    hop_latency: Duration = Field(1e-6, description="switch and wire latency per switch")
    nic_latency: Duration = Field(1e-6, description="both NICs and the first wire, once per packet")


@register_topology
class LeafSpine(TopologyKind):
    """Two tiers; the fabric of Meta's AI Zone in small."""

    name = "leaf-spine"
    parameters = LeafSpineParameters

    def build(self, parameters: Any) -> Topology:
        """Return the fabric. Raises TopologyError when a switch would need too many ports."""
        p: LeafSpineParameters = parameters
        below = p.servers_per_leaf * p.gpus_per_server
        if below + p.spines > SWITCH_PORT_LIMIT:
            raise TopologyError(
                f"topology.servers_per_leaf: {p.servers_per_leaf} servers of {p.gpus_per_server} "
                f"GPU(s) and {p.spines} spines need {below + p.spines} ports on one leaf; "
                f"a switch has at most {SWITCH_PORT_LIMIT}"
            )
        if p.spines == 0 and p.leaves > 1:
            raise TopologyError(
                f"topology.spines: 0 leaves {p.leaves} leaves unconnected; at least 1"
            )
        uplink = p.link_rate if p.uplink_rate is None else p.uplink_rate
        builder = TopologyBuilder(self.name, hop_latency=p.hop_latency, nic_latency=p.nic_latency)
        leaves = [builder.switch("leaf", tier=1, index=i) for i in range(p.leaves)]
        spines = [builder.switch("spine", tier=2, index=i) for i in range(p.spines)]
        for leaf_index, leaf in enumerate(leaves):
            for slot in range(p.servers_per_leaf):
                server = builder.server(leaf_index * p.servers_per_leaf + slot)
                for gpu in range(p.gpus_per_server):
                    builder.rank(server, gpu, [leaf], rate=p.link_rate)
        for leaf in leaves:
            for spine in spines:
                builder.link(leaf, spine, up_rate=uplink, down_rate=uplink)
        return builder.build()
