"""Three tiers: zones of leaves and spines below a core that all zones share.

In Meta's names (SIGCOMM'24, section 3) a leaf is an RTSW (rack training switch), a spine a CTSW
(cluster training switch), a zone an AI Zone and a core an ATSW (aggregator training switch). Every
leaf is wired to every spine of its zone, and every spine to every core.
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
from testbed.topology.wiring import (
    Oversubscription,
    check_joined,
    check_leaves,
    check_ports,
    full_mesh,
    uplink_rate,
)
from testbed.units import BitRate


class ThreeTierParameters(LatencyParameters):
    """Size, ratios and rates of a three-tier fabric."""

    zones: int = Field(2, ge=1, le=64, description="AI zones")
    leaves: int = Field(2, ge=1, le=255, description="leaf switches (RTSW) in each zone")
    spines: int = Field(2, ge=1, le=64, description="spine switches (CTSW) in each zone")
    cores: int = Field(
        2, ge=0, le=64, description="core switches (ATSW); 0 only with a single zone"
    )
    servers_per_leaf: int = Field(2, ge=1, le=256, description="servers below each leaf")
    gpus_per_server: int = Field(2, ge=1, le=16, description="GPUs, each with its own NIC")
    link_rate: BitRate = Field(400e9, description="rate of a NIC's link")
    leaf_oversubscription: Oversubscription = Field(
        1.0, description="a leaf's capacity to GPUs over that to spines; sets the uplinks' rate"
    )
    spine_oversubscription: Oversubscription = Field(
        1.0, description="a spine's capacity to leaves over that to cores; 7 is Meta's 1:7"
    )


@register_topology
class ThreeTier(TopologyKind):
    """AI zones, each a two-stage Clos, joined by cores."""

    name = "three-tier"
    parameters = ThreeTierParameters

    def build(self, parameters: Any) -> Topology:
        """Return the fabric. Raises TopologyError for what no switches can be wired to."""
        p: ThreeTierParameters = parameters
        _check(p)
        builder = TopologyBuilder(self.name, hop_latency=p.hop_latency, nic_latency=p.nic_latency)
        zones = [f"zone{zone + 1}" for zone in range(p.zones)]

        def switches(stem: str, tier: int, per_zone: int) -> list[list[str]]:
            return [
                [
                    builder.switch(stem, tier=tier, index=z * per_zone + i, group=zone)
                    for i in range(per_zone)
                ]
                for z, zone in enumerate(zones)
            ]

        leaves = switches("leaf", 1, p.leaves)
        spines = switches("spine", 2, p.spines)
        cores = [builder.switch("core", tier=3, index=i) for i in range(p.cores)]
        _add_servers(builder, p, leaves)
        down = p.servers_per_leaf * p.gpus_per_server * p.link_rate
        up = uplink_rate(down=down, links=p.spines, oversubscription=p.leaf_oversubscription)
        for leaf_row, spine_row in zip(leaves, spines, strict=True):
            full_mesh(builder, leaf_row, spine_row, up)
        if cores:
            core_rate = uplink_rate(
                down=p.leaves * up, links=p.cores, oversubscription=p.spine_oversubscription
            )
            full_mesh(builder, [spine for row in spines for spine in row], cores, core_rate)
        return builder.build()


def _add_servers(builder: TopologyBuilder, p: ThreeTierParameters, leaves: list[list[str]]) -> None:
    index = 0
    for zone, row in enumerate(leaves):
        for leaf in row:
            for _ in range(p.servers_per_leaf):
                server = builder.server(index, group=f"zone{zone + 1}")
                index += 1
                for gpu in range(p.gpus_per_server):
                    builder.rank(server, gpu, [leaf], rate=p.link_rate)


def _check(p: ThreeTierParameters) -> None:
    below = p.servers_per_leaf * p.gpus_per_server
    what = f"{p.servers_per_leaf} servers of {p.gpus_per_server} GPU(s) and {p.spines} spines"
    check_ports("servers_per_leaf", what, below + p.spines)
    check_ports("leaves", f"{p.leaves} leaves and {p.cores} cores", p.leaves + p.cores)
    check_ports("spines", f"{p.zones} zones of {p.spines} spines", p.zones * p.spines)
    check_leaves("leaves", f"{p.zones} zones of {p.leaves} leaves", p.zones * p.leaves)
    if p.zones > 1:
        check_joined("cores", f"{p.zones} zones", p.cores)
