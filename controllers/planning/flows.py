"""Flows as columns, and the traffic patterns that make them.

A pattern says which GPU sends to which; every GPU sends at most one flow at its NIC's rate, divided
evenly over the queue pairs (QPs) of the connection. Patterns register by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from controllers.planning.fabric import ArrayFabric, FloatArray, IntArray

SOURCE_PORT_BASE = 49152
SOURCE_PORTS = 0x4000
"""UDP source ports of RoCEv2: the dynamic range (RFC 6335), as NICs choose them."""

_FIRST_QP = 2
"""QP numbers 0 and 1 are reserved for management (IBTA, 3.9.2)."""

_QP_SPAN = (1 << 24) - _FIRST_QP

Pattern = Callable[[ArrayFabric, int, np.random.Generator], IntArray]
"""(fabric, number of GPUs, random generator) -> the GPU that each GPU sends to."""


@dataclass(frozen=True)
class FlowArrays:
    """One row per QP: NICs by number, the NIC port that transmits, and what its packets carry.

    ``rates`` is what each would send at if only its NIC limited it, bit/s. ``connections`` numbers
    the pairs of NICs, from 0: the QPs of one connection have the same.
    """

    sources: IntArray
    destinations: IntArray
    nic_ports: IntArray
    source_ports: IntArray
    destination_qps: IntArray
    rates: FloatArray
    connections: IntArray

    def __len__(self) -> int:
        return len(self.sources)


def make_flows(
    fabric: ArrayFabric,
    pattern: str,
    *,
    gpus: int,
    qps: int = 1,
    port_per_qp: bool = False,
    seed: int = 0,
) -> FlowArrays:
    """The flows of a pattern among the first ``gpus`` GPUs, ``qps`` QPs per connection.

    All QPs of a connection share a UDP source port unless ``port_per_qp``. Raises ValueError for an
    unknown pattern (it lists the known ones), a number of GPUs that the fabric does not have, or a
    pattern that sends nothing.
    """
    if pattern not in PATTERNS:
        raise ValueError(f"pattern {pattern!r} is unknown; allowed: {', '.join(PATTERNS)}")
    if not 2 <= gpus <= fabric.nics:
        raise ValueError(f"{gpus} GPUs: {fabric.name} has {fabric.nics}, and it takes 2 to send")
    random = np.random.default_rng(seed)
    receivers = PATTERNS[pattern](fabric, gpus, random)
    senders = np.flatnonzero(receivers != np.arange(gpus))
    if not senders.size:
        raise ValueError(
            f"{pattern} of {gpus} GPUs stays within a server of {fabric.gpus_per_server}: "
            "allowed: more GPUs"
        )
    connections = np.repeat(np.arange(len(senders)), qps)
    sources = np.repeat(senders, qps)
    destinations = np.repeat(receivers[senders], qps)
    qp = np.tile(np.arange(qps), len(senders))
    ports = random.integers(SOURCE_PORTS, size=(len(senders), qps if port_per_qp else 1))
    first_qps = random.integers(_QP_SPAN, size=fabric.nics)
    return FlowArrays(
        sources=sources,
        destinations=destinations,
        nic_ports=(qp + random.integers(fabric.nic_ports, size=len(senders))[connections])
        % fabric.nic_ports,
        source_ports=SOURCE_PORT_BASE + np.broadcast_to(ports, (len(senders), qps)).ravel(),
        destination_qps=_FIRST_QP + (first_qps[destinations] + qp) % _QP_SPAN,
        rates=fabric.nic_rates[sources] * fabric.nic_ports / qps,
        connections=connections,
    )


def permutation(fabric: ArrayFabric, gpus: int, random: np.random.Generator) -> IntArray:
    """Every GPU sends to another and receives from another, drawn at random."""
    cycle = random.permutation(gpus)  # along one cycle, so that none sends to itself
    receivers = np.empty(gpus, dtype=np.int64)
    receivers[cycle] = np.roll(cycle, -1)
    return receivers


def ring(fabric: ArrayFabric, gpus: int, random: np.random.Generator) -> IntArray:
    """A ring all-reduce over all servers, one ring per rail: to the same rail, next server."""
    return _rings(fabric, gpus, np.arange(-(-gpus // fabric.gpus_per_server)))


def scattered_ring(fabric: ArrayFabric, gpus: int, random: np.random.Generator) -> IntArray:
    """The same ring over servers in random order, as in a fragmented cluster."""
    return _rings(fabric, gpus, random.permutation(-(-gpus // fabric.gpus_per_server)))


def all_reduce(fabric: ArrayFabric, gpus: int, random: np.random.Generator) -> IntArray:
    """Data-parallel rings of a job with pipeline stages on 8 neighbouring servers.

    Tensor parallelism stays in the server, and server s exchanges gradients with server s + 8
    (8 x 8 x data parallelism: the job of HPN's table 3).
    """
    stages = 8
    servers = np.arange(-(-gpus // fabric.gpus_per_server))
    if len(servers) < 2 * stages:
        stages = 1
    columns = [servers[stage::stages] for stage in range(stages)]
    return _rings(fabric, gpus, *columns)


def shift(fabric: ArrayFabric, gpus: int, random: np.random.Generator) -> IntArray:
    """GPU g sends to GPU g + half of them: everything crosses the highest tier that there is."""
    return (np.arange(gpus) + gpus // 2) % gpus


PATTERNS: dict[str, Pattern] = {
    "permutation": permutation,
    "ring": ring,
    "scattered-ring": scattered_ring,
    "all-reduce": all_reduce,
    "shift": shift,
}
"""All patterns by name."""


def _rings(fabric: ArrayFabric, gpus: int, *cycles: IntArray) -> IntArray:
    """Every GPU sends to the same rail of the next server of its cycle; a lone one to itself."""
    per_server = fabric.gpus_per_server
    receivers = np.arange(gpus)
    for cycle in cycles:
        for rail in range(per_server):
            ring = cycle * per_server + rail
            ring = ring[ring < gpus]  # the last server may be in part
            receivers[ring] = np.roll(ring, -1)
    return receivers
