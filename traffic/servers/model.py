"""One GPU server as plain data: who is how far from whom, and what that costs in bandwidth.

Distances are those of ``nvidia-smi topo -m``. Rates are in bit/s, one direction, in real hardware
units. NICs are chosen as NCCL chooses them: the nearest; among equally near ones the load is
spread evenly.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

GBYTE = 8e9
"""Bit/s of one GB/s, the unit of data sheets and of NCCL's tables."""

NVLINK_RATE = 25 * GBYTE
"""One NVLink of the third and fourth generation (A100, H100), one direction (data sheets: 50 GB/s
both ways; 18 links of an H100 give 900 GB/s)."""

MAX_NVLINKS = 18
"""Most NVLinks that a GPU has (data sheets of H100 and B200)."""

PCIE_EFFICIENCY = 128 / 130 * 256 / (256 + 24)
"""Share of a PCIe link's bits that are payload: 128b/130b coding, and packets of 256 bytes (the
usual maximum) with 24 bytes of framing, header and LCRC (PCI Express Base Specification 3.0)."""

PCIE_GEN3_X16 = 16 * 8e9 * PCIE_EFFICIENCY
"""Payload of 16 lanes at 8 GT/s: 14.4 GB/s."""

PCIE_GEN4_X16 = 2 * PCIE_GEN3_X16
"""At 16 GT/s."""

PCIE_GEN5_X16 = 4 * PCIE_GEN3_X16
"""At 32 GT/s; more than a 400G NIC needs."""

HOST_BRIDGE_FACTOR = 5 / 6
"""Peer-to-peer traffic through an Intel host bridge is cut into 64-byte TLPs and takes 6/5 of the
bandwidth (NCCL src/graph/topo.h: INTEL_P2P_OVERHEAD)."""

SMP_RATE_SKYLAKE = 10 * GBYTE
"""Interconnect of two Skylake sockets (NCCL src/graph/topo.h: SKL_QPI_BW)."""

SMP_RATE_SAPPHIRE_RAPIDS = 22 * GBYTE
"""Interconnect of two Sapphire Rapids sockets (NCCL src/graph/topo.h: SRP_QPI_BW)."""


class Distance(IntEnum):
    """What lies between two devices, nearest first; names of ``nvidia-smi topo -m``."""

    X = 0
    """The device itself."""
    NV = 1
    """NVLinks."""
    PIX = 2
    """At most one PCIe bridge."""
    PXB = 3
    """Several PCIe bridges, no host bridge."""
    PHB = 4
    """A PCIe host bridge, usually the CPU."""
    NODE = 5
    """Several host bridges within one NUMA node."""
    SYS = 6
    """The interconnect between NUMA nodes."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU; ``index`` is nvidia-smi's. Affinities are None where nvidia-smi does not tell."""

    index: int
    cpu_affinity: str | None = None
    numa_node: int | None = None

    @property
    def name(self) -> str:
        """The name in nvidia-smi's table."""
        return f"GPU{self.index}"


@dataclass(frozen=True, slots=True)
class Nic:
    """A NIC of the server; ``name`` is its RDMA device's, ``rate`` all its ports together."""

    index: int
    name: str
    rate: float


