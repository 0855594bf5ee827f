"""How long a collective should take on a scenario's fabric, by the pipelined alpha-beta model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from testbed.calibration import nic_rate
from testbed.topology import Topology
from traffic.collectives.communicators import Communicator
from traffic.collectives.cost import CostModel, estimate
from traffic.nvlink import NvlinkSettings


def model_time(
    communicators: Sequence[Communicator],
    topology: Topology,
    *,
    path_mtu: int,
    nvlink: NvlinkSettings | None = None,
) -> float | None:
    """Seconds of emulated time until the last communicator is done; None where it cannot be told.

    Alpha is the fabric's latency between the two ranks of each message; NVLink is between ranks
    that share a server in the fabric. Queues in switches are no part of the model, nor is a NIC
    that several communicators share, nor NICs of different rates.
    """
    ranks = [rank for communicator in communicators for rank in communicator.ranks]
    rates = {nic_rate(topology, rank) for rank in ranks}
    if len(set(ranks)) < len(ranks) or len(rates) != 1:
        return None
    model = CostModel(
        latency=topology.one_way_latency(1),
        rate=rates.pop(),
        path_mtu=path_mtu,
        nvlink=nvlink or NvlinkSettings(),
    )
    return max(_estimate(communicator, topology, model) for communicator in communicators)


def _estimate(communicator: Communicator, topology: Topology, model: CostModel) -> float:
    ranks = communicator.ranks

    @cache
    def latency(source: int, destination: int) -> float:
        return topology.one_way_latency(topology.switch_hops(ranks[source], ranks[destination]))

    def share_server(source: int, destination: int) -> bool:
        return topology.ranks[ranks[source]].server == topology.ranks[ranks[destination]].server

    return estimate(communicator.schedule, model, latency, share_server)
