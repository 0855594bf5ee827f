"""Makes plans of schedules: slots become places in memory, channels queue pairs, steps operations.

Each connection gets one flow per channel. Its SENDs are posted in the schedule's order, and no
more of them are under way than the chunking allows (NCCL_STEPS): each waits for the completion of
one further back. What a schedule calls local takes NVLink between GPUs of one server, and the
network where the plan's ranks are not on one after all.

With rendezvous a SEND also waits for its receiver's clear-to-send (CTS), as in NCCL, whose receiver
writes an entry of 64 bytes into a FIFO in the sender's memory for each buffer that is free
(ncclIbPostFifo in transport/net_ib.cc). A receiver sends as many ahead as messages may be under
way, but none before it takes part in the collective itself. NCCL writes them through the queue
pairs that the data arrive on; here they have one of their own, for a connection of a plan carries
messages one way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from traffic.collectives.graph import ScheduleGraph
from traffic.collectives.schedule import InstructionKind, Schedule, byte_bounds
from traffic.plan import Operation, PlanError
from traffic.plan_builder import PlanBuilder

CTS_BYTES = 64
"""An entry of NCCL's FIFO, a cache line (struct ncclIbSendFifo)."""

FlowOf = Callable[[int, int, int], int]
"""The flow from one rank of the plan to another on a channel."""


class Rendezvous(StrEnum):
    """Whether a message waits for its receiver's word that there is room for it."""

    NONE = "none"
    CTS = "cts"


@dataclass(frozen=True, slots=True)
class BufferOffsets:
    """Where a rank's buffers begin in its memory, and where the last one ends; in bytes.

    ``fifo`` is where clear-to-sends come from and go to, None without rendezvous. That they come is
    all that matters; what they say is not modelled, so one entry is enough.
    """

    input: int
    output: int
    scratch: int
    end: int
    fifo: int | None = None


@dataclass(frozen=True, slots=True)
class Lowering:
    """A schedule as part of a plan.

    ``buffers[i]`` are those of the communicator's rank i. ``last[i]`` are its operations that no
    other of the schedule waits for: what comes after the collective depends on them. ``flows``
    counts the flows that it has added.
    """

    buffers: tuple[BufferOffsets, ...]
    last: tuple[tuple[int, ...], ...]
    flows: int


def buffer_offsets(
    schedule: Schedule,
    inputs: Sequence[int] | None = None,
    rest: Sequence[int] | None = None,
    *,
    rendezvous: Rendezvous = Rendezvous.NONE,
) -> tuple[BufferOffsets, ...]:
    """Byte offsets of every rank's buffers: input at ``inputs``, output and scratch from ``rest``.

    By default the input begins at 0, and the others follow it.
    """
    found = []
    for rank, layout in enumerate(schedule.layouts):
        sizes = [
            sum(part) * schedule.request.itemsize
            for part in (layout.input, layout.output, layout.scratch)
        ]
        begin = inputs[rank] if inputs is not None else 0
        output = rest[rank] if rest is not None else begin + sizes[0]
        scratch = output + sizes[1]
        end = scratch + sizes[2]
        if rendezvous is Rendezvous.CTS:
            found.append(BufferOffsets(begin, output, scratch, end + CTS_BYTES, end))
        else:
            found.append(BufferOffsets(begin, output, scratch, end))
    return tuple(found)


