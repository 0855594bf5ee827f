"""Where the nodes of a topology go on a drawing: tiers as rows, in inches, y upwards. Pure.

Servers stand in one row, each with a cell per rank. The network of the GPUs is above them, networks
that no GPU's NIC is wired to (a separate front end) are below, upside down.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from testbed.topology.base import Node, NodeKind, Topology

SERVER_GAP, GROUP_GAP = 0.5, 1.2
"""Cells between servers, and between servers of different groups."""

CELL = (0.03, 0.62)
"""Smallest and largest width of a rank's cell in inches."""

WIDTH = 13.0
"""Inches up to which cells keep their largest width."""

WIDEST = 30.0
"""Inches beyond which cells shrink below what can hold a number."""

READABLE_CELL = 0.19
"""Inches in which a rank's number can be read."""

CELL_HEIGHT = 0.22
LOWER_CELL_HEIGHT = 0.15
"""Of a NIC that is wired to a network below the servers."""

SERVER_HEIGHT = 0.52
SWITCH_HEIGHT = 0.30
SWITCH_WIDTH = 0.95


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle by its centre, in inches."""

    x: float
    y: float
    width: float
    height: float

    @property
    def left(self) -> float:
        """Its left edge."""
        return self.x - self.width / 2

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.x + self.width / 2

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.y - self.height / 2

    @property
    def top(self) -> float:
        """Its upper edge."""
        return self.y + self.height / 2


@dataclass(frozen=True)
class Layout:
    """Boxes of nodes by name and of ranks by number; all of it spans ``width`` from 0.

    ``below`` holds the switches of networks that are drawn below the servers.
    """

    nodes: dict[str, Box]
    ranks: dict[int, Box]
    width: float
    below: frozenset[str] = field(default_factory=frozenset)

    @property
    def bottom(self) -> float:
        """Lower edge of the lowest box."""
        return min(box.bottom for box in self.nodes.values())

    @property
    def top(self) -> float:
        """Upper edge of the highest box."""
        return max(box.top for box in self.nodes.values())

    def around(self, names: Iterable[str], margin: float) -> Box:
        """The box around these nodes, ``margin`` inches wider on every side."""
        boxes = [self.nodes[name] for name in names]
        left, right = min(b.left for b in boxes) - margin, max(b.right for b in boxes) + margin
        bottom, top = min(b.bottom for b in boxes) - margin, max(b.top for b in boxes) + margin
        return Box((left + right) / 2, (bottom + top) / 2, right - left, top - bottom)


def lay_out(topology: Topology) -> Layout:
    """Place every node and rank."""
    below = networks_without_gpus(topology)
    nodes, ranks, width = _place_servers(topology, below)
    gap = min(max(1.25, 0.13 * width), 4.0)
    spans = _spans(topology, nodes)
    rows: dict[tuple[bool, int], list[Node]] = defaultdict(list)
    for switch in topology.switches:
        rows[switch.name in below, switch.tier].append(switch)
    for (is_below, tier), members in rows.items():
        y = -tier * max(1.1, 0.75 * gap) if is_below else tier * gap
        nodes.update(_place_row(members, spans, y, width))
    return Layout(nodes, ranks, width, below)


def _place_servers(
    topology: Topology, below: frozenset[str]
) -> tuple[dict[str, Box], dict[int, Box], float]:
    """Boxes of servers and ranks, and the width of all."""
    upper: dict[str, list[int]] = {server.name: [] for server in topology.servers}
    lower: dict[str, list[int]] = {server.name: [] for server in topology.servers}
    for rank in topology.ranks:
        side = lower if topology.leaf_of(rank.rank) in below else upper
        side[rank.server].append(rank.rank)
    left: dict[str, float] = {}
    position = 0.0
    group = None
    for server in topology.servers:
        if left:
            position += SERVER_GAP if server.group == group else GROUP_GAP
        group = server.group
        left[server.name] = position
        position += max(1, len(upper[server.name]))
    cell = min(CELL[1], WIDTH / position)
    if cell < READABLE_CELL:
        cell = max(CELL[0], min(READABLE_CELL, WIDEST / position))
    nodes: dict[str, Box] = {}
    ranks: dict[int, Box] = {}
    for name, start in left.items():
        width = max(1, len(upper[name])) * cell
        nodes[name] = Box(start * cell + width / 2, 0.0, width, SERVER_HEIGHT)
        for slot, number in enumerate(upper[name]):
            x = (start + slot + 0.5) * cell
            ranks[number] = Box(x, (SERVER_HEIGHT - CELL_HEIGHT) / 2, cell, CELL_HEIGHT)
        for slot, number in enumerate(lower[name]):
            share = width / len(lower[name])
            x = nodes[name].left + (slot + 0.5) * share
            y = (LOWER_CELL_HEIGHT - SERVER_HEIGHT) / 2
            ranks[number] = Box(x, y, min(share, 2 * cell), LOWER_CELL_HEIGHT)
    return nodes, ranks, position * cell


def networks_without_gpus(topology: Topology) -> frozenset[str]:
    """Switches from which no link, nor any number of them, leads to a GPU's NIC."""
    reached = {topology.leaf_of(rank.rank, port)
               for rank in topology.gpu_ranks
               for port in range(len(rank.interfaces))}  # fmt: skip
    frontier = list(reached)
    while frontier:
        name = frontier.pop()
        for interface in topology.interfaces_of(name):
            peer = topology.nodes[interface.peer_node]
            if peer.kind is NodeKind.SWITCH and peer.name not in reached:
                reached.add(peer.name)
                frontier.append(peer.name)
    return frozenset(switch.name for switch in topology.switches if switch.name not in reached)


