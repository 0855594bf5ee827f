"""Whether a trace can be replayed: who matches whom, and an order in which everything completes."""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping

from traffic.collectives.request import Collective
from traffic.replay.trace import (
    WORLD,
    NodeKey,
    NodeKind,
    Trace,
    TraceError,
    TraceNode,
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
    for _ in progress(trace):
        pass


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
        Collective.BARRIER,
        Collective.ALL_TO_ALLV,
    ):
        raise TraceError(f"{where}: {node.collective} of {node.size} bytes; at least 1")
    if node.collective is Collective.ALL_TO_ALLV and len(node.sizes) != len(members):
        raise TraceError(f"{where}: {len(node.sizes)} sizes for {len(members)} members")


def message_edges(trace: Trace) -> dict[NodeKey, NodeKey]:
    """The SEND of every RECEIVE. Raises TraceError for one without its other end."""
    ends: dict[NodeKind, dict[tuple[int, int, int], deque[NodeKey]]] = {
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
    edges: dict[NodeKey, NodeKey] = {}
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


def collective_calls(trace: Trace) -> list[list[NodeKey]]:
    """The nodes that are one call of a collective, over all members. Raises TraceError."""
    by_group: dict[str, dict[int, list[NodeKey]]] = defaultdict(lambda: defaultdict(list))
    for rank, nodes in enumerate(trace.ranks):
        for position, node in enumerate(nodes):
            if node.kind is NodeKind.COLLECTIVE:
                by_group[node.group][rank].append((rank, position))
    calls: list[list[NodeKey]] = []
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


def progress(trace: Trace) -> Iterator[list[NodeKey]]:
    """All nodes in an order in which they can complete; the members' calls of a collective at once.

    Raises TraceError, at the end, if nodes wait for themselves.
    """
    edges = message_edges(trace)
    calls = collective_calls(trace)
    call_of = {key: index for index, call in enumerate(calls) for key in call}
    missing = [len(call) for call in calls]
    waits = predecessors(trace, edges)
    unmet = {key: len(needed) for key, needed in waits.items()}
    dependents: dict[NodeKey, list[NodeKey]] = defaultdict(list)
    for key, needed in waits.items():
        for other in needed:
            dependents[other].append(key)
    ready = deque(key for key, count in unmet.items() if count == 0)
    done = 0
    while ready:
        key = ready.popleft()
        complete = [key]
        if key in call_of:
            index = call_of[key]
            missing[index] -= 1
            complete = [] if missing[index] else calls[index]
        if complete:
            yield complete
        for finished in complete:
            done += 1
            for other in dependents[finished]:
                unmet[other] -= 1
                if unmet[other] == 0:
                    ready.append(other)
    if done < len(unmet):
        rank, position = min(key for key, count in unmet.items() if count)
        node = trace.ranks[rank][position]
        raise TraceError(
            f"{_where(trace, rank)}, node {node.node_id} {node.name!r}: waits for itself, through "
            "its dependencies, messages or collectives"
        )


def predecessors(trace: Trace, edges: Mapping[NodeKey, NodeKey]) -> dict[NodeKey, list[NodeKey]]:
    """What every node waits for: its dependencies and, if it is a RECEIVE, its SEND."""
    waits: dict[NodeKey, list[NodeKey]] = {}
    for rank, nodes in enumerate(trace.ranks):
        position_of = {node.node_id: position for position, node in enumerate(nodes)}
        for position, node in enumerate(nodes):
            needed = [(rank, position_of[other]) for other in dict.fromkeys(node.dependencies)]
            if (rank, position) in edges:
                needed.append(edges[rank, position])
            waits[rank, position] = needed
    return waits


def _where(trace: Trace, rank: int) -> str:
    return f"{trace.source}: rank {rank}"
