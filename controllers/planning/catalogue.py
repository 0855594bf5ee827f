"""Fabrics of the published sizes, as arrays; families of them with any size are functions.

Each is built in whole units (racks, zones, segments) and only as large as the GPUs need it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from controllers.planning.fabric import ArrayFabric, FabricBuilder

GPUS_PER_SERVER = 8
RATE = 400e9
"""Rate of a link and of a NIC with one port, bit/s."""

PORT_LIMIT = 256
"""Ports of one switch: 256 of 400 Gb/s are 102.4 Tb/s, the largest single chip on the market."""


@dataclass(frozen=True)
class FullSize:
    """A fabric that can be planned by name, for ``limit`` GPUs at most."""

    description: str
    limit: int
    build: Callable[[int], ArrayFabric]


def create_fabric(name: str, gpus: int) -> ArrayFabric:
    """The fabric of that name for so many GPUs. Raises ValueError; the message says what fits."""
    full_size = CATALOGUE.get(name)
    if full_size is None:
        raise ValueError(f"topology {name!r} has no full size; allowed: {', '.join(CATALOGUE)}")
    if not 2 <= gpus <= full_size.limit:
        raise ValueError(f"{gpus} GPUs: {name} takes 2 to {full_size.limit}")
    return full_size.build(gpus)


def leaf_spine(
    name: str,
    *,
    leaves: int,
    spines: int,
    gpus_per_leaf: int,
    gpus_per_server: int = GPUS_PER_SERVER,
    rate: float = RATE,
) -> ArrayFabric:
    """Two tiers: every leaf wired to every spine once, whole servers below a leaf."""
    builder = FabricBuilder(name, gpus_per_server=gpus_per_server)
    bottom = builder.switches(leaves, tier=1)
    builder.wire_all(bottom, builder.switches(spines, tier=2), rate=rate)
    return builder.build(np.repeat(bottom, gpus_per_leaf)[:, None], nic_rate=rate)


def three_tier(
    name: str,
    *,
    zones: int,
    leaves: int,
    spines: int,
    cores: int,
    gpus_per_leaf: int,
    gpus_per_server: int = GPUS_PER_SERVER,
    rate: float = RATE,
) -> ArrayFabric:
    """Zones of ``leaves`` x ``spines``, and ``cores`` wired to every spine of every zone."""
    builder = FabricBuilder(name, gpus_per_server=gpus_per_server)
    bottom = [builder.switches(leaves, tier=1) for _ in range(zones)]
    middle = [builder.switches(spines, tier=2) for _ in range(zones)]
    top = builder.switches(cores, tier=3)
    for zone_leaves, zone_spines in zip(bottom, middle, strict=True):
        builder.wire_all(zone_leaves, zone_spines, rate=rate)
    for zone_spines in middle:
        builder.wire_all(zone_spines, top, rate=rate)
    nic_leaves = np.repeat(np.concatenate(bottom), gpus_per_leaf)
    return builder.build(nic_leaves[:, None], nic_rate=rate)


def rail_optimised(
    name: str,
    *,
    units: int,
    servers_per_unit: int,
    spines: int,
    rails: int = GPUS_PER_SERVER,
    rate: float = RATE,
) -> ArrayFabric:
    """Units with a leaf per rail: NIC k of every server of the unit is wired to leaf k."""
    builder = FabricBuilder(name, gpus_per_server=rails)
    leaves = builder.switches(units * rails, tier=1)
    builder.wire_all(leaves, builder.switches(spines, tier=2), rate=rate)
    by_unit = leaves.reshape(units, 1, rails)
    nic_leaves = np.broadcast_to(by_unit, (units, servers_per_unit, rails)).reshape(-1, 1)
    return builder.build(nic_leaves, nic_rate=rate)


def hpn(
    name: str,
    *,
    pods: int = 1,
    segments: int,
    servers_per_segment: int,
    spines: int,
    cores: int = 0,
    rails: int = GPUS_PER_SERVER,
    planes: int = 2,
    rate: float = RATE,
) -> ArrayFabric:
    """HPN: per segment and rail two ToRs, which each NIC joins with a port of half its rate.

    ``spines`` of each pod and ``cores`` are per plane. With two planes the first ToR of a pair is
    in one and the second in the other; with one, both are wired to the same spines.
    """
    pair = 2
    builder = FabricBuilder(name, gpus_per_server=rails)
    tors = builder.switches(pods * segments * rails * pair, tier=1).reshape(pods, -1)
    middle = [[builder.switches(spines, tier=2) for _ in range(planes)] for _ in range(pods)]
    top = [builder.switches(cores, tier=3) for _ in range(planes)]
    for pod in range(pods):
        for plane in range(planes):
            builder.wire_all(tors[pod, plane::planes], middle[pod][plane], rate=rate)
            builder.wire_all(middle[pod][plane], top[plane], rate=rate)
    by_segment = tors.reshape(pods * segments, 1, rails, pair)
    shape = (pods * segments, servers_per_segment, rails, pair)
    nic_leaves = np.broadcast_to(by_segment, shape).reshape(-1, pair)
    return builder.build(nic_leaves, nic_rate=rate / pair)


_RACK = 16
"""GPUs below one of Meta's leaves (RTSW): 2 servers; it has 18 uplinks, 1:1.125."""

