"""When every node of a trace would run, were the network as simple as two functions say.

A node begins when all that it waits for is over; there is no contention. Good for lower bounds,
for what an iteration takes without communication, and for the ideal pipeline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from traffic.replay.check import message_edges, predecessors, progress
from traffic.replay.trace import NodeKind, Trace, TraceNode

Cost = Callable[[TraceNode, int], float]
"""Seconds of a SEND or COLLECTIVE; the second argument is its number of ranks."""


def free(node: TraceNode, ranks: int) -> float:
    """Communication that takes no time."""
    return 0.0


@dataclass(frozen=True)
class Timeline:
    """``spans[rank][position]`` are start and end of a node in seconds."""

    spans: tuple[tuple[tuple[float, float], ...], ...]

    @property
    def duration(self) -> float:
        """End of the last node."""
        return max((end for rank in self.spans for _, end in rank), default=0.0)


def compute_seconds(trace: Trace, rank: int) -> float:
    """Seconds that a rank computes."""
    return sum(node.duration for node in trace.ranks[rank])


def exposed_communication(trace: Trace, cost: Cost) -> float:
    """Seconds by which communication lengthens the trace."""
    return timeline(trace, cost).duration - timeline(trace, free).duration


def linearity(throughput: float, ranks: int, base_throughput: float, base_ranks: int) -> float:
    """Throughput per rank as a share of a smaller job's; 1 is perfect.

    Throughputs in the same unit, as tokens or FLOPs per second. Raises ValueError.
    """
    if min(ranks, base_ranks) < 1 or min(throughput, base_throughput) <= 0:
        raise ValueError(
            f"linearity of {throughput} on {ranks} ranks against {base_throughput} on "
            f"{base_ranks}; allowed: above 0"
        )
    return (throughput / ranks) / (base_throughput / base_ranks)


def timeline(trace: Trace, cost: Cost = free) -> Timeline:
    """Start and end of every node. A collective begins when its last member has come to it.

    Raises TraceError if nodes wait for themselves.
    """
    waits = predecessors(trace, message_edges(trace))
    spans: list[list[tuple[float, float]]] = [[(0.0, 0.0)] * len(nodes) for nodes in trace.ranks]
    for together in progress(trace):
        start = max(
            max(
                (spans[r][p][1] for r, p in waits[rank, position]),
                default=0.0,
            )
            for rank, position in together
        )
        for rank, position in together:
            node = trace.ranks[rank][position]
            begin = max(start, node.start)
            spans[rank][position] = (begin, begin + _seconds(node, len(together), cost))
    return Timeline(tuple(tuple(rank) for rank in spans))


def _seconds(node: TraceNode, ranks: int, cost: Cost) -> float:
    if node.kind is NodeKind.COMPUTE:
        return node.duration
    if node.kind is NodeKind.RECEIVE:
        return 0.0
    return cost(node, 2 if node.kind is NodeKind.SEND else ranks)