def _spans(topology: Topology, servers: dict[str, Box]) -> dict[str, tuple[float, float]]:
    """Switch -> left and right edge of the servers below it; storage counts if nothing else is."""
    spans: dict[str, tuple[float, float]] = {}
    for switch in sorted(topology.switches, key=lambda node: node.tier):
        below = [
            topology.nodes[interface.peer_node]
            for interface in topology.interfaces_of(switch.name)
            if topology.nodes[interface.peer_node].tier < switch.tier
        ]
        with_gpus = {rank.server for rank in topology.gpu_ranks} if switch.tier == 1 else set()
        preferred = [node for node in below if node.name in with_gpus] or below
        edges = [
            (servers[node.name].left, servers[node.name].right)
            if node.kind is NodeKind.SERVER
            else spans[node.name]
            for node in preferred
            if node.kind is NodeKind.SERVER or node.name in spans
        ]
        if edges:
            spans[switch.name] = min(e[0] for e in edges), max(e[1] for e in edges)
    return spans


def _place_row(
    members: list[Node], spans: dict[str, tuple[float, float]], y: float, width: float
) -> dict[str, Box]:
    """One tier: switches over the same servers share the span evenly, plane by plane."""
    shared: dict[tuple[float, float], list[Node]] = defaultdict(list)
    for switch in members:
        left, right = spans.get(switch.name, (0.0, width))
        shared[round(left, 6), round(right, 6)].append(switch)
    centres: dict[str, float] = {}
    for (left, right), switches in shared.items():
        switches.sort(key=lambda node: (node.plane, node.index))
        step = (right - left) / len(switches)
        for position, switch in enumerate(switches):
            centres[switch.name] = left + (position + 0.5) * step
    ordered = sorted(centres.values())
    spacing = min((right - left for left, right in pairwise(ordered)), default=width)
    box_width = min(SWITCH_WIDTH, 0.86 * spacing) if spacing > 0 else SWITCH_WIDTH
    return {name: Box(x, y, box_width, SWITCH_HEIGHT) for name, x in centres.items()}
