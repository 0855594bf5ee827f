"""Topology files of two simulators, as text: HPCC's for ns-3 and SimAI's for ASTRA-sim.

HPCC (alibaba-edu/High-Precision-Congestion-Control, simulation/mix/topology.txt)::

    NODES SWITCHES LINKS
    SWITCH_ID ...
    SOURCE DESTINATION RATE DELAY ERROR_RATE      one line per link

SimAI (aliyun/SimAI, astra-sim-alibabacloud/inputs/topo) puts GPUs into servers and lists a server's
NVSwitches before the other switches::

    NODES GPUS_PER_SERVER NVSWITCHES SWITCHES LINKS GPU_TYPE
    NVSWITCH_ID ... SWITCH_ID ...
    SOURCE DESTINATION RATE DELAY ERROR_RATE

Nodes count from 0; those that are no switches are hosts. Rates and delays are those of ns-3
("100Gbps", "0.0005ms"). Nothing here opens a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from testbed.topology.base import Interface, NodeKind, Topology, TopologyError
from testbed.units import parse_duration, parse_rate

NVLINK_RATE = "2880Gbps"
"""What SimAI's own files give an NVLink of a GPU to its NVSwitch."""

NVLINK_DELAY = "0.000025ms"
"""Likewise: 25 ns."""

GPU_TYPE = "H100"

NODE_LIMIT = 100_000
"""More than the largest fabric that these simulators are given."""

_LINK_FIELDS = "SOURCE DESTINATION RATE DELAY ERROR_RATE"
_SHOWN = 24


class TopologyFormat(StrEnum):
    """Formats of topology files."""

    HPCC = "hpcc"
    SIMAI = "simai"


@dataclass(frozen=True, slots=True)
class TextLink:
    """One link of a file: node numbers, ``rate`` in bit/s and ``delay`` in seconds one way."""

    line: int
    source: int
    destination: int
    rate: float
    delay: float


@dataclass(frozen=True, slots=True)
class TextFabric:
    """What a file says, without its NVLinks; ``gpus_per_server`` is 0 where it does not say."""

    hosts: tuple[int, ...]
    switches: tuple[int, ...]
    links: tuple[TextLink, ...]
    gpus_per_server: int


def parse_topology(text: str) -> TextFabric:
    """Read either format; the first line tells which. Raises TopologyError: line, what is wrong."""
    lines = [
        (number, line.split()) for number, line in enumerate(text.splitlines(), 1) if line.split()
    ]
    if not lines:
        raise TopologyError("the file is empty")
    number, header = lines[0]
    nodes, gpus_per_server, nv_count, switch_count, link_count = _header(number, header)
    rest = iter(lines[1:])
    ids = _switch_ids(rest, nv_count + switch_count, nodes, number)
    nv_switches, switches = frozenset(ids[:nv_count]), ids[nv_count:]
    inside = frozenset(ids)
    links = []
    count = 0
    for number, fields in rest:
        count += 1
        if count > link_count:
            raise TopologyError(f"line {number}: the first line announces {link_count} links only")
        link = _link(number, fields, nodes)
        ends = {link.source, link.destination}
        if not ends & nv_switches:
            links.append(link)
        elif ends <= inside:
            raise TopologyError(f"line {number}: an NVSwitch is linked to no host")
    if count < link_count:
        raise TopologyError(f"{count} links; the first line announces {link_count}")
    hosts = tuple(node for node in range(nodes) if node not in inside)
    return TextFabric(hosts, tuple(switches), tuple(links), gpus_per_server)


def export_topology(topology: Topology, format: TopologyFormat | str) -> str:
    """The topology as a file's text. Raises TopologyError for what the format cannot say.

    Delays are chosen such that every path's sum is the topology's latency.
    """
    format = TopologyFormat(format)
    servers = _gpus_by_server(topology) if format is TopologyFormat.SIMAI else []
    ids = {switch.name: 0 for switch in sorted(topology.switches, key=lambda node: node.tier)}
    first = len(topology.ranks) + len(servers)
    for position, name in enumerate(ids):
        ids[name] = first + position
    between = topology.hop_latency
    access = (topology.hop_latency + topology.nic_latency) / 2
    links = []
    for server, gpus in enumerate(servers):
        nv_switch = len(topology.ranks) + server
        links += [f"{gpu} {nv_switch} {NVLINK_RATE} {NVLINK_DELAY} 0" for gpu in gpus]
    for rank in topology.ranks:
        for port in topology.nic_ports(rank.rank):
            links.append(_rendered(topology, port, rank.rank, ids[port.peer_node], access))
    for interface in topology.interfaces.values():
        ends = [topology.nodes[node] for node in (interface.node, interface.peer_node)]
        if ends[0].kind is NodeKind.SWITCH and 0 < ends[0].tier < ends[1].tier:
            lower, upper = (ids[end.name] for end in ends)
            links.append(_rendered(topology, interface, lower, upper, between))
    nodes = first + len(ids)
    if format is TopologyFormat.SIMAI:
        per_server = len(servers[0])
        header = f"{nodes} {per_server} {len(servers)} {len(ids)} {len(links)} {GPU_TYPE}"
    else:
        header = f"{nodes} {len(ids)} {len(links)}"
    listed = " ".join(str(node) for node in range(len(topology.ranks), nodes))
    return "\n".join([header, listed, *links]) + "\n"


