"""How long packets travel, in the families whose parameters say so."""

from __future__ import annotations

from pydantic import Field

from testbed.topology.base import TopologyParameters
from testbed.units import Duration


class LatencyParameters(TopologyParameters):
    """Fields of a family whose fabric has one latency for all switches and one for all NICs."""

    hop_latency: Duration = Field(1e-6, description="switch and wire latency per switch")
    nic_latency: Duration = Field(1e-6, description="both NICs and the first wire, once per packet")
