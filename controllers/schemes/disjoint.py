"""Disjoint paths: plain ECMP, but the NICs know its hash and choose source ports that spread.

HPN's path selection (Qian et al., "Alibaba HPN: A Data Center Network for Large Language Model
Training", SIGCOMM 2024, section 6.2) with the search of RePaC (Zhang et al., "Hashing Linearity
Enables Relative Path Control in Data Centers", USENIX ATC 2021): a host probes which UDP source
ports lead which way and gives the queue pairs of a connection ports with disjoint paths. Here the
switches' tables are known, so the search asks them. Which of its queue pairs a NIC uses for the
next work queue element, the one with the fewest outstanding bytes, is the message strategy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from controllers.flows import Flow
from controllers.schemes.base import RoutingView, register_scheme
from controllers.schemes.ecmp import Ecmp
from controllers.table import FabricTables
from testbed.topology import Topology

FIRST_PORT = 49152
LAST_PORT = 65535
"""UDP source ports of RoCEv2 (IBTA annex A17 leaves them free; drivers use the dynamic range)."""

TRIES_PER_PATH = 16
"""Ports tried for each path that there is. A given one of n is missed with probability e**-16."""

PASSES = 3
"""How often every flow may move again after all have been placed."""


@dataclass(slots=True)
class _Pair:
    """The flows from one NIC interface to one NIC, and which source ports lead them which way."""

    flows: list[Flow] = field(default_factory=list)
    ports: dict[tuple[str, ...], list[int]] = field(default_factory=dict)
    """Links that not all ways share -> the source ports that lead over them, ascending."""
    placed: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Position in ``flows`` -> its links."""
    used: Counter[str] = field(default_factory=Counter)
    """Link -> how many of the pair's own flows are on it."""


@register_scheme
class Disjoint(Ecmp):
    """ECMP's entries; what differs is the source ports."""

    name = "disjoint"

    def choose_source_ports(
        self, topology: Topology, flows: Sequence[Flow]
    ) -> dict[tuple[int, bool], int]:
        """Ports by which a pair's flows share as few links as possible, and all links are even."""
        view = RoutingView.of(topology, flows)
        tables = FabricTables(topology, self.entries(topology, flows))
        pairs: dict[tuple[str, str, bool], _Pair] = {}
        for flow in flows:
            # Requests need not keep clear of the acknowledgements of what comes the other way.
            key = (flow.source_interface, flow.five_tuple.destination_ip, flow.reverse)
            pairs.setdefault(key, _Pair()).flows.append(flow)
        explored: dict[tuple[str, str], dict[tuple[str, ...], list[int]]] = {}
        most = max((len(pair.flows) for pair in pairs.values()), default=0)
        for (sender, destination, _), pair in pairs.items():
            ends = sender, destination
            if ends not in explored:
                explored[ends] = _explore(view, tables, pair.flows[0], most)
            pair.ports = explored[ends]
        _spread(list(pairs.values()))
        chosen: dict[tuple[int, bool], int] = {}
        for pair in pairs.values():
            turns: Counter[tuple[str, ...]] = Counter()
            for position, flow in enumerate(pair.flows):
                way = pair.placed[position]
                ports = pair.ports[way]
                chosen[flow.connection, flow.reverse] = ports[turns[way] % len(ports)]
                turns[way] += 1
        return chosen


def _explore(
    view: RoutingView, tables: FabricTables, flow: Flow, flows: int
) -> dict[tuple[str, ...], list[int]]:
    """The ways that source ports lead a flow, without the links that all of them share.

    Enough ports are looked for that so many flows, dealt out evenly, have one each.
    """
    nic = view.topology.nic(view.topology.rank_of_address(flow.five_tuple.destination_ip))
    prefix = view.destination_of(nic).prefix
    leaf = view.topology.interfaces[flow.source_interface].peer_node
    count = _path_count(view, leaf, prefix)
    tries = min(TRIES_PER_PATH * count, LAST_PORT - FIRST_PORT + 1)
    found: dict[tuple[str, ...], list[int]] = {}
    for port in range(FIRST_PORT, FIRST_PORT + tries):
        five_tuple = replace(flow.five_tuple, source_port=port)
        path = tuple(tables.path_of(replace(flow, five_tuple=five_tuple)))
        found.setdefault(path, []).append(port)
        if len(found) == count and all(len(ports) * count >= flows for ports in found.values()):
            break
    shared = set.intersection(*(set(path) for path in found))
    return {
        tuple(link for link in path if link not in shared): ports for path, ports in found.items()
    }


def _path_count(view: RoutingView, switch: str, prefix: str) -> int:
    ports = view.hops[switch].get(prefix, ())
    return sum(_path_count(view, port.peer_node, prefix) for port in ports) or 1


def _spread(pairs: Sequence[_Pair]) -> None:
    """Place the first flow of every pair, then the second and so on; then let each move again."""
    load: Counter[str] = Counter()
    rounds = max((len(pair.flows) for pair in pairs), default=0)
    order = [(pair, k) for k in range(rounds) for pair in pairs if k < len(pair.flows)]
    for _ in range(1 + PASSES):
        moved = False
        for pair, position in order:
            before = pair.placed.get(position)
            weight = max(1, pair.flows[position].bytes)
            if before is not None:
                _count(pair, load, before, -1, -weight)
            best = min(pair.ports, key=lambda way: _cost(pair, load, way, weight))
            if before is not None and _cost(pair, load, best, weight) == _cost(
                pair, load, before, weight
            ):
                best = before
            pair.placed[position] = best
            _count(pair, load, best, 1, weight)
            moved = moved or best != before
        if not moved:
            return


def _cost(
    pair: _Pair, load: Counter[str], way: tuple[str, ...], weight: int
) -> tuple[int, int, int]:
    """Links shared within the pair, then the load of the busiest link, then of all."""
    loads = [load[link] + weight for link in way]
    return sum(pair.used[link] for link in way), max(loads, default=0), sum(loads)


def _count(pair: _Pair, load: Counter[str], way: tuple[str, ...], flows: int, weight: int) -> None:
    for link in way:
        pair.used[link] += flows
        load[link] += weight
