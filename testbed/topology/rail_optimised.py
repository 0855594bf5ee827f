"""Rail-optimised: GPU g of every server of a pod hangs on that pod's leaf g.

Traffic between GPUs of equal local rank stays below one leaf of a pod and never meets a spine
(NVIDIA, "Doubling all2all performance with NCCL 2.12"). Spines join the rails and the pods. Without
spines the fabric is rail-only: rails are networks of their own, and what crosses them must first
cross NVLink to the right GPU of its server.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from testbed.topology.base import (
    Topology,
    TopologyKind,
    register_topology,
)
from testbed.topology.builder import TopologyBuilder
from testbed.topology.latency import LatencyParameters
from testbed.topology.storage import StorageParameters, attach_storage
from testbed.topology.wiring import (
    Oversubscription,
    check_joined,
    check_leaves,
    check_ports,
    full_mesh,
    uplink_rate,
)
from testbed.units import BitRate


class RailOptimisedParameters(StorageParameters, LatencyParameters):
    """Size, ratio and rates of a rail-optimised fabric."""

    pods: int = Field(2, ge=1, le=64, description="groups of servers that share rail leaves")
    servers_per_pod: int = Field(2, ge=1, le=256, description="servers on a pod's rail leaves")
    gpus_per_server: int = Field(
        4, ge=1, le=16, description="GPUs, each with its own NIC, and as many rails"
    )
    spines: int = Field(2, ge=0, le=64, description="spine switches; 0, rail-only, for one pod")
    link_rate: BitRate = Field(400e9, description="rate of a NIC's link")
    oversubscription: Oversubscription = Field(
        1.0, description="a leaf's capacity to GPUs over that to spines; sets the uplinks' rate"
    )


@register_topology
class RailOptimised(TopologyKind):
    """One leaf per rail and pod; the fabric of DGX and Spectrum-X pods."""

    name = "rail-optimised"
    parameters = RailOptimisedParameters

    def build(self, parameters: Any) -> Topology:
        """Return the fabric. Raises TopologyError for what no switches can be wired to."""
        p: RailOptimisedParameters = parameters
        rails = p.gpus_per_server
        what = f"{p.servers_per_pod} servers and {p.spines} spines"
        check_ports("servers_per_pod", what, p.servers_per_pod + p.spines)
        check_ports("pods", f"{p.pods} pods of {rails} rails", p.pods * rails)
        check_leaves("pods", f"{p.pods} pods of {rails} rails", p.pods * rails)
        if p.pods > 1:
            check_joined("spines", f"{p.pods} pods", p.spines)
        builder = TopologyBuilder(self.name, hop_latency=p.hop_latency, nic_latency=p.nic_latency)
        leaves = [
            builder.switch("leaf", tier=1, index=i, group=f"pod{i // rails + 1}")
            for i in range(p.pods * rails)
        ]
        spines = [builder.switch("spine", tier=2, index=i) for i in range(p.spines)]
        servers = []
        for index in range(p.pods * p.servers_per_pod):
            pod = index // p.servers_per_pod
            servers.append(builder.server(index, group=f"pod{pod + 1}"))
            for gpu in range(rails):
                builder.rank(servers[-1], gpu, [leaves[pod * rails + gpu]], rate=p.link_rate)
        attach_storage(
            builder, p, leaves=leaves, spines=p.spines, servers=servers, link_rate=p.link_rate
        )
        if spines:
            down = p.servers_per_pod * p.link_rate
            up = uplink_rate(down=down, links=p.spines, oversubscription=p.oversubscription)
            full_mesh(builder, leaves, spines, up)
        return builder.build()