def _header(number: int, fields: list[str]) -> tuple[int, int, int, int, int]:
    """Nodes, GPUs per server (0: not said), NVSwitches, switches, links."""
    if len(fields) == 3:
        nodes, switches, links = (_count(number, field) for field in fields)
        counts = (nodes, 0, 0, switches, links)
    elif len(fields) in (6, 7):  # the seventh, GPUs per node once more, is in newer files
        nodes, per_server, nv, switches, links = (_count(number, field) for field in fields[:5])
        counts = (nodes, per_server, nv, switches, links)
    else:
        raise TopologyError(
            f"line {number}: {len(fields)} fields; allowed: NODES SWITCHES LINKS (HPCC) or "
            "NODES GPUS_PER_SERVER NVSWITCHES SWITCHES LINKS GPU_TYPE (SimAI)"
        )
    if counts[0] > NODE_LIMIT:
        raise TopologyError(f"line {number}: {counts[0]} nodes; allowed: at most {NODE_LIMIT}")
    if counts[2] + counts[3] >= counts[0]:
        raise TopologyError(f"line {number}: {counts[0]} nodes leave no hosts beside the switches")
    return counts


def _switch_ids(
    lines: Iterator[tuple[int, list[str]]], wanted: int, nodes: int, header: int
) -> list[int]:
    """The announced numbers of switches, which may go on over several lines."""
    ids: list[int] = []
    seen: set[int] = set()
    while len(ids) < wanted:
        number, fields = next(lines, (0, []))
        if not fields:
            raise TopologyError(f"line {header}: announces {wanted} switches; {len(ids)} follow")
        for field in fields:
            node = _node(number, field, nodes)
            if node in seen:
                raise TopologyError(f"line {number}: switch {node} is listed twice")
            seen.add(node)
            ids.append(node)
        if len(ids) > wanted:
            raise TopologyError(f"line {number}: the first line announces {wanted} switches only")
    return ids


def _link(number: int, fields: list[str], nodes: int) -> TextLink:
    if len(fields) != 5:
        raise TopologyError(f"line {number}: {len(fields)} fields; allowed: {_LINK_FIELDS}")
    source, destination = (_node(number, field, nodes) for field in fields[:2])
    try:
        rate, delay, error = parse_rate(fields[2]), parse_duration(fields[3]), float(fields[4])
    except ValueError as wrong:
        raise TopologyError(f"line {number}: {wrong}") from wrong
    if error != 0:
        raise TopologyError(
            f"line {number}: error rate {fields[4][:_SHOWN]}; allowed: 0, losses are a scenario's "
            "faults"
        )
    if source == destination:
        raise TopologyError(f"line {number}: links node {source} to itself")
    return TextLink(number, source, destination, rate, delay)


def _node(number: int, field: str, nodes: int) -> int:
    node = _count(number, field)
    if node >= nodes:
        raise TopologyError(f"line {number}: there is no node {node}; allowed: 0 to {nodes - 1}")
    return node


def _count(number: int, field: str) -> int:
    if not (field.isascii() and field.isdigit() and len(field) < 10):
        raise TopologyError(f"line {number}: {field[:_SHOWN]!r} is no number of nodes or links")
    return int(field)


def _gpus_by_server(topology: Topology) -> list[list[int]]:
    """The GPUs of each server, equally many and in order, as SimAI wants them."""
    if len(topology.ranks) > len(topology.gpu_ranks):
        raise TopologyError("SimAI's format has GPUs only, no storage, no front-end NICs")
    servers: dict[str, list[int]] = {}
    for rank in topology.gpu_ranks:
        servers.setdefault(rank.server, []).append(rank.rank)
    found = list(servers.values())
    size = len(found[0]) if found else 0
    if found != [list(range(i * size, (i + 1) * size)) for i in range(len(found))] or not found:
        raise TopologyError("SimAI's format wants equally many GPUs in every server")
    return found


def _rendered(
    topology: Topology, interface: Interface, source: int, destination: int, delay: float
) -> str:
    if topology.interfaces[interface.peer].rate != interface.rate:
        raise TopologyError(f"link {interface.name} has two rates; a line of these formats has one")
    rate = f"{interface.rate / 1e9:.15g}Gbps"
    return f"{source} {destination} {rate} {delay * 1e9:.12g}ns 0"
