"""Leaf-spine: a two-stage folded Clos, every leaf wired to every spine once.

Ratios follow from counts and rates. With equal rates, 16 GPUs below a leaf and 16 spines are 1:1,
16 and 18 are the 1:1.125 of Meta's RTSW; ``oversubscription`` sets the uplinks' rate to any other.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from testbed.topology.base import (
    Topology,
    TopologyError,
    TopologyKind,
    register_topology,
)
from testbed.topology.builder import TopologyBuilder
from testbed.topology.latency import LatencyParameters
from testbed.topology.storage import StorageParameters, attach_storage
from testbed.topology.wiring import (
    Oversubscription,
    check_joined,
    check_ports,
    full_mesh,
    uplink_rate,
)
from testbed.units import BitRate


class LeafSpineParameters(StorageParameters, LatencyParameters):
    """Size and rates of a leaf-spine fabric."""

    leaves: int = Field(2, ge=1, le=64, description="leaf switches")
    spines: int = Field(2, ge=0, le=64, description="spine switches; 0 only with a single leaf")
    servers_per_leaf: int = Field(4, ge=1, description="servers below each leaf")
    gpus_per_server: int = Field(1, ge=1, le=16, description="GPUs, each with its own NIC")
    link_rate: BitRate = Field(400e9, description="rate of a NIC's link")
    uplink_rate: BitRate | None = Field(
        None, description="rate of a leaf-spine link; default link_rate"
    )
    oversubscription: Oversubscription | None = Field(
        None,
        description="instead of uplink_rate: a leaf's capacity to GPUs over that to spines; "
        "7 is 1:7, 0.889 is 1:1.125",
    )


@register_topology
class LeafSpine(TopologyKind):
    """Two tiers; the fabric of Meta's AI Zone in small."""

    name = "leaf-spine"
    parameters = LeafSpineParameters

    def build(self, parameters: Any) -> Topology:
        """Return the fabric. Raises TopologyError when a switch would need too many ports."""
        p: LeafSpineParameters = parameters
        _check(p)
        builder = TopologyBuilder(self.name, hop_latency=p.hop_latency, nic_latency=p.nic_latency)
        leaves = [builder.switch("leaf", tier=1, index=i) for i in range(p.leaves)]
        spines = [builder.switch("spine", tier=2, index=i) for i in range(p.spines)]
        servers = []
        for leaf_index, leaf in enumerate(leaves):
            for slot in range(p.servers_per_leaf):
                server = builder.server(leaf_index * p.servers_per_leaf + slot)
                servers.append(server)
                for gpu in range(p.gpus_per_server):
                    builder.rank(server, gpu, [leaf], rate=p.link_rate)
        attach_storage(
            builder, p, leaves=leaves, spines=p.spines, servers=servers, link_rate=p.link_rate
        )
        if spines:
            full_mesh(builder, leaves, spines, _uplink_rate(p))
        return builder.build()


def _check(p: LeafSpineParameters) -> None:
    below = p.servers_per_leaf * p.gpus_per_server
    what = f"{p.servers_per_leaf} servers of {p.gpus_per_server} GPU(s) and {p.spines} spines"
    check_ports("servers_per_leaf", what, below + p.spines)
    if p.leaves > 1:
        check_joined("spines", f"{p.leaves} leaves", p.spines)
    if p.uplink_rate is not None and p.oversubscription is not None:
        raise TopologyError("topology.oversubscription: not beside uplink_rate; give one of them")


def _uplink_rate(p: LeafSpineParameters) -> float:
    if p.oversubscription is None:
        return p.link_rate if p.uplink_rate is None else p.uplink_rate
    down = p.servers_per_leaf * p.gpus_per_server * p.link_rate
    return uplink_rate(down=down, links=p.spines, oversubscription=p.oversubscription)
