"""A topology from a file of HPCC's or SimAI's, see ``text_format``.

The file must describe a layered fabric. A switch's tier follows from its distance to the hosts, and
every link must join neighbouring tiers, so that up/down routing has a meaning. Hosts become GPUs in
the order of their numbers; a host with two links has a NIC with two ports. Switches that no link
joins, however long the way, are in different planes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import Any

from pydantic import Field

from testbed.plain_file import PlainFileError, read_plain_file
from testbed.topology.base import (
    Topology,
    TopologyError,
    TopologyKind,
    TopologyParameters,
    register_topology,
)
from testbed.topology.builder import TopologyBuilder
from testbed.topology.text_format import TextFabric, TextLink, parse_topology

FILE_SIZE_LIMIT = 8 * 1024 * 1024
"""Bytes; SimAI's 15,360 GPUs need 2 MB."""

STEMS = {1: "leaf", 2: "spine", 3: "core"}
"""Names of the tiers."""

NIC_PORTS = 2
"""More ports than this has no NIC of the field."""


class FileParameters(TopologyParameters):
    """Which file, and what it does not say."""

    path: str = Field(
        min_length=1, description="an HPCC or SimAI topology file, from the current directory"
    )
    gpus_per_server: int | None = Field(
        None, ge=1, le=16, description="default: what the file says, else 1"
    )


@register_topology
class FileTopology(TopologyKind):
    """Whatever layered fabric a file describes."""

    name = "file"
    parameters = FileParameters

    def build(self, parameters: Any) -> Topology:
        """Read the file and return its fabric. Raises TopologyError: file, line, what is wrong."""
        p: FileParameters = parameters
        try:
            fabric = parse_topology(_read(p.path))
            per_server = p.gpus_per_server or fabric.gpus_per_server or 1
            return _Import(fabric, Path(p.path).stem, per_server).build()
        except TopologyError as error:
            message = str(error).removeprefix("topology: ")
            raise TopologyError(f"topology.path: {p.path}: {message}") from error


def _read(path: str) -> str:
    try:
        return read_plain_file(Path(path), FILE_SIZE_LIMIT).decode("ascii")
    except UnicodeDecodeError as error:
        raise TopologyError(f"is not ASCII text (byte {error.start})") from error
    except PlainFileError as error:
        raise TopologyError(str(error)) from error


