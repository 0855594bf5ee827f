"""Who sends how much to whom in a trace: for placement, and for scaling."""

from __future__ import annotations

from collections import defaultdict

from traffic.collectives.request import Collective
from traffic.replay.trace import NodeKind, Trace, TraceNode


def traffic_matrix(trace: Trace) -> dict[tuple[int, int], float]:
    """Bytes from rank to rank.

    Collectives count as their rings do, with the fewest bytes that each needs (nccl-tests,
    doc/PERFORMANCE.md), all-to-all(v) and rooted ones directly; a barrier counts nothing.
    """
    matrix: dict[tuple[int, int], float] = defaultdict(float)
    for rank, node in trace.nodes():
        if node.kind is NodeKind.SEND:
            matrix[rank, node.peer] += node.size
        elif node.kind is NodeKind.COLLECTIVE:
            members = trace.members(node.group)
            for peer, size in _shares(rank, node, members).items():
                matrix[rank, peer] += size
    return {pair: size for pair, size in matrix.items() if size}


def rank_totals(trace: Trace) -> list[float]:
    """Bytes that every rank sends."""
    totals = [0.0] * trace.world_size
    for (source, _), size in traffic_matrix(trace).items():
        totals[source] += size
    return totals


def _shares(rank: int, node: TraceNode, members: tuple[int, ...]) -> dict[int, float]:
    """What one member sends to each other for its part of a collective."""
    count, own = len(members), members.index(rank)
    following = members[(own + 1) % count]
    if count < 2:
        return {}
    root = members[node.root]
    match node.collective:
        case Collective.ALL_REDUCE:
            return {following: 2 * (count - 1) / count * node.size}
        case Collective.REDUCE_SCATTER:
            return {following: (count - 1) / count * node.size}
        case Collective.ALL_GATHER:
            return {following: (count - 1) * float(node.size)}
        case Collective.BROADCAST:
            return {} if following == root else {following: float(node.size)}
        case Collective.REDUCE:
            return {} if rank == root else {following: float(node.size)}
        case Collective.GATHER:
            return {} if rank == root else {root: float(node.size)}
        case Collective.SCATTER:
            others = (peer for peer in members if peer != rank)
            return {} if rank != root else dict.fromkeys(others, node.size / count)
        case Collective.ALL_TO_ALL:
            return {peer: node.size / count for peer in members if peer != rank}
        case Collective.ALL_TO_ALLV:
            sizes = zip(members, node.sizes, strict=True)
            return {peer: float(size) for peer, size in sizes if peer != rank}
        case _:
            return {}