def lower(
    schedule: Schedule,
    builder: PlanBuilder,
    *,
    buffers: Sequence[BufferOffsets],
    ranks: Sequence[int] | None = None,
    operation: Operation = Operation.WRITE_WITH_IMM,
    after: Sequence[Sequence[int]] | None = None,
    flow_of: FlowOf | None = None,
) -> Lowering:
    """Add a schedule to a plan; memory is the caller's to give.

    ``ranks`` are the plan's ranks that form the communicator, by default all. Operations of its
    rank i wait for ``after[i]``. There is a rendezvous where ``buffers`` have room for it.
    ``flow_of`` gives the flows where several schedules share connections; by default each schedule
    has its own. Raises PlanError for a verb that does not tell the receiver, or for a plan that is
    too large.
    """
    if not operation.notifies_receiver:
        raise PlanError(f"operation: {operation} does not tell the receiver that data are there")
    members = tuple(range(builder.world_size)) if ranks is None else tuple(ranks)
    if len(members) != schedule.request.ranks:
        raise PlanError(f"ranks: {len(members)} for a schedule of {schedule.request.ranks}")
    return _Lowerer(schedule, builder, buffers, members, operation, after, flow_of).run()


class _Lowerer:
    def __init__(
        self,
        schedule: Schedule,
        builder: PlanBuilder,
        buffers: Sequence[BufferOffsets],
        ranks: tuple[int, ...],
        operation: Operation,
        after: Sequence[Sequence[int]] | None,
        flow_of: FlowOf | None,
    ) -> None:
        self._graph = ScheduleGraph(schedule)
        self._builder = builder
        self._buffers = tuple(buffers)
        self._ranks = ranks
        self._operation = operation
        self._after = [tuple(needed) for needed in after] if after else [()] * len(ranks)
        self._flow_of = flow_of or self._new_flow
        self._servers = builder.server_of
        self._in_flight = schedule.chunking.messages_in_flight
        self._places = [_places(schedule, rank, b) for rank, b in enumerate(self._buffers)]
        # op_ids that stand for an instruction's completion
        self._done: list[tuple[int, ...]] = [()] * len(self._graph.steps)
        self._flows: dict[tuple[int, int, int], int] = {}
        # per connection, what each of its latest SENDs waits for, and its op_id
        self._recent: dict[tuple[int, int, int], list[tuple[set[int], int]]] = {}
        # per connection, the flow of its clear-to-sends and the RECEIVEs of its latest messages
        self._cts_flows: dict[tuple[int, int, int], int] = {}
        self._received: dict[tuple[int, int, int], deque[int]] = {}

    def run(self) -> Lowering:
        graph = self._graph
        # instructions that cannot begin before everything in ``after`` is complete
        held_back = [False] * len(graph.steps)
        for number in graph.order:
            step = graph.steps[number]
            needed: set[int] = set()
            for other in graph.needs(number):
                needed.update(self._done[other])
                held_back[number] |= held_back[other]
            if step.kind is not InstructionKind.RECEIVE and not held_back[number]:
                needed.update(self._after[graph.rank[number]])
                held_back[number] = True
            if step.kind is InstructionKind.SEND:
                self._message(number, needed)
            elif step.kind is InstructionKind.RECEIVE:
                # the plan's RECEIVE is posted ahead; who waits for this one waits for both
                self._done[number] += tuple(needed)
            else:
                self._done[number] = (self._work(number, needed),)
        return Lowering(self._buffers, self._last(), len(self._flows))

    def _span(self, number: int, slot: int) -> tuple[int, int]:
        """Offset and length in bytes of an instruction's slots from ``slot`` on."""
        places = self._places[self._graph.rank[number]]
        begin = places[slot][0]
        return begin, places[slot + self._graph.steps[number].count - 1][1] - begin

    def _work(self, number: int, needed: set[int]) -> int:
        step, rank = self._graph.steps[number], self._ranks[self._graph.rank[number]]
        offset, length = self._span(number, step.slot)
        add = self._builder.reduce if step.kind is InstructionKind.REDUCE else self._builder.copy
        return add(
            rank,
            offset=offset,
            source_offset=self._span(number, step.source)[0],
            length=length,
            depends_on=sorted(needed),
        )

    def _message(self, number: int, needed: set[int]) -> None:
        graph = self._graph
        step, receive = graph.steps[number], graph.partner[number]
        offset, length = self._span(number, step.slot)
        remote_offset, _ = self._span(receive, graph.steps[receive].slot)
        source, destination = graph.rank[number], step.peer
        connection = source, destination, step.channel
        waits = self._in_order(connection, needed)
        ends: tuple[int, int | None]
        if step.local and self._share_server(source, destination):
            ends = self._builder.local_message(
                self._ranks[source],
                self._ranks[destination],
                length=length,
                offset=offset,
                remote_offset=remote_offset,
                depends_on=sorted(waits),
            )
        else:
            waits |= self._clear_to_send(connection)
            ends = self._builder.message(
                self._flow(connection),
                operation=self._operation,
                length=length,
                offset=offset,
                remote_offset=remote_offset,
                depends_on=sorted(waits),
            )
        send_op, receive_op = ends
        assert receive_op is not None
        self._done[number], self._done[receive] = (send_op,), (receive_op,)
        self._recent[connection].append((needed, send_op))
        if connection in self._received:
            self._received[connection].append(receive_op)

    def _share_server(self, source: int, destination: int) -> bool:
        first, second = (self._servers[self._ranks[rank]] for rank in (source, destination))
        return bool(first) and first == second

    def _clear_to_send(self, connection: tuple[int, int, int]) -> set[int]:
        """Add the receiver's message for the next SEND; what that must wait for, if anything."""
        source, destination, _ = connection
        target, origin = self._buffers[source].fifo, self._buffers[destination].fifo
        if target is None or origin is None:
            return set()
        if connection not in self._cts_flows:
            pair = self._builder.connect(self._ranks[destination], self._ranks[source], 1)
            self._cts_flows[connection] = self._builder.flow(pair)
        received = self._received.setdefault(connection, deque())
        needed = set(self._after[destination])
        if len(received) == self._in_flight:
            needed.add(received.popleft())
        _, cleared = self._builder.message(
            self._cts_flows[connection],
            operation=Operation.WRITE_WITH_IMM,
            length=CTS_BYTES,
            offset=origin,
            remote_offset=target,
            depends_on=sorted(needed),
        )
        assert cleared is not None
        return {cleared}

    def _in_order(self, connection: tuple[int, int, int], needed: set[int]) -> set[int]:
        """What the next SEND of a connection must wait for, so that it is not posted too early.

        It waits for all that those before it wait for, and for the completion of the one that
        leaves room for it.
        """
        recent = self._recent.setdefault(connection, [])
        waits = set(needed)
        if len(recent) == self._in_flight:
            waits.add(recent.pop(0)[1])
        for earlier, _ in recent:
            waits |= earlier
        return waits

    def _flow(self, connection: tuple[int, int, int]) -> int:
        if connection not in self._flows:
            source, destination, channel = connection
            self._flows[connection] = self._flow_of(
                self._ranks[source], self._ranks[destination], channel
            )
        return self._flows[connection]

    def _new_flow(self, source: int, destination: int, channel: int) -> int:
        return self._builder.flow(self._builder.connect(source, destination))

    def _last(self) -> tuple[tuple[int, ...], ...]:
        graph = self._graph
        last: list[set[int]] = [set() for _ in self._ranks]
        for number, done in enumerate(self._done):
            last[graph.rank[number]].update(done)
        for number in range(len(graph.steps)):
            for other in graph.needs(number):
                last[graph.rank[number]] -= set(self._done[other])
        return tuple(tuple(sorted(ops)) for ops in last)


def _places(schedule: Schedule, rank: int, buffers: BufferOffsets) -> list[tuple[int, int]]:
    """(begin, end) in bytes of every slot of a rank."""
    layout, itemsize = schedule.layouts[rank], schedule.request.itemsize
    return [
        *byte_bounds(layout.input, itemsize, buffers.input),
        *byte_bounds(layout.output, itemsize, buffers.output),
        *byte_bounds(layout.scratch, itemsize, buffers.scratch),
    ]
