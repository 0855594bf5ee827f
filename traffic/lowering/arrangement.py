"""Where everything of a trace is in the ranks' memories, and in what order it can complete.

Every rank's memory begins with random numbers, the input of all that it sends and reduces; calls
begin a few places apart, so that two of the same shape have different results. Behind them is one
place for the messages from each peer, then the regions that collectives share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from traffic.collectives.communicators import Communicator
from traffic.collectives.lowering import BufferOffsets, buffer_offsets
from traffic.lowering.calls import CallPlanner, CollectiveCall, CollectiveOptions
from traffic.lowering.regions import RegionPool, aligned
from traffic.plan import MemoryPlan
from traffic.replay.check import message_edges, predecessors, progress
from traffic.replay.trace import NodeKey, NodeKind, Trace, TraceError

STAGGER = 4096
"""Bytes between the inputs of successive calls."""

MEMORY_LIMIT = 8 * 2**30
"""Bytes of all ranks' memories together; more does not fit beside the rest of a run."""

STAGGERED_CALLS = 16
"""After so many calls the input is the same again."""


@dataclass(frozen=True)
class PlacedCall:
    """A call and its communicator, whose ranks are the plan's. ``communicator`` has its buffers."""

    call: CollectiveCall
    communicator: Communicator


@dataclass(frozen=True)
class Arrangement:
    """A trace on ranks of a plan.

    ``ranks[r]`` is the plan's rank of the trace's rank r. ``steps`` are nodes in an order in which
    they can complete, all of a collective's at once, with its call if it moves anything.
    ``edges`` has the SEND of every RECEIVE. ``landings`` is where messages between two ranks (of
    the trace) arrive. ``memory`` is by rank of the plan. ``intact`` are the (call, rank of the
    plan) whose results are still there at the end.
    """

    trace: Trace
    ranks: tuple[int, ...]
    steps: tuple[tuple[tuple[NodeKey, ...], PlacedCall | None], ...]
    edges: dict[NodeKey, NodeKey]
    landings: dict[tuple[int, int], int]
    memory: dict[int, MemoryPlan]
    intact: frozenset[tuple[int, int]]

    @property
    def calls(self) -> list[PlacedCall]:
        """All collectives that move something, in order of completion."""
        return [placed for _, placed in self.steps if placed is not None]


def arrange(
    trace: Trace, ranks: Sequence[int], servers: Sequence[str], options: CollectiveOptions
) -> Arrangement:
    """Arrange a trace on ranks of a plan; ``servers[i]`` is the server of ``ranks[i]``.

    Raises ScheduleError for a collective that no algorithm can do, TraceError for a trace that
    cannot come to its end or needs too much memory.
    """
    planner = CallPlanner(options)
    steps: list[tuple[tuple[NodeKey, ...], CollectiveCall | None]] = []
    for together in progress(trace):
        rank, position = together[0]
        collective = trace.ranks[rank][position].kind is NodeKind.COLLECTIVE
        call = planner.call(trace, together, servers) if collective else None
        steps.append((tuple(together), call))
    return _Arranger(trace, tuple(ranks), steps).run()


