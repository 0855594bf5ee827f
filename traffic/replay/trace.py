"""A trace as plain data: what every rank computes, sends, receives and reduces, and after what.

The neutral form between what others wrote (Chakra, ASTRA-sim, MSCCL, flow files, a training job)
and plans. Times are seconds, sizes bytes, both as the source has them until ``scaled``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from traffic.collectives.request import Collective


class TraceError(ValueError):
    """A trace cannot be read or replayed; one line that says where and what is missing."""


class NodeKind(StrEnum):
    """What a node of a trace does."""

    COMPUTE = "compute"
    SEND = "send"
    RECEIVE = "receive"
    COLLECTIVE = "collective"


NodeKey = tuple[int, int]
"""(rank, position in ``Trace.ranks[rank]``)"""

NODE_LIMIT = 2_000_000
"""Nodes of a trace that is made from a description; more would take minutes and gigabytes."""

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
    collective: Collective | None = None
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


def largest_buffer(node: TraceNode, members: int) -> int:
    """Bytes of the largest buffer of a collective, its size as nccl-tests counts."""
    if node.collective in (Collective.ALL_GATHER, Collective.GATHER):
        return node.size * members
    return node.size


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


def side_by_side(traces: Sequence[Trace]) -> Trace:
    """Several traces as one that runs them at once; their ranks are counted through.

    Raises TraceError for no trace, and unless all have been scaled alike.
    """
    if not traces:
        raise TraceError("no trace to run")
    if len({(trace.size_scale, trace.time_scale) for trace in traces}) > 1:
        raise TraceError("scale: the jobs' own differ; give one for all")
    if len(traces) == 1:
        return traces[0]
    ranks: list[tuple[TraceNode, ...]] = []
    groups: dict[str, tuple[int, ...]] = {}
    for number, trace in enumerate(traces):
        first, prefix = len(ranks), f"{number}:"
        for name in {WORLD, *trace.groups}:
            groups[prefix + name] = tuple(first + rank for rank in trace.members(name))
        for nodes in trace.ranks:
            ranks.append(
                tuple(
                    dataclasses.replace(
                        node,
                        peer=node.peer if node.peer < 0 else first + node.peer,
                        group=prefix + node.group,
                    )
                    for node in nodes
                )
            )
    return dataclasses.replace(traces[0], ranks=tuple(ranks), groups=groups)