class _Import:
    """Turns what a file says into a Topology, checking that it is a layered fabric."""

    def __init__(self, fabric: TextFabric, name: str, gpus_per_server: int) -> None:
        self._fabric = fabric
        self._name = name
        self._gpus_per_server = gpus_per_server
        hosts = set(fabric.hosts)
        self._access: dict[int, list[tuple[int, TextLink]]] = {host: [] for host in fabric.hosts}
        self._inside: list[TextLink] = []
        for link in fabric.links:
            ends = {link.source, link.destination}
            if ends <= hosts:
                raise TopologyError(f"line {link.line}: links two hosts; allowed: host to switch")
            if ends & hosts:
                (host,) = ends & hosts
                (switch,) = ends - hosts
                self._access[host].append((switch, link))
            else:
                self._inside.append(link)
        self._tiers = self._find_tiers()
        self._planes = self._find_planes()

    def build(self) -> Topology:
        """Return the topology. Raises TopologyError."""
        hop_latency, nic_latency = self._latencies()
        builder = TopologyBuilder(self._name, hop_latency=hop_latency, nic_latency=nic_latency)
        names = {}
        for tier, stem in STEMS.items():
            members = [node for node in self._fabric.switches if self._tiers[node] == tier]
            for index, node in enumerate(members):
                names[node] = builder.switch(stem, tier=tier, index=index, plane=self._planes[node])
        self._add_hosts(builder, names)
        seen: set[frozenset[int]] = set()
        for link in self._inside:
            pair = frozenset((link.source, link.destination))
            if pair in seen:
                raise TopologyError(
                    f"line {link.line}: links {link.source} and {link.destination} a second time; "
                    "allowed: one link of the sum of their rates"
                )
            seen.add(pair)
            lower, upper = sorted(pair, key=self._tiers.__getitem__)
            builder.link(names[lower], names[upper], up_rate=link.rate, down_rate=link.rate)
        return builder.build()

    def _add_hosts(self, builder: TopologyBuilder, names: dict[int, str]) -> None:
        hosts = self._fabric.hosts
        if len(hosts) % self._gpus_per_server:
            raise TopologyError(
                f"{len(hosts)} hosts are no whole number of servers with "
                f"{self._gpus_per_server} GPUs"
            )
        server = ""
        for position, host in enumerate(hosts):
            links = self._access[host]
            if not 1 <= len(links) <= NIC_PORTS:
                raise TopologyError(
                    f"host {host} has {len(links)} links to switches; allowed: 1 or {NIC_PORTS}"
                )
            if len({switch for switch, _ in links}) < len(links):
                raise TopologyError(
                    f"line {links[1][1].line}: links host {host} to the same switch a second time"
                )
            if len({link.rate for _, link in links}) > 1:
                raise TopologyError(
                    f"line {links[1][1].line}: the ports of host {host} differ in rate"
                )
            number, local_rank = divmod(position, self._gpus_per_server)
            if local_rank == 0:
                server = builder.server(number)
            builder.rank(
                server, local_rank, [names[switch] for switch, _ in links], rate=links[0][1].rate
            )

    def _find_tiers(self) -> dict[int, int]:
        """Switch -> tier, 1 if a host hangs on it, else one above the lowest neighbour."""
        neighbours = defaultdict(list)
        for link in self._inside:
            neighbours[link.source].append(link.destination)
            neighbours[link.destination].append(link.source)
        tiers = {switch: 1 for links in self._access.values() for switch, _ in links}
        frontier = list(tiers)
        while frontier:
            above = []
            for node in frontier:
                for neighbour in neighbours[node]:
                    if neighbour not in tiers:
                        tiers[neighbour] = tiers[node] + 1
                        above.append(neighbour)
            frontier = above
        for switch in self._fabric.switches:
            if switch not in tiers:
                raise TopologyError(f"no path leads from switch {switch} to any host")
            if tiers[switch] not in STEMS:
                raise TopologyError(
                    f"switch {switch} is in tier {tiers[switch]}; allowed: 1 to {len(STEMS)}"
                )
        for link in self._inside:
            ends = sorted((tiers[link.source], tiers[link.destination]))
            if ends[1] - ends[0] != 1:
                raise TopologyError(
                    f"line {link.line}: links two switches of tiers {ends[0]} and {ends[1]}; "
                    "allowed: neighbouring tiers, a layered fabric"
                )
        return tiers

    def _find_planes(self) -> dict[int, int]:
        """Switch -> plane: switches that links join, directly or not, are in one."""
        planes = {node: node for node in self._fabric.switches}

        def root(node: int) -> int:
            while planes[node] != node:
                planes[node] = planes[planes[node]]
                node = planes[node]
            return node

        for link in self._inside:
            first, second = sorted((root(link.source), root(link.destination)))
            planes[second] = first
        numbers: dict[int, int] = {}
        return {
            node: numbers.setdefault(root(node), len(numbers)) for node in self._fabric.switches
        }

    def _latencies(self) -> tuple[float, float]:
        """Per switch and per packet, in seconds, such that every path adds up as in the file."""
        access = self._one_delay([link for links in self._access.values() for _, link in links])
        hop = self._one_delay(self._inside) if self._inside else access
        if 2 * access < hop:
            raise TopologyError(
                f"links of hosts take {access:g} s, those of switches {hop:g} s; "
                "allowed: at least half as long"
            )
        return hop, 2 * access - hop

    def _one_delay(self, links: list[TextLink]) -> float:
        """The delay that all of these links have."""
        for link in links:
            if not math.isclose(link.delay, links[0].delay):
                raise TopologyError(
                    f"line {link.line}: delay {link.delay:g} s differs from {links[0].delay:g} s "
                    f"in line {links[0].line}; allowed: one delay for links of hosts, one for "
                    "those of switches"
                )
        return links[0].delay if links else 0.0
