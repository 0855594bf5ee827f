"""Reads what ``nvidia-smi topo -m`` prints, as people paste it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from traffic.servers.model import (
    NVLINK_RATE,
    PCIE_GEN4_X16,
    SMP_RATE_SKYLAKE,
    Distance,
    Gpu,
    Nic,
    ServerModel,
)

DEFAULT_NIC_RATE = 400e9
"""Bit/s; nvidia-smi does not print the NICs' rate."""

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU = re.compile(r"^GPU([0-9]{1,3})$")
_NVLINKS = re.compile(r"^NV([0-9]{1,3})$")
_NUMA_NODE = re.compile(r"^[0-9]{1,4}$")
_NIC_LEGEND = re.compile(r"^\s*(NIC[0-9]+)\s*:\s*(\S+)\s*$")
_AFFINITY_COLUMNS = ("CPU", "NUMA", "GPU")
"""First words of the columns after the devices: CPU Affinity, NUMA Affinity, GPU NUMA ID."""

_RELATIONS = {
    "X": Distance.X,
    "PIX": Distance.PIX,
    "PXB": Distance.PXB,
    "PHB": Distance.PHB,
    "NODE": Distance.NODE,
    "SYS": Distance.SYS,
    "SOC": Distance.SYS,  # older versions of nvidia-smi
}
_ALLOWED = "X, NV#, PIX, PXB, PHB, NODE, SYS"

_Cell = tuple[Distance, int]
"""Distance and number of NVLinks."""


class TopologyMatrixError(ValueError):
    """The text is no ``nvidia-smi topo -m`` matrix; one line that names row and column."""


def parse_topology_matrix(
    text: str,
    *,
    name: str = "server",
    nic_rate: float = DEFAULT_NIC_RATE,
    nic_rates: Mapping[str, float] | None = None,
    nvlink_rate: float = NVLINK_RATE,
    pcie_rate: float = PCIE_GEN4_X16,
    smp_rate: float = SMP_RATE_SKYLAKE,
) -> ServerModel:
    """The server behind a pasted matrix; rates, in bit/s, are not in it and are arguments.

    ``nic_rates`` overrides ``nic_rate`` by RDMA device name. Lines around the matrix are ignored,
    escape codes removed; rows of NICs may be absent. Raises TopologyMatrixError.
    """
    lines = _ANSI.sub("", text).replace("\r", "").split("\n")
    start, devices = _header(lines)
    rows, tails = _rows(lines[start + 1 :], devices)
    gpus = [device for device in devices if _GPU.match(device)]
    nics = [device for device in devices if not _GPU.match(device)]
    for gpu in gpus:
        if gpu not in rows:
            raise TopologyMatrixError(f"row {gpu} is missing; column {gpu} is there")
    _check_symmetry(rows)
    legend = {m[1]: m[2] for m in map(_NIC_LEGEND.match, lines) if m}
    names = [legend.get(nic, nic) for nic in nics]
    unknown = sorted(set(nic_rates or {}) - set(names))
    if unknown:
        raise TopologyMatrixError(
            f"a rate is given for NIC {unknown[0]!r}; the matrix has: {', '.join(names) or 'none'}"
        )
    rates = dict.fromkeys(names, nic_rate) | dict(nic_rates or {})
    return ServerModel(
        name=name,
        gpus=tuple(_gpu(gpu, tails[gpu]) for gpu in gpus),
        nics=tuple(Nic(i, nic, rates[nic]) for i, nic in enumerate(names)),
        gpu_distances=tuple(tuple(rows[a][b][0] for b in gpus) for a in gpus),
        nic_distances=tuple(tuple(rows[a][b][0] for b in nics) for a in gpus),
        nvlinks=tuple(tuple(rows[a][b][1] for b in gpus) for a in gpus),
        nvlink_rate=nvlink_rate,
        pcie_rate=pcie_rate,
        smp_rate=smp_rate,
    )


def _header(lines: list[str]) -> tuple[int, list[str]]:
    """Index of the header line and the devices that it names."""
    for index, line in enumerate(lines):
        words = line.split()
        is_row = any(word in _RELATIONS or _NVLINKS.match(word) for word in words)
        if not words or is_row or not _GPU.match(words[0]):
            continue
        devices: list[str] = []
        for word in words:
            if word in _AFFINITY_COLUMNS:
                break
            if word in devices:
                raise TopologyMatrixError(f"header: column {word} is there twice")
            devices.append(word)
        return index, devices
    raise TopologyMatrixError("no header line that begins with the column GPU0")


def _rows(
    lines: list[str], devices: list[str]
) -> tuple[dict[str, dict[str, _Cell]], dict[str, list[str]]]:
    """By row: the cells by column, and the words after them."""
    rows: dict[str, dict[str, _Cell]] = {}
    tails: dict[str, list[str]] = {}
    for line in lines:
        words = line.split()
        if words and words[0].startswith("Legend"):
            break
        if not words or words[0] not in devices:
            if words and _GPU.match(words[0]):
                raise TopologyMatrixError(f"row {words[0]}: the header has no such column")
            continue
        row, cells = words[0], words[1:]
        if row in rows:
            raise TopologyMatrixError(f"row {row} is there twice")
        if len(cells) < len(devices):
            raise TopologyMatrixError(
                f"row {row}: {len(cells)} cells, the header has {len(devices)} devices; "
                f"column {devices[len(cells)]} is missing"
            )
        rows[row] = {c: _cell(row, c, word) for c, word in zip(devices, cells, strict=False)}
        tails[row] = cells[len(devices) :]
    return rows, tails


def _cell(row: str, column: str, word: str) -> _Cell:
    match = _NVLINKS.match(word)
    if match:
        distance, links = Distance.NV, int(match.group(1))
        legal = links > 0 and row != column and bool(_GPU.match(row)) and bool(_GPU.match(column))
    else:
        found = _RELATIONS.get(word)
        legal = found is not None and (found is Distance.X) == (row == column)
        distance, links = found or Distance.X, 0
    if not legal:
        allowed = "X" if row == column else _ALLOWED.removeprefix("X, ")
        raise TopologyMatrixError(f"row {row}, column {column}: {word!r}; allowed: {allowed}")
    return distance, links


def _check_symmetry(rows: dict[str, dict[str, _Cell]]) -> None:
    for row, cells in rows.items():
        for column, cell in cells.items():
            if column in rows and rows[column][row] != cell:
                raise TopologyMatrixError(
                    f"row {row}, column {column}: {_show(cell)}, but row {column}, "
                    f"column {row}: {_show(rows[column][row])}"
                )


def _show(cell: _Cell) -> str:
    distance, links = cell
    return f"NV{links}" if links else distance.name


def _gpu(name: str, tail: list[str]) -> Gpu:
    """A GPU; a NUMA affinity that is no single node, as "0-1" or "N/A", counts as unknown."""
    cpus = tail[0] if tail and tail[0] != "N/A" else None
    node = int(tail[1]) if len(tail) > 1 and _NUMA_NODE.match(tail[1]) else None
    return Gpu(int(name.removeprefix("GPU")), cpus, node)
