"""Preset: Meta's AI Zone, racks of GPUs below RTSWs that have spare uplinks (SIGCOMM'24, 10.1145/
3651890.3672233; Llama 3 Herd of Models, section 3.3.1).

As deployed: 192 racks of 2 servers with 8 GPUs; an RTSW has 16 ports of 400G down and 18 up, so
1:1.125, to 18 CTSWs; zones are joined by ATSWs at 1:7. The defaults are 2 racks of half the GPUs
with half the spines; 2 servers of 8 GPUs give a rack as deployed.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from pydantic import Field

from testbed.topology.base import (
    Topology,
    TopologyError,
    TopologyKind,
    register_topology,
)
from testbed.topology.latency import LatencyParameters
from testbed.topology.three_tier import ThreeTier, ThreeTierParameters
from testbed.topology.wiring import check_leaves, check_ports
from testbed.units import BitRate

GPUS_PER_UPLINKS = (16, 18)
"""Ports of an RTSW down and up, all of one rate."""

ATSW_OVERSUBSCRIPTION = 7.0


class MetaAiZoneParameters(LatencyParameters):
    """How much of the zone to build; the ratios are fixed."""

    zones: int = Field(1, ge=1, le=8, description="AI zones; several are joined at 1:7")
    racks: int = Field(2, ge=1, le=64, description="racks, each with its RTSW, in a zone")
    servers_per_rack: int = Field(2, ge=1, le=32, description="as deployed: 2")
    gpus_per_server: int = Field(4, ge=1, le=16, description="as deployed: 8")
    cores: int = Field(2, ge=1, le=64, description="ATSWs, with several zones")
    link_rate: BitRate = Field(400e9, description="rate of every link below the ATSWs")


@register_topology
class MetaAiZone(TopologyKind):
    """Racks of GPUs, 1:1.125 below their spines; zones at 1:7."""

    name = "meta-ai-zone"
    parameters = MetaAiZoneParameters

    def build(self, parameters: Any) -> Topology:
        """Return the fabric. Raises TopologyError."""
        p: MetaAiZoneParameters = parameters
        spines = _spines(p)
        topology = ThreeTier().build(
            ThreeTierParameters.model_construct(
                zones=p.zones,
                leaves=p.racks,
                spines=spines,
                cores=p.cores if p.zones > 1 else 0,
                servers_per_leaf=p.servers_per_rack,
                gpus_per_server=p.gpus_per_server,
                link_rate=p.link_rate,
                leaf_oversubscription=GPUS_PER_UPLINKS[0] / GPUS_PER_UPLINKS[1],
                spine_oversubscription=ATSW_OVERSUBSCRIPTION,
                hop_latency=p.hop_latency,
                nic_latency=p.nic_latency,
            )
        )
        return dataclasses.replace(topology, name=self.name)


def _spines(p: MetaAiZoneParameters) -> int:
    """CTSWs of a zone, one per uplink of an RTSW. Raises TopologyError."""
    gpus = p.servers_per_rack * p.gpus_per_server
    down, up = GPUS_PER_UPLINKS
    spines, rest = divmod(gpus * up, down)
    if rest:
        raise TopologyError(
            f"topology.servers_per_rack: {gpus} GPUs in a rack have no whole number of uplinks "
            f"at {down}:{up}; allowed: multiples of 8 GPUs"
        )
    check_ports("servers_per_rack", f"{gpus} GPUs and {spines} CTSWs", gpus + spines)
    check_ports("zones", f"{p.zones} zones of {spines} CTSWs", p.zones * spines)
    check_leaves("racks", f"{p.zones} zones of {p.racks} racks", p.zones * p.racks)
    return spines