class _Arranger:
    def __init__(
        self,
        trace: Trace,
        ranks: tuple[int, ...],
        steps: list[tuple[tuple[NodeKey, ...], CollectiveCall | None]],
    ) -> None:
        self._trace = trace
        self._ranks = ranks
        self._steps = steps
        self._edges = message_edges(trace)
        self._landings: dict[tuple[int, int], int] = {}
        self._initialised = self._inputs()
        self._pools = [RegionPool(end) for end in self._place_landings()]
        # numbers of the bits that stand for (call, rank of the trace)
        self._bits: list[tuple[int, int]] = []

    def run(self) -> Arrangement:
        """Give every call its memory, in an order in which they can complete."""
        waits = predecessors(self._trace, self._edges)
        readers: dict[NodeKey, int] = defaultdict(int)
        for needed in waits.values():
            for key in needed:
                readers[key] += 1
        # what is complete, on which rank, before a node is; as bits
        before: dict[NodeKey, int] = {}
        placed: list[tuple[tuple[NodeKey, ...], PlacedCall | None]] = []
        for nodes, call in self._steps:
            known = dict.fromkeys(nodes, 0)
            for key in nodes:
                for other in waits[key]:
                    known[key] |= before[other]
            if call is None:
                placed.append((nodes, None))
                before.update(known)
            else:
                placed.append((nodes, self._place(call, [known[key] for key in call.nodes])))
                first = len(self._bits) - len(call.nodes)
                for own, key in enumerate(call.nodes):
                    before[key] = 1 << (first + own)
                    for member in call.contributors[own]:
                        before[key] |= known[call.nodes[member]]
            self._forget(before, nodes, waits, readers)
        return self._arrangement(placed)

    @staticmethod
    def _forget(
        before: dict[NodeKey, int],
        nodes: Sequence[NodeKey],
        waits: dict[NodeKey, list[NodeKey]],
        readers: dict[NodeKey, int],
    ) -> None:
        """Drop what no later node asks for: the sets are as long as there are calls."""
        for key in nodes:
            for other in waits[key]:
                readers[other] -= 1
                if not readers[other]:
                    del before[other]
            if not readers[key]:
                del before[key]

    def _place(self, call: CollectiveCall, known: Sequence[int]) -> PlacedCall:
        complete = known[0]
        for bits in known[1:]:
            complete &= bits
        sizes = buffer_offsets(call.schedule)
        begin = _input_begin(call)
        buffers: list[BufferOffsets] = []
        for size, (rank, _) in zip(sizes, call.nodes, strict=True):
            needed = size.end - size.output
            rest = self._pools[rank].take(needed, len(self._bits), complete)
            self._bits.append((call.number, rank))
            shift = rest - size.output
            buffers.append(BufferOffsets(begin, rest, size.scratch + shift, size.end + shift))
        members = tuple(self._ranks[rank] for rank, _ in call.nodes)
        return PlacedCall(call, Communicator(members, call.schedule, tuple(buffers)))

    def _inputs(self) -> list[int]:
        """Bytes of random numbers that every rank needs."""
        ends = [0] * self._trace.world_size
        for rank, node in self._trace.nodes():
            if node.kind is NodeKind.SEND:
                ends[rank] = max(ends[rank], node.size)
        for call in (call for _, call in self._steps if call is not None):
            for buffers, (member, _) in zip(buffer_offsets(call.schedule), call.nodes, strict=True):
                ends[member] = max(ends[member], _input_begin(call) + buffers.output)
        return [aligned(end) for end in ends]

    def _place_landings(self) -> list[int]:
        """Room for the largest message of each pair; returns where it ends on every rank.

        A smaller one carries the beginning of the same bytes.
        """
        largest: dict[tuple[int, int], int] = {}
        for rank, node in self._trace.nodes():
            if node.kind is NodeKind.SEND:
                pair = rank, node.peer
                largest[pair] = max(largest.get(pair, 0), node.size)
        ends = list(self._initialised)
        for (source, destination), size in sorted(largest.items()):
            self._landings[source, destination] = ends[destination]
            ends[destination] += aligned(size)
        return ends

    def _arrangement(
        self, placed: list[tuple[tuple[NodeKey, ...], PlacedCall | None]]
    ) -> Arrangement:
        total = sum(pool.end for pool in self._pools)
        if total > MEMORY_LIMIT:
            raise TraceError(
                f"{self._trace.source}: buffers of {total} bytes on all ranks together; "
                f"allowed: at most {MEMORY_LIMIT}: scale the sizes down"
            )
        intact = set()
        for pool in self._pools:
            for bit in pool.last_users():
                number, rank = self._bits[bit]
                intact.add((number, self._ranks[rank]))
        return Arrangement(
            trace=self._trace,
            ranks=self._ranks,
            steps=tuple(placed),
            edges=self._edges,
            landings=self._landings,
            memory={
                self._ranks[rank]: MemoryPlan(pool.end, self._initialised[rank])
                for rank, pool in enumerate(self._pools)
            },
            intact=frozenset(intact),
        )


def _input_begin(call: CollectiveCall) -> int:
    """Where a call's input begins in the memory of all its members."""
    return call.number % STAGGERED_CALLS * STAGGER