_ZONE = 192 * _RACK
"""GPUs of a pod of Llama 3's cluster; 8 such pods are joined by a third tier at 1:7."""

_SEGMENT = 1024
"""GPUs of a segment of HPN 7.0 without its backups."""

_POD = 15 * _SEGMENT

_RAIL_UNIT = 32 * GPUS_PER_SERVER
"""GPUs of a scalable unit of 32 servers, as in a DGX SuperPOD."""

_SPECTRUM_UNIT = 64 * GPUS_PER_SERVER
"""GPUs of a unit of 64 servers: leaves with 64 ports down and 64 up, as SimAI's Spectrum-X."""


def _meta_ai_zone(gpus: int) -> ArrayFabric:
    return leaf_spine("meta-ai-zone", leaves=-(-gpus // _RACK), spines=18, gpus_per_leaf=_RACK)


def _meta_dc(gpus: int) -> ArrayFabric:
    # 192 ports down and 28 up on each spine are 6.9:1.
    return three_tier(
        "meta-dc", zones=-(-gpus // _ZONE), leaves=192, spines=18, cores=28, gpus_per_leaf=_RACK
    )


def _hpn7_pod(gpus: int) -> ArrayFabric:
    servers = _SEGMENT // GPUS_PER_SERVER
    return hpn("hpn7-pod", segments=-(-gpus // _SEGMENT), servers_per_segment=servers, spines=60)


def _hpn7(gpus: int) -> ArrayFabric:
    # 120 ports down and 8 up on each spine are 15:1; a core of 128 ports joins 2 pods' 120 spines.
    return hpn(
        "hpn7",
        pods=-(-gpus // _POD),
        segments=15,
        servers_per_segment=_SEGMENT // GPUS_PER_SERVER,
        spines=60,
        cores=8,
    )


def _rail_optimised(gpus: int) -> ArrayFabric:
    units = -(-gpus // _RAIL_UNIT)
    return rail_optimised("rail-optimised", units=units, servers_per_unit=32, spines=32)


def _spectrum_x_like(gpus: int) -> ArrayFabric:
    units = -(-gpus // _SPECTRUM_UNIT)
    return rail_optimised("spectrum-x-like", units=units, servers_per_unit=64, spines=64)


CATALOGUE: dict[str, FullSize] = {
    "meta-dc": FullSize("Meta: zones of 192 racks, third tier 1:7", 8 * _ZONE, _meta_dc),
    "meta-ai-zone": FullSize(
        "Meta: racks of 16 GPUs, 18 uplinks", PORT_LIMIT * _RACK, _meta_ai_zone
    ),
    "hpn7-pod": FullSize("HPN 7.0: dual-ToR, dual-plane", _POD, _hpn7_pod),
    "hpn7": FullSize("HPN 7.0: pods below cores at 15:1", 2 * _POD, _hpn7),
    "rail-optimised": FullSize(
        "units of 32 servers, a leaf per rail",
        PORT_LIMIT // GPUS_PER_SERVER * _RAIL_UNIT,
        _rail_optimised,
    ),
    "spectrum-x-like": FullSize(
        "units of 64 servers, a leaf per rail",
        PORT_LIMIT // GPUS_PER_SERVER * _SPECTRUM_UNIT,
        _spectrum_x_like,
    ),
}
"""All fabrics by name; the first is the default."""
