"""What connects the GPUs of a server, in the terms of the emulation's NVLink."""

from __future__ import annotations

from traffic.nvlink import LocalPath, NvlinkSettings
from traffic.servers.model import ServerModel


def nvlink_settings(server: ServerModel, *, latency: float | None = None) -> NvlinkSettings:
    """Rates of the paths between a server's GPUs; ``latency`` in seconds, by default NVLink's.

    GPUs on NVSwitches have one way out and in for all others. NVLinks from GPU to GPU are private
    to that pair. Pairs without NVLink share the GPU's PCIe link, at its rate or less, by distance;
    what the NIC moves on that link is not counted.
    """
    latency = NvlinkSettings().latency if latency is None else latency
    places = range(len(server.gpus))
    if server.has_nvswitch:
        return NvlinkSettings(min(server.nvlink_total(gpu) for gpu in places), latency)
    paths = tuple(
        tuple(
            # a GPU has no path to itself, the table only a place for it
            LocalPath(server.gpu_rate(a, b), private=server.nvlinks[a][b] > 0)
            if a != b
            else LocalPath(server.pcie_rate)
            for b in places
        )
        for a in places
    )
    fastest = max((paths[a][b].rate for a in places for b in places if a != b), default=None)
    return NvlinkSettings(server.pcie_rate if fastest is None else fastest, latency, paths)
