"""A trace as plain data: what every rank computes, sends, receives and reduces, and after what.

The neutral form between what others wrote (Chakra, ASTRA-sim, MSCCL, flow files, a training job)
and plans. Times are seconds, sizes bytes, both as the source has them until ``scaled``.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class TraceError(ValueError):
    """A trace cannot be read or replayed; one line that says where and what is missing."""


class NodeKind(StrEnum):
    """What a node of a trace does."""

    COMPUTE = "compute"
    SEND = "send"
    RECEIVE = "receive"
    COLLECTIVE = "collective"


class CollectiveType(StrEnum):
    """The collectives that traces name."""

    ALL_REDUCE = "all-reduce"
    REDUCE = "reduce"
    ALL_GATHER = "all-gather"
    GATHER = "gather"
    SCATTER = "scatter"
    BROADCAST = "broadcast"
    ALL_TO_ALL = "all-to-all"
    ALL_TO_ALL_V = "all-to-allv"
    REDUCE_SCATTER = "reduce-scatter"
    BARRIER = "barrier"


WORLD = "world"
"""Name of the group of all ranks."""


@dataclass(frozen=True, slots=True)
class TraceNode:
    """One piece of a rank's work; it begins once ``dependencies`` (same rank) are complete.

    ``duration`` is a COMPUTE's seconds. ``size`` is in bytes: of the message of a SEND or RECEIVE
    with rank ``peer``, which match by ``tag`` and order; of a rank's input buffer of a COLLECTIVE
    (so an all-gather's result is larger and a reduce-scatter's smaller). The k-th collective of a
    ``group`` is the same call on all its members. ``sizes`` are the bytes to every member of an
    all-to-allv. ``root`` is the position in the group of a broadcast's or reduce's root.
    ``start`` is the earliest start in seconds since the start of the traffic.
    """

    node_id: int
    kind: NodeKind
    name: str = ""
    duration: float = 0.0
    size: int = 0
    peer: int = -1
    tag: int = 0
    collective: CollectiveType | None = None
    group: str = WORLD
    sizes: tuple[int, ...] = ()
    root: int = 0
    dependencies: tuple[int, ...] = ()
    start: float = 0.0


@dataclass(frozen=True)
class Trace:
    """The work of all ranks; ``ranks[r]`` in the order of the source.

    ``groups`` gives the ranks of each group, in the group's order. ``size_scale`` and
    ``time_scale`` are what the source's numbers have been multiplied by.
    """

    source: str
    ranks: tuple[tuple[TraceNode, ...], ...]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    size_scale: float = 1.0
    time_scale: float = 1.0

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def members(self, group: str) -> tuple[int, ...]:
        """The ranks of a group. Raises KeyError."""
        if group == WORLD and group not in self.groups:
            return tuple(range(self.world_size))
        return self.groups[group]

    def nodes(self) -> Iterator[tuple[int, TraceNode]]:
        """All nodes with their rank."""
        for rank, nodes in enumerate(self.ranks):
            for node in nodes:
                yield rank, node


def scaled(trace: Trace, *, size: float = 1.0, time: float = 1.0) -> Trace:
    """The trace with sizes and times multiplied by positive factors.

    Sizes are rounded up, so that nothing vanishes. Raises TraceError for another factor.
    """
    for name, factor in (("size", size), ("time", time)):
        if not (factor > 0 and math.isfinite(factor)):
            raise TraceError(f"scale of {name}: {factor}; allowed: above 0")

    def bytes_of(value: int) -> int:
        return value if size == 1 else math.ceil(value * size)

    def node_of(node: TraceNode) -> TraceNode:
        sizes = tuple(bytes_of(value) for value in node.sizes)
        return dataclasses.replace(
            node,
            duration=node.duration * time,
            start=node.start * time,
            size=sum(sizes) if sizes else bytes_of(node.size),
            sizes=sizes,
        )

    return dataclasses.replace(
        trace,
        ranks=tuple(tuple(node_of(node) for node in nodes) for nodes in trace.ranks),
        size_scale=trace.size_scale * size,
        time_scale=trace.time_scale * time,
    )


def check(trace: Trace) -> None:
    """Raises TraceError unless the trace can be replayed to its end.

    Ids are unique, dependencies exist, messages have both ends of equal size, members of a group
    make the same calls, and no work waits for itself, not even through other ranks.
    """
    for rank, nodes in enumerate(trace.ranks):
        known = {node.node_id for node in nodes}
        if len(known) != len(nodes):
            twice, _ = Counter(node.node_id for node in nodes).most_common(1)[0]
            raise TraceError(f"{_where(trace, rank)}, node {twice}: the id is there twice")
        for node in nodes:
            _check_node(trace, rank, node, known)
    _check_progress(trace, _message_edges(trace), _calls(trace))


def _check_node(trace: Trace, rank: int, node: TraceNode, known: set[int]) -> None:
    where = f"{_where(trace, rank)}, node {node.node_id} {node.name!r}"
    for other in node.dependencies:
        if other not in known:
            raise TraceError(f"{where}: depends on node {other}, which the trace does not have")
    if not (node.duration >= 0 and math.isfinite(node.duration)):
        raise TraceError(f"{where}: duration {node.duration}; allowed: 0 or more seconds")
    if node.kind in (NodeKind.SEND, NodeKind.RECEIVE):
        if not 0 <= node.peer < trace.world_size or node.peer == rank:
            raise TraceError(
                f"{where}: {node.kind} with rank {node.peer}; "
                f"allowed: another of the {trace.world_size} ranks"
            )
        if node.size <= 0:
            raise TraceError(f"{where}: {node.kind} of {node.size} bytes; at least 1")
    if node.kind is not NodeKind.COLLECTIVE:
        return
    if node.collective is None:
        raise TraceError(f"{where}: a collective without its type")
    if node.group not in trace.groups and node.group != WORLD:
        raise TraceError(f"{where}: the members of group {node.group!r} are not given")
    members = trace.members(node.group)
    if rank not in members:
        raise TraceError(f"{where}: rank {rank} is no member of group {node.group!r}")
    if node.size <= 0 and node.collective not in (
        CollectiveType.BARRIER,
        CollectiveType.ALL_TO_ALL_V,
    ):
        raise TraceError(f"{where}: {node.collective} of {node.size} bytes; at least 1")
    if node.collective is CollectiveType.ALL_TO_ALL_V and len(node.sizes) != len(members):
        raise TraceError(f"{where}: {len(node.sizes)} sizes for {len(members)} members")


_Key = tuple[int, int]
"""(rank, position in the rank)"""


def _message_edges(trace: Trace) -> dict[_Key, _Key]:
    """The SEND of every RECEIVE."""
    ends: dict[NodeKind, dict[tuple[int, int, int], deque[_Key]]] = {
        NodeKind.SEND: defaultdict(deque),
        NodeKind.RECEIVE: defaultdict(deque),
    }
    for rank, nodes in enumerate(trace.ranks):
        for position, node in enumerate(nodes):
            if node.kind is NodeKind.SEND:
                ends[node.kind][rank, node.peer, node.tag].append((rank, position))
            elif node.kind is NodeKind.RECEIVE:
                ends[node.kind][node.peer, rank, node.tag].append((rank, position))
    sends, receives = ends[NodeKind.SEND], ends[NodeKind.RECEIVE]
    edges: dict[_Key, _Key] = {}
    for message in sorted({*sends, *receives}):
        out, into = sends[message], receives[message]
        source, destination, tag = message
        if len(out) != len(into):
            raise TraceError(
                f"{trace.source}: {len(out)} sends and {len(into)} receives from rank {source} "
                f"to rank {destination} with tag {tag}"
            )
        for send, receive in zip(out, into, strict=True):
            sizes = [trace.ranks[r][p].size for r, p in (send, receive)]
            if sizes[0] != sizes[1]:
                raise TraceError(
                    f"{trace.source}: rank {source} sends {sizes[0]} bytes to rank {destination} "
                    f"with tag {tag}, which expects {sizes[1]}"
                )
            edges[receive] = send
    return edges


def _calls(trace: Trace) -> list[list[_Key]]:
    """The nodes that are one call of a collective, over all members."""
    by_group: dict[str, dict[int, list[_Key]]] = defaultdict(lambda: defaultdict(list))
    for rank, nodes in enumerate(trace.ranks):
        for position, node in enumerate(nodes):
            if node.kind is NodeKind.COLLECTIVE:
                by_group[node.group][rank].append((rank, position))
    calls: list[list[_Key]] = []
    for group, by_rank in by_group.items():
        members = trace.members(group)
        counts = {rank: len(by_rank[rank]) for rank in members}
        if len(set(counts.values())) > 1:
            least, most = min(members, key=lambda r: counts[r]), max(counts.values())
            raise TraceError(
                f"{_where(trace, least)}: {counts[least]} collectives of group {group!r}, "
                f"other members have {most}"
            )
        for call in zip(*(by_rank[rank] for rank in members), strict=True):
            first = trace.ranks[call[0][0]][call[0][1]]
            for rank, position in call:
                node = trace.ranks[rank][position]
                if (node.collective, node.root) != (first.collective, first.root) or (
                    node.size != first.size and not node.sizes
                ):
                    raise TraceError(
                        f"{_where(trace, rank)}, node {node.node_id} {node.name!r}: "
                        f"{node.collective} of {node.size} bytes where rank {call[0][0]} has "
                        f"{first.collective} of {first.size} bytes (group {group!r})"
                    )
            calls.append(list(call))
    return calls


def _check_progress(trace: Trace, edges: dict[_Key, _Key], calls: list[list[_Key]]) -> None:
    """Completes nodes in some possible order; a collective when all its members have begun it."""
    unmet: dict[_Key, int] = {}
    dependents: dict[_Key, list[_Key]] = defaultdict(list)
    for rank, nodes in enumerate(trace.ranks):
        position_of = {node.node_id: position for position, node in enumerate(nodes)}
        for position, node in enumerate(nodes):
            needed = [(rank, position_of[other]) for other in set(node.dependencies)]
            if (rank, position) in edges:
                needed.append(edges[rank, position])
            unmet[rank, position] = len(needed)
            for other in needed:
                dependents[other].append((rank, position))
    call_of = {key: index for index, call in enumerate(calls) for key in call}
    missing = [len(call) for call in calls]
    ready = deque(key for key, count in unmet.items() if count == 0)
    done = 0
    while ready:
        key = ready.popleft()
        complete = [key]
        if key in call_of:
            index = call_of[key]
            missing[index] -= 1
            complete = [] if missing[index] else calls[index]
        for finished in complete:
            done += 1
            for other in dependents[finished]:
                unmet[other] -= 1
                if unmet[other] == 0:
                    ready.append(other)
    if done == len(unmet):
        return
    rank, position = min(key for key, count in unmet.items() if count)
    node = trace.ranks[rank][position]
    raise TraceError(
        f"{_where(trace, rank)}, node {node.node_id} {node.name!r}: waits for itself, through "
        "its dependencies, messages or collectives"
    )


def _where(trace: Trace, rank: int) -> str:
    return f"{trace.source}: rank {rank}"
