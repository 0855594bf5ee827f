"""HPN: Alibaba's fabric of segments, dual-ToR NICs and forwarding planes (SIGCOMM'24).

A leaf is a ToR, a spine an aggregation switch. A segment has one set of ToRs per rail: two with
``dual_tor``, and each NIC has a port of half its rate to either (non-stacked dual-ToR, section 4).
With ``dual_plane`` (section 6) the first ToRs of all sets and half of the spines are plane 0 and
the others plane 1; no link joins them, so a packet stays in the plane its NIC port chose, up to the
cores and down again. ``spines`` and ``cores`` are totals over the planes, and rates follow from the
ratios, so the single-ToR and single-plane variants have the same capacity and may be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import Field

from testbed.topology.base import (
    Topology,
    TopologyError,
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

TOR_OVERSUBSCRIPTION = 128 * 200 / (60 * 400)
"""1.067: a ToR's 128 ports of 200G to GPUs over its 60 of 400G to aggregation (section 5)."""

CORE_OVERSUBSCRIPTION = 15.0
"""Between aggregation and core (section 7); what crosses pods is pipeline parallelism only."""


class HpnParameters(LatencyParameters):
    """Size, ratios and rates of an HPN fabric."""

    pods: int = Field(1, ge=1, le=32, description="pods, joined by cores")
    segments: int = Field(2, ge=1, le=15, description="segments in each pod")
    servers_per_segment: int = Field(2, ge=1, le=136, description="servers in each segment")
    gpus_per_server: int = Field(
        4, ge=1, le=16, description="GPUs, each with its own NIC, and as many rails"
    )
    dual_tor: bool = Field(
        True, description="NICs have two ports of half the rate, to two ToRs, instead of one"
    )
    dual_plane: bool | None = Field(
        None, description="the ToRs of a set are in planes of their own; default as dual_tor"
    )
    spines: int = Field(4, ge=1, le=120, description="aggregation switches of a pod, both planes")
    cores: int = Field(0, ge=0, le=120, description="core switches, both planes; 0 for one pod")
    link_rate: BitRate = Field(400e9, description="rate of a NIC, over all its ports")
    tor_oversubscription: Oversubscription = Field(
        TOR_OVERSUBSCRIPTION, description="a ToR's capacity to GPUs over that to spines"
    )
    core_oversubscription: Oversubscription = Field(
        CORE_OVERSUBSCRIPTION, description="a spine's capacity to ToRs over that to cores"
    )


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What follows from the parameters; spines and cores per plane."""

    tors: int
    planes: int
    spines: int
    cores: int

    @classmethod
    def of(cls, p: HpnParameters) -> _Sizes:
        planes = 2 if (p.dual_tor if p.dual_plane is None else p.dual_plane) else 1
        return cls(2 if p.dual_tor else 1, planes, p.spines // planes, p.cores // planes)


@register_topology
class Hpn(TopologyKind):
    """Segments of dual-ToR rails below one or two planes."""

    name = "hpn"
    parameters = HpnParameters

    def build(self, parameters: Any) -> Topology:
        """Return the fabric. Raises TopologyError for what no switches can be wired to."""
        p: HpnParameters = parameters
        sizes = _Sizes.of(p)
        _check(p, sizes)
        builder = TopologyBuilder(self.name, hop_latency=p.hop_latency, nic_latency=p.nic_latency)
        tors = _add_tors(builder, p, sizes)
        spines = _add_spines(builder, p, sizes)
        cores = [
            [
                builder.switch("core", tier=3, index=plane * sizes.cores + i, plane=plane)
                for i in range(sizes.cores)
            ]
            for plane in range(sizes.planes)
        ]
        _add_servers(builder, p, tors)
        down = p.servers_per_segment * p.link_rate / sizes.tors
        up = uplink_rate(down=down, links=sizes.spines, oversubscription=p.tor_oversubscription)
        for pod in range(p.pods):
            for plane in range(sizes.planes):
                ours = [tor for tor_set in tors[pod] for tor in tor_set[plane :: sizes.planes]]
                full_mesh(builder, ours, spines[pod][plane], up)
                if sizes.cores:
                    core_rate = uplink_rate(
                        down=len(ours) * up,
                        links=sizes.cores,
                        oversubscription=p.core_oversubscription,
                    )
                    full_mesh(builder, spines[pod][plane], cores[plane], core_rate)
        return builder.build()


def _add_spines(builder: TopologyBuilder, p: HpnParameters, sizes: _Sizes) -> list[list[list[str]]]:
    """Pod -> plane -> its aggregation switches."""
    return [
        [
            [
                builder.switch(
                    "spine",
                    tier=2,
                    index=pod * p.spines + plane * sizes.spines + i,
                    plane=plane,
                    group=f"pod{pod + 1}",
                )
                for i in range(sizes.spines)
            ]
            for plane in range(sizes.planes)
        ]
        for pod in range(p.pods)
    ]


def _add_tors(builder: TopologyBuilder, p: HpnParameters, sizes: _Sizes) -> list[list[list[str]]]:
    """Pod -> (segment, rail) in order -> the ToRs of the set."""
    sets = p.segments * p.gpus_per_server
    return [
        [
            [
                builder.switch(
                    "leaf",
                    tier=1,
                    index=(pod * sets + number) * sizes.tors + k,
                    plane=k % sizes.planes,
                    group=_segment(p, pod * p.segments + number // p.gpus_per_server),
                )
                for k in range(sizes.tors)
            ]
            for number in range(sets)
        ]
        for pod in range(p.pods)
    ]


def _add_servers(builder: TopologyBuilder, p: HpnParameters, tors: list[list[list[str]]]) -> None:
    port_rate = p.link_rate / len(tors[0][0])
    for index in range(p.pods * p.segments * p.servers_per_segment):
        segment = index // p.servers_per_segment
        server = builder.server(index, group=_segment(p, segment))
        pod, within = divmod(segment, p.segments)
        for gpu in range(p.gpus_per_server):
            builder.rank(server, gpu, tors[pod][within * p.gpus_per_server + gpu], rate=port_rate)


def _segment(p: HpnParameters, segment: int) -> str:
    """Name of a segment, counted over all pods."""
    pod, within = divmod(segment, p.segments)
    return f"pod{pod + 1}-segment{within + 1}"


def _check(p: HpnParameters, sizes: _Sizes) -> None:
    if sizes.planes > sizes.tors:
        raise TopologyError(
            "topology.dual_plane: true needs dual_tor: true; a NIC with one port is in one plane"
        )
    for field, count in (("spines", p.spines), ("cores", p.cores)):
        if count % sizes.planes:
            raise TopologyError(
                f"topology.{field}: {count} cannot be shared by 2 planes; allowed: even numbers"
            )
    if p.pods > 1:
        check_joined("cores", f"{p.pods} pods", p.cores)
    what = f"{p.servers_per_segment} servers and {sizes.spines} spines"
    check_ports("servers_per_segment", what, p.servers_per_segment + sizes.spines)
    tors = p.segments * p.gpus_per_server * sizes.tors
    rails = f"{p.segments} segments of {p.gpus_per_server} rails"
    check_ports("segments", f"{rails} and {sizes.cores} cores", tors // sizes.planes + sizes.cores)
    what = f"{p.pods} pods of {sizes.spines} spines per plane"
    check_ports("pods", what, p.pods * sizes.spines)
    check_leaves("segments", f"{p.pods} pods of {rails}", p.pods * tors)
