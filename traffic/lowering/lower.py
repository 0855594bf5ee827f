"""Makes operations of an arranged trace: computations, messages and schedules, in its order."""

from __future__ import annotations

from collections.abc import Sequence

from traffic.collectives.lowering import lower
from traffic.lowering.arrangement import Arrangement, PlacedCall
from traffic.plan import Operation, PlanError
from traffic.plan_builder import PlanBuilder
from traffic.replay.trace import NodeKey, NodeKind, TraceNode

JOIN_LIMIT = 6
"""Operations that one operation waits for; more are gathered in one that does nothing."""

_MESSAGES = "messages"
"""What stands for a communicator's name where two ranks talk alone."""


def lower_trace(
    arrangement: Arrangement,
    builder: PlanBuilder,
    *,
    operation: Operation = Operation.WRITE_WITH_IMM,
    separate_messages: bool = False,
) -> None:
    """Add an arranged trace to a plan, with its memory.

    Each communicator has its own connections: one flow per channel and pair of ranks. Messages
    between two ranks share one as well, unless ``separate_messages`` gives each its own, and all
    of them the network. What else stays within a server takes NVLink. Raises PlanError for a verb
    that does not tell the receiver, for a plan that is too large, and if nothing is left for the
    network.
    """
    if not operation.notifies_receiver:
        raise PlanError(f"operation: {operation} does not tell the receiver that data are there")
    for rank, needed in arrangement.memory.items():
        builder.memory(rank, initialised=needed.initialised, total=needed.total)
    lowerer = _Lowerer(arrangement, builder, operation, separate_messages)
    lowerer.run()
    if not lowerer.flows:
        raise PlanError(
            "nothing crosses the network: no rank sends to one of another server; "
            "allowed: more ranks, or fewer of them in a server"
        )


class _Lowerer:
    def __init__(
        self,
        arrangement: Arrangement,
        builder: PlanBuilder,
        operation: Operation,
        separate_messages: bool,
    ) -> None:
        self._arrangement = arrangement
        self._trace = arrangement.trace
        self._ranks = arrangement.ranks
        self._builder = builder
        self._operation = operation
        self._separate = separate_messages
        self._servers = builder.server_of
        self._sends = {send: receive for receive, send in arrangement.edges.items()}
        # operations whose completion is that of a node
        self._done: dict[NodeKey, tuple[int, ...]] = {}
        self._positions = [
            {node.node_id: position for position, node in enumerate(nodes)}
            for nodes in self._trace.ranks
        ]
        self._arrivals: dict[NodeKey, int] = {}
        self.flows: dict[tuple[str, int, int, int], int] = {}

    def run(self) -> None:
        for nodes, placed in self._arrangement.steps:
            if placed is not None:
                self._collective(placed)
                continue
            for key in nodes:
                self._single(key)

    def _node(self, key: NodeKey) -> TraceNode:
        return self._trace.ranks[key[0]][key[1]]

    def _needed(self, key: NodeKey) -> tuple[int, ...]:
        """The operations that a node has to wait for; few of them."""
        rank, node = key[0], self._node(key)
        operations: set[int] = set()
        for other in node.dependencies:
            operations.update(self._done[rank, self._positions[rank][other]])
        needed = tuple(sorted(operations))
        if len(needed) > JOIN_LIMIT:
            needed = (self._compute(key, needed, 0.0),)
        return needed

    def _compute(self, key: NodeKey, needed: Sequence[int], duration: float) -> int:
        node = self._node(key)
        return self._builder.compute(
            self._ranks[key[0]],
            duration=duration,
            depends_on=needed,
            start=node.start,
            name=node.name,
        )

    def _single(self, key: NodeKey) -> None:
        """A node of one rank, or its part of a collective that moves nothing."""
        node, needed = self._node(key), self._needed(key)
        if node.kind is NodeKind.SEND:
            self._done[key] = (self._message(key, node, needed),)
        elif node.kind is NodeKind.RECEIVE:
            self._done[key] = (*needed, self._arrivals.pop(key))
        elif node.duration or node.start:
            self._done[key] = (self._compute(key, needed, node.duration),)
        else:
            self._done[key] = needed

    def _message(self, key: NodeKey, node: TraceNode, needed: Sequence[int]) -> int:
        """Add a message; remembers its arrival for the RECEIVE. Returns the SEND."""
        landing = self._arrangement.landings[key[0], node.peer]
        source, destination = self._ranks[key[0]], self._ranks[node.peer]
        ends: tuple[int, int | None]
        together = self._servers[source] and self._servers[source] == self._servers[destination]
        if together and not self._separate:
            ends = self._builder.local_message(
                source, destination, length=node.size, offset=0, remote_offset=landing,
                depends_on=needed, start=node.start,
            )  # fmt: skip
        else:
            ends = self._builder.message(
                self._flow(_MESSAGES, source, destination, key[1] if self._separate else 0),
                operation=self._operation,
                length=node.size,
                offset=0,
                remote_offset=landing,
                depends_on=needed,
                start=node.start,
            )
        send, receive = ends
        assert receive is not None
        self._arrivals[self._sends[key]] = receive
        return send

    def _collective(self, placed: PlacedCall) -> None:
        call, communicator = placed.call, placed.communicator
        after = []
        for key in call.nodes:
            needed = self._needed(key)
            if self._node(key).start:
                needed = (self._compute(key, needed, 0.0),)
            after.append(needed)
        group = self._node(call.nodes[0]).group
        lowering = lower(
            communicator.schedule,
            self._builder,
            buffers=communicator.buffers,
            ranks=communicator.ranks,
            operation=self._operation,
            after=after,
            flow_of=lambda source, destination, channel: self._flow(
                group, source, destination, channel
            ),
        )
        for key, last, needed in zip(call.nodes, lowering.last, after, strict=True):
            # a rank that only receives may end before its own turn has come
            self._done[key] = tuple(sorted({*last, *needed}))

    def _flow(self, group: str, source: int, destination: int, channel: int) -> int:
        """The flow of a communicator between two ranks on a channel; made when first asked for.

        Messages that are separate count as channels.
        """
        name = group, source, destination, channel
        if name not in self.flows:
            self.flows[name] = self._builder.flow(self._builder.connect(source, destination))
        return self.flows[name]
