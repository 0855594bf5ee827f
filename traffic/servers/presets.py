"""Servers that people have, by name.

NVLink counts, NIC counts and rates are from the vendors' data sheets; the PCIe distances are what
``nvidia-smi topo -m`` prints on such machines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from traffic.servers.model import (
    NVLINK_RATE,
    PCIE_GEN3_X16,
    PCIE_GEN4_X16,
    PCIE_GEN5_X16,
    SMP_RATE_SAPPHIRE_RAPIDS,
    SMP_RATE_SKYLAKE,
    Distance,
    Gpu,
    Nic,
    ServerModel,
)

_DGX_1V_NVLINKS = (
    (0, 1, 1, 2, 2, 0, 0, 0),
    (1, 0, 2, 1, 0, 2, 0, 0),
    (1, 2, 0, 2, 0, 0, 1, 0),
    (2, 1, 2, 0, 0, 0, 0, 1),
    (2, 0, 0, 0, 0, 1, 1, 2),
    (0, 2, 0, 0, 1, 0, 2, 1),
    (0, 0, 1, 0, 1, 2, 0, 2),
    (0, 0, 0, 1, 2, 1, 2, 0),
)
"""Hybrid cube mesh of the DGX-1 with V100: six links each."""


def server_preset_names() -> list[str]:
    """Names of all presets, sorted."""
    return sorted(_PRESETS)


def server_preset(name: str) -> ServerModel:
    """A server by name. Raises ValueError that lists the allowed names."""
    if name not in _PRESETS:
        raise ValueError(f"unknown server {name!r}; allowed: {', '.join(server_preset_names())}")
    return _PRESETS[name](name)


def _all_to_all(gpus: int, links: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(0 if a == b else links for b in range(gpus)) for a in range(gpus))


def _server(
    name: str,
    *,
    nvlinks: Sequence[Sequence[int]],
    nics: int,
    nic_rate: float,
    near: Distance,
    gpus_per_bridge: int,
    nics_per_bridge: int,
    nvlink_rate: float = NVLINK_RATE,
    pcie_rate: float,
    smp_rate: float,
) -> ServerModel:
    """Two sockets, the devices dealt to PCIe bridges in order.

    A GPU is ``near`` the NICs of its bridge, NODE from the others of its socket, SYS from the
    other socket's.
    """
    count = len(nvlinks)
    bridges = count // gpus_per_bridge

    def between(bridge: int, other: int) -> Distance:
        if bridge == other:
            return near
        same_socket = bridge * 2 // bridges == other * 2 // bridges
        return Distance.NODE if same_socket else Distance.SYS

    def gpu_distance(a: int, b: int) -> Distance:
        if a == b:
            return Distance.X
        if nvlinks[a][b]:
            return Distance.NV
        return between(a // gpus_per_bridge, b // gpus_per_bridge)

    return ServerModel(
        name=name,
        gpus=tuple(Gpu(i, numa_node=i * 2 // count) for i in range(count)),
        nics=tuple(Nic(i, f"mlx5_{i}", nic_rate) for i in range(nics)),
        gpu_distances=tuple(
            tuple(gpu_distance(a, b) for b in range(count)) for a in range(count)
        ),
        nic_distances=tuple(
            tuple(between(a // gpus_per_bridge, b // nics_per_bridge) for b in range(nics))
            for a in range(count)
        ),
        nvlinks=tuple(tuple(row) for row in nvlinks),
        nvlink_rate=nvlink_rate,
        pcie_rate=pcie_rate,
        smp_rate=smp_rate,
    )  # fmt: skip


def _dgx_h100(name: str) -> ServerModel:
    """Eight H100 on NVSwitches, a ConnectX-7 for each."""
    return _server(
        name,
        nvlinks=_all_to_all(8, 18),
        nics=8,
        nic_rate=400e9,
        near=Distance.PXB,
        gpus_per_bridge=1,
        nics_per_bridge=1,
        pcie_rate=PCIE_GEN5_X16,
        smp_rate=SMP_RATE_SAPPHIRE_RAPIDS,
    )


def _hpn_h800(name: str) -> ServerModel:
    """Alibaba HPN's host (SIGCOMM'24, section 3): H800, 400 GB/s NVLink, NICs of 2 x 200G."""
    return _server(
        name,
        nvlinks=_all_to_all(8, 8),
        nics=8,
        nic_rate=400e9,
        near=Distance.PIX,
        gpus_per_bridge=1,
        nics_per_bridge=1,
        pcie_rate=PCIE_GEN5_X16,
        smp_rate=SMP_RATE_SAPPHIRE_RAPIDS,
    )


def _hgx_a100(name: str) -> ServerModel:
    """Eight A100 on NVSwitches; two GPUs and two 200G NICs behind each PCIe switch."""
    return _server(
        name,
        nvlinks=_all_to_all(8, 12),
        nics=8,
        nic_rate=200e9,
        near=Distance.PXB,
        gpus_per_bridge=2,
        nics_per_bridge=2,
        pcie_rate=PCIE_GEN4_X16,
        smp_rate=SMP_RATE_SKYLAKE,
    )


def _dgx_1v(name: str) -> ServerModel:
    """Eight V100 in a hybrid cube mesh; each pair shares one 100G NIC."""
    return _server(
        name,
        nvlinks=_DGX_1V_NVLINKS,
        nics=4,
        nic_rate=100e9,
        near=Distance.PIX,
        gpus_per_bridge=2,
        nics_per_bridge=1,
        pcie_rate=PCIE_GEN3_X16,
        smp_rate=SMP_RATE_SKYLAKE,
    )


def _quad_nvlink(name: str) -> ServerModel:
    """Four A100 joined by four NVLinks a pair (HGX A100 4-GPU); a 200G NIC per socket."""
    return _server(
        name,
        nvlinks=_all_to_all(4, 4),
        nics=2,
        nic_rate=200e9,
        near=Distance.PXB,
        gpus_per_bridge=2,
        nics_per_bridge=1,
        pcie_rate=PCIE_GEN4_X16,
        smp_rate=SMP_RATE_SKYLAKE,
    )


def _quad_pcie(name: str) -> ServerModel:
    """Four PCIe GPUs without NVLink; a 100G NIC at each CPU's host bridge."""
    return _server(
        name,
        nvlinks=_all_to_all(4, 0),
        nics=2,
        nic_rate=100e9,
        near=Distance.PHB,
        gpus_per_bridge=2,
        nics_per_bridge=1,
        pcie_rate=PCIE_GEN4_X16,
        smp_rate=SMP_RATE_SKYLAKE,
    )


_PRESETS: dict[str, Callable[[str], ServerModel]] = {
    "dgx-1v": _dgx_1v,
    "dgx-h100": _dgx_h100,
    "hgx-a100": _hgx_a100,
    "hgx-a100-4gpu": _quad_nvlink,
    "hpn-h800": _hpn_h800,
    "pcie-4gpu": _quad_pcie,
}
