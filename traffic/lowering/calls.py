"""Chooses how each collective of a trace is carried out: the ranks' order, algorithm, schedule.

Members are put in the order of their servers. Where every server has as many of them, the
algorithm knows which transfers can take NVLink.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from traffic.collectives.algorithms import algorithms_for, create_algorithm
from traffic.collectives.choice import DEFAULT_TABLE, AlgorithmRule
from traffic.collectives.request import (
    Collective,
    CollectiveRequest,
    ScheduleError,
    largest_buffer,
)
from traffic.collectives.schedule import Schedule
from traffic.plan import DataType
from traffic.plan_builder import OPERATION_LIMIT
from traffic.replay.trace import NodeKey, Trace, TraceNode


@dataclass(frozen=True)
class CollectiveOptions:
    """How collectives are carried out.

    ``rules`` come before those of the table that chooses algorithms. ``slice_bytes`` is the largest
    message of a pipelined algorithm (None: the algorithm's own). ``dtype`` is the type of the
    numbers, whose bytes are what the trace says, rounded up to whole elements. ``schedule_of``
    makes the schedules instead of the algorithms. Raises ScheduleError for a rule whose algorithm
    does not exist or cannot do its collective.
    """

    rules: tuple[AlgorithmRule, ...] = ()
    channels: int = 1
    slice_bytes: int | None = None
    dtype: DataType = DataType.FLOAT32
    schedule_of: Callable[[CollectiveRequest], Schedule] | None = None

    def __post_init__(self) -> None:
        for rule in self.rules:
            if rule.collective not in create_algorithm(rule.algorithm).collectives:
                able = ", ".join(algorithms_for(rule.collective))
                raise ScheduleError(
                    f"algorithm: {rule.algorithm} cannot do {rule.collective}; allowed: {able}"
                )


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """One call: ``nodes[i]`` is that of the communicator's rank i; ``number`` counts from 0.

    ``contributors[i]`` are the positions of those whose part rank i cannot end without.
    """

    number: int
    nodes: tuple[NodeKey, ...]
    schedule: Schedule
    contributors: tuple[tuple[int, ...], ...]


class CallPlanner:
    """Makes schedules; equal calls share one, as a schedule does not say who the ranks are.

    Raises ScheduleError for more than a plan can hold.
    """

    def __init__(self, options: CollectiveOptions) -> None:
        self._options = options
        self._table = DEFAULT_TABLE.overridden(options.rules)
        self._schedules: dict[CollectiveRequest, Schedule] = {}
        self._count = 0
        self._operations = 0

    def call(self, trace: Trace, nodes: Sequence[NodeKey], servers: Sequence[str]) -> (
        CollectiveCall | None
    ):  # fmt: skip
        """The call that some nodes are; ``servers[rank]`` is a trace rank's server.

        None if there is nothing to move. Raises ScheduleError for what no algorithm can do.
        """
        order, gpus = _by_server(nodes, servers)
        request = self._request(trace, nodes, order, gpus)
        if request is None:
            return None
        schedule = self._schedules.get(request)
        if schedule is None:
            schedule = self._schedules[request] = self._schedule(request)
        self._count += 1
        self._operations += sum(map(len, schedule.programs))
        if self._operations > OPERATION_LIMIT:
            raise ScheduleError(
                f"more than {OPERATION_LIMIT} operations in the first {self._count} collectives; "
                "allowed: fewer ranks, collectives, iterations or messages"
            )
        return CollectiveCall(
            self._count - 1,
            tuple(nodes[position] for position in order),
            schedule,
            tuple(_contributors(schedule.request, own) for own in range(request.ranks)),
        )

    def _request(
        self, trace: Trace, nodes: Sequence[NodeKey], order: Sequence[int], gpus: int
    ) -> CollectiveRequest | None:
        first = _node(trace, nodes[0])
        itemsize, members = self._options.dtype.itemsize, len(nodes)
        if members < 2 or first.collective is None:
            return None
        elements, counts = -(-first.size // itemsize), None
        if first.collective is Collective.BARRIER:
            elements = 1
        elif first.collective is Collective.ALL_TO_ALLV:
            sizes = [_node(trace, nodes[position]).sizes for position in order]
            counts = tuple(tuple(-(-row[peer] // itemsize) for peer in order) for row in sizes)
            elements = largest_buffer(counts)
        elif first.collective in (Collective.ALL_GATHER, Collective.GATHER):
            elements *= members
        if not elements:
            return None
        return CollectiveRequest(
            collective=first.collective,
            ranks=members,
            elements=elements,
            itemsize=itemsize,
            root=order.index(first.root),
            channels=self._options.channels,
            gpus_per_server=gpus,
            counts=counts,
        )

    def _schedule(self, request: CollectiveRequest) -> Schedule:
        if self._options.schedule_of is not None:
            return self._options.schedule_of(request)
        size = request.elements * request.itemsize
        name = self._table.choose(request.collective, size, request.gpus_per_server)
        algorithm = create_algorithm(name)
        if self._options.slice_bytes is not None:
            chunking = replace(
                algorithm.chunking_of(request),
                slice_bytes=self._options.slice_bytes,
                slices_per_chunk=1,
            )
            request = replace(request, chunking=chunking)
        return algorithm.schedule(request)


def _node(trace: Trace, key: NodeKey) -> TraceNode:
    return trace.ranks[key[0]][key[1]]


def _by_server(nodes: Sequence[NodeKey], servers: Sequence[str]) -> tuple[list[int], int]:
    """Positions of the members with those of a server in a row, and how many a server has.

    1 where the servers are unknown or have different numbers of members.
    """
    places = [servers[rank] for rank, _ in nodes]
    sizes = Counter(places)
    gpus = sizes[places[0]]
    if "" in sizes or len(set(sizes.values())) > 1:
        gpus = 1
    order = sorted(range(len(nodes)), key=lambda position: places.index(places[position]))
    return order, gpus


def _contributors(request: CollectiveRequest, own: int) -> tuple[int, ...]:
    """Whose data a rank's result cannot do without; the rank itself always."""
    everybody = tuple(range(request.ranks))
    match request.collective:
        case Collective.ALL_REDUCE | Collective.BARRIER | Collective.ALL_GATHER:
            return everybody
        case Collective.REDUCE_SCATTER if request.blocks[own]:
            return everybody
        case Collective.REDUCE | Collective.GATHER if own == request.root:
            return everybody
        case Collective.BROADCAST | Collective.SCATTER:
            return tuple(sorted({own, request.root}))
        case Collective.ALL_TO_ALL | Collective.ALL_TO_ALLV:
            return tuple(r for r in everybody if r == own or request.count(r, own))
        case _:
            return (own,)