@dataclass(frozen=True)
class ServerModel:
    """A server. ``gpu_distances[a][b]`` and ``nic_distances[gpu][nic]`` are by position.

    ``nvlinks[a][b]`` is the number of NVLinks between two GPUs, directly or through NVSwitches.
    Raises ValueError when the tables' shapes do not fit or a distance is not symmetric.
    """

    name: str
    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]
    gpu_distances: tuple[tuple[Distance, ...], ...]
    nic_distances: tuple[tuple[Distance, ...], ...]
    nvlinks: tuple[tuple[int, ...], ...]
    nvlink_rate: float = NVLINK_RATE
    pcie_rate: float = PCIE_GEN4_X16
    smp_rate: float = SMP_RATE_SKYLAKE

    def __post_init__(self) -> None:
        count = len(self.gpus)
        if count == 0:
            raise ValueError(f"server {self.name}: no GPU; at least 1")
        tables = (
            ("gpu_distances", self.gpu_distances, count),
            ("nvlinks", self.nvlinks, count),
            ("nic_distances", self.nic_distances, len(self.nics)),
        )
        for field, table, columns in tables:
            if len(table) != count or any(len(row) != columns for row in table):
                raise ValueError(f"server {self.name}: {field} is no {count} x {columns} table")
        for field, square in (("gpu_distances", self.gpu_distances), ("nvlinks", self.nvlinks)):
            for a in range(count):
                for b in range(a):
                    if square[a][b] != square[b][a]:
                        raise ValueError(
                            f"server {self.name}: {field} differs between {self.gpus[a].name} to "
                            f"{self.gpus[b].name} and the way back"
                        )

    @property
    def has_nvswitch(self) -> bool:
        """Whether the NVLinks go to switches rather than from GPU to GPU.

        Then every pair has all the links of a GPU, more than a GPU has for all pairs together.
        """
        others = [[n for b, n in enumerate(row) if a != b] for a, row in enumerate(self.nvlinks)]
        return len({n for row in others for n in row}) == 1 and sum(others[0]) > MAX_NVLINKS

    def nvlink_total(self, gpu: int) -> float:
        """Bit/s that a GPU can send to all others together over NVLinks."""
        links = self.nvlinks[gpu]
        return (max(links) if self.has_nvswitch else sum(links)) * self.nvlink_rate

    @cached_property
    def nic_of_gpu(self) -> tuple[int | None, ...]:
        """Position of the NIC that serves each GPU; None everywhere if there are no NICs.

        Every GPU gets one of its nearest NICs, such that the busiest NIC serves as few GPUs as
        can be; GPUs and NICs in their order as far as that allows. NICs that are nearest to no
        GPU, as those for storage, stay free.
        """
        if not self.nics:
            return (None,) * len(self.gpus)
        nearest = [
            [nic for nic, distance in enumerate(row) if distance is min(row)]
            for row in self.nic_distances
        ]
        for capacity in range(1, len(self.gpus) + 1):
            chosen = _assign(nearest, capacity)
            if chosen is not None:
                return chosen
        raise AssertionError("one NIC can serve all GPUs")

    def gpus_of_nic(self, nic: int) -> tuple[int, ...]:
        """Positions of the GPUs that a NIC serves."""
        return tuple(gpu for gpu, own in enumerate(self.nic_of_gpu) if own == nic)

    def path_rate(self, gpu: int, nic: int) -> float:
        """Bit/s that a GPU can move to or from the wire through a NIC when alone.

        PIX and PXB: the PCIe rate. PHB and NODE: less by HOST_BRIDGE_FACTOR, assumed for NODE as
        well. SYS: the interconnect of the sockets too. Never more than the NIC's own rate.
        """
        distance = self.nic_distances[gpu][nic]
        rate = min(self.nics[nic].rate, self.pcie_rate)
        if distance >= Distance.PHB:
            rate = min(rate, self.pcie_rate * HOST_BRIDGE_FACTOR)
        if distance >= Distance.SYS:
            rate = min(rate, self.smp_rate * HOST_BRIDGE_FACTOR)
        return rate

    def network_rate(self, gpu: int) -> float:
        """Bit/s that a GPU gets from the NIC that serves it while its other GPUs send as well.

        0 without a NIC.
        """
        nic = self.nic_of_gpu[gpu]
        if nic is None:
            return 0.0
        return min(self.path_rate(gpu, nic), self.nics[nic].rate / len(self.gpus_of_nic(nic)))

    def gpu_rate(self, source: int, destination: int) -> float:
        """Bit/s between two GPUs of the server, one direction, when nothing else is moved.

        Over NVLinks if there are any, else over PCIe with the same penalties as to a NIC.
        Raises ValueError for a GPU and itself.
        """
        if source == destination:
            raise ValueError(f"{self.gpus[source].name} has no path to itself")
        links = self.nvlinks[source][destination]
        if links:
            return links * self.nvlink_rate
        distance = self.gpu_distances[source][destination]
        rate = self.pcie_rate
        if distance >= Distance.PHB:
            rate *= HOST_BRIDGE_FACTOR
        if distance >= Distance.SYS:
            rate = min(rate, self.smp_rate * HOST_BRIDGE_FACTOR)
        return rate


def _assign(nearest: list[list[int]], capacity: int) -> tuple[int | None, ...] | None:
    """A NIC for every GPU with at most ``capacity`` GPUs each, or None: Kuhn's matching."""
    served: dict[int, list[int]] = {}

    def place(gpu: int, tried: set[int]) -> bool:
        for nic in nearest[gpu]:
            if len(served.get(nic, [])) < capacity:
                served.setdefault(nic, []).append(gpu)
                return True
        for nic in nearest[gpu]:
            if nic in tried:
                continue
            tried.add(nic)
            for other in list(served[nic]):
                if place(other, tried):
                    served[nic].remove(other)
                    served[nic].append(gpu)
                    return True
        return False

    if not all(place(gpu, set()) for gpu in range(len(nearest))):
        return None
    nic_of = {gpu: nic for nic, gpus in served.items() for gpu in gpus}
    return tuple(nic_of[gpu] for gpu in range(len(nearest)))
