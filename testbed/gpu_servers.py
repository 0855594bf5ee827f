"""What the servers of a scenario have inside: which NIC serves which GPU, and what that costs. Pure
but for the file that nvidia-smi's output is in.

Between wire and GPU the slower of link, NIC and PCIe path counts, in either direction: a NIC that
cannot get rid of what it receives holds its switch back (IEEE 802.1Qbb), so that what has to wait
does so in the switch's queue. The links of NICs get that rate. GPUs that share a NIC have an equal
share of it each, as virtual functions with a rate limit have (SR-IOV, ip link set vf max_tx_rate).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from testbed.plain_file import PlainFileError, read_plain_file
from testbed.schema import Server
from testbed.topology import Rank, Topology
from testbed.topology.base import RankRole
from traffic.nvlink import NvlinkSettings
from traffic.servers import (
    ServerModel,
    TopologyMatrixError,
    nvlink_settings,
    parse_topology_matrix,
    server_preset,
)

FILE_SIZE_LIMIT = 1024 * 1024
"""Bytes; a matrix of 16 GPUs has 4 KB."""


class ServerError(ValueError):
    """The servers cannot be as asked for; the message names field, value and what is allowed."""


def server_model(server: Server) -> ServerModel:
    """The server that the section describes. Raises ServerError."""
    if server.preset is not None:
        model = server_preset(server.preset)
    else:
        assert server.nvidia_smi is not None
        path = server.nvidia_smi
        try:
            text = read_plain_file(Path(path), FILE_SIZE_LIMIT).decode("utf-8", errors="replace")
            model = parse_topology_matrix(text, name=Path(path).name)
        except (TopologyMatrixError, PlainFileError) as error:
            raise ServerError(f"server.nvidia_smi: {path}: {error}") from error
    given = {
        name: rate
        for name in ("pcie_rate", "smp_rate", "nvlink_rate")
        if (rate := getattr(server, name)) is not None
    }
    nics = model.nics
    if server.nic_rate is not None:
        nics = tuple(replace(nic, rate=server.nic_rate) for nic in nics)
    return replace(model, nics=nics, **given)


def with_servers(topology: Topology, model: ServerModel) -> Topology:
    """The topology with the NICs' links at the rates that the server's GPUs get.

    Raises ServerError if the numbers of GPUs differ, or a GPU has no NIC.
    """
    _check(topology, model)
    interfaces = dict(topology.interfaces)
    for rank in topology.gpu_ranks:
        own = topology.nic_ports(rank.rank)
        usable = gpu_rate(model, rank.local_rank, sum(port.rate for port in own))
        for port in own:
            rate = min(port.rate, usable / len(own))
            for name in (port.name, port.peer):
                interfaces[name] = replace(interfaces[name], rate=rate)
    if interfaces == topology.interfaces:
        return topology
    return replace(topology, interfaces=interfaces)


def gpu_rate(model: ServerModel, gpu: int, link_rate: float) -> float:
    """Bit/s between a GPU and the wire, whose links have ``link_rate`` in total for its NIC."""
    nic = model.nic_of_gpu[gpu]
    assert nic is not None
    shared = min(link_rate, model.nics[nic].rate) / len(model.gpus_of_nic(nic))
    return min(shared, model.path_rate(gpu, nic))


def local_links(server: Server | None) -> NvlinkSettings:
    """The NVLink, or PCIe, between the GPUs of a server. Raises ServerError."""
    if server is None:
        return NvlinkSettings()
    return nvlink_settings(server_model(server), latency=server.nvlink_latency)


def _check(topology: Topology, model: ServerModel) -> None:
    by_server: dict[str, list[Rank]] = {}
    for rank in topology.ranks_of(RankRole.GPU):
        by_server.setdefault(rank.server, []).append(rank)
    for name, ranks in by_server.items():
        if len(ranks) != len(model.gpus):
            raise ServerError(
                f"server: {model.name} has {len(model.gpus)} GPUs, but {name} of {topology.name} "
                f"has {len(ranks)}; allowed: topology.gpus_per_server {len(model.gpus)}, "
                "or another server"
            )
    if not model.nics:
        raise ServerError(f"server: {model.name} has no NIC; allowed: servers with one at least")
