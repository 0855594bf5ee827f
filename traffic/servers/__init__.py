"""GPU servers: GPUs, NICs, NVLink and PCIe between them, and which NIC serves which GPU."""

from __future__ import annotations

from traffic.servers.local_paths import nvlink_settings
from traffic.servers.model import Distance, Gpu, Nic, ServerModel
from traffic.servers.presets import server_preset, server_preset_names
from traffic.servers.ranks import RankEnvironment, rank_environments
from traffic.servers.smi import TopologyMatrixError, parse_topology_matrix

__all__ = [
    "Distance",
    "Gpu",
    "Nic",
    "RankEnvironment",
    "ServerModel",
    "TopologyMatrixError",
    "nvlink_settings",
    "parse_topology_matrix",
    "rank_environments",
    "server_preset",
    "server_preset_names",
]
