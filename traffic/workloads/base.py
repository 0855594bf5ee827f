"""The workload interface, its registry, and the parameter types that workloads share."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from testbed.units import Size
from traffic.collectives.communicators import Communicator
from traffic.collectives.request import bus_factor
from traffic.locations import RankLocation
from traffic.payload import verify_messages
from traffic.plan import (
    MAX_MESSAGE_BYTES,
    Flow,
    Operation,
    Plan,
    PlanError,
    QpScaling,
    WorkloadParameters,
)
from traffic.plan_builder import PlanBuilder

MessageSize = Annotated[Size, Field(gt=0, le=MAX_MESSAGE_BYTES)]
"""Bytes of one message: at least 1, at most what a queue pair can send at once."""

NotifyingOperation = Literal[Operation.WRITE_WITH_IMM, Operation.SEND, Operation.SEND_WITH_IMM]
"""Verbs whose receiver learns that a message has come, as the next step of an algorithm must."""


RECEIVE_MEMORY_TARGET = 64 * 2**20
"""Bytes of receive memory of a rank beyond which messages of one flow reuse their place."""


def receive_slots(messages: int, slot_bytes: int) -> int:
    """How many of a flow's messages get a place of their own; at least one, at most all.

    ``slot_bytes`` is what one more slot costs the receiving rank, over all flows. Message i uses
    slot i modulo the result, at both ends, so that a reused place gets the same bytes again.
    """
    return max(1, min(messages, RECEIVE_MEMORY_TARGET // slot_bytes))


def members(chosen: Sequence[int] | None, gpu_ranks: Sequence[int]) -> tuple[int, ...]:
    """The GPUs of a collective: those of the ranks ``chosen``, in that order, or all.

    Rank r runs on ``gpu_ranks[r]``. Raises PlanError for fewer than two, one twice, and any
    without a GPU.
    """
    if chosen is None:
        if len(gpu_ranks) < 2:
            raise PlanError(f"world_size: 2 GPUs or more are needed, not {len(gpu_ranks)}")
        return tuple(gpu_ranks)
    for rank in chosen:
        if not 0 <= rank < len(gpu_ranks):
            raise PlanError(f"ranks: {rank} has no GPU; allowed: 0 to {max(0, len(gpu_ranks) - 1)}")
        if chosen.count(rank) > 1:
            raise PlanError(f"ranks: {rank} is listed twice")
    if len(chosen) < 2:
        raise PlanError(f"ranks: {len(chosen)} listed; allowed: 2 or more")
    return tuple(gpu_ranks[rank] for rank in chosen)


@dataclass(frozen=True, slots=True)
class Reference:
    """What a workload moves, for rates.

    ``payload_bytes`` counts every message once. ``size_bytes`` is S and ``bus_factor`` the factor
    of nccl-tests (doc/PERFORMANCE.md): algbw = S / t, busbw = algbw x factor. ``ranks`` take part;
    None says all that have a GPU.
    """

    payload_bytes: int
    size_bytes: int
    bus_factor: float
    ranks: int | None = None


def collective_reference(plan: Plan, communicators: Sequence[Communicator]) -> Reference:
    """S and the factor as nccl-tests has them for each collective, of one communicator."""
    request = communicators[0].schedule.request
    return Reference(
        payload_bytes=plan.payload_bytes,
        size_bytes=request.elements * request.itemsize,
        bus_factor=bus_factor(request.collective, request.ranks),
        ranks=len({rank for communicator in communicators for rank in communicator.ranks}),
    )


@dataclass(frozen=True, slots=True)
class JobReference:
    """What the times of a training job or a replayed trace refer to.

    ``ranks`` take part. ``tokens`` are what an iteration of all ranks learns from, None for what
    is no training. ``size_scale`` and ``time_scale`` are what the original's sizes and times were
    multiplied by. ``notes`` say in words what was cut down, ``verified`` how much of the results
    is compared with numpy's.
    """

    ranks: tuple[int, ...]
    iterations: int
    tokens: int | None
    size_scale: float
    time_scale: float
    notes: tuple[str, ...]
    verified: str = ""


class Workload(abc.ABC):
    """A pattern of traffic: turns parameters into a plan, and knows what must come out of it."""

    name: ClassVar[str]
    Parameters: ClassVar[type[WorkloadParameters]]
    is_collective: ClassVar[bool] = False
    """Whether algbw and busbw mean something for it; they do for what has communicators, too."""

    @abc.abstractmethod
    def fill(self, builder: PlanBuilder, parameters: Any) -> None:
        """Add all memory, connections, flows and operations to the builder.

        Raises PlanError when the parameters do not fit the builder's world size.
        """

    @abc.abstractmethod
    def reference(self, plan: Plan) -> Reference:
        """The sizes that rates are computed from."""

    def plan(
        self,
        parameters: WorkloadParameters,
        *,
        world_size: int,
        seed: int,
        qp_scaling: QpScaling | None = None,
        locations: Sequence[RankLocation] | None = None,
        jobs: Sequence[Sequence[int]] | None = None,
    ) -> Plan:
        """The plan of this workload; equal arguments give equal plans. Raises PlanError.

        By default a connection has one queue pair, and all ranks are GPUs of one job.
        """
        builder = PlanBuilder(
            workload=self.name,
            parameters=parameters,
            world_size=world_size,
            seed=seed,
            qp_scaling=qp_scaling or QpScaling(),
            locations=locations,
            jobs=jobs,
        )
        self.fill(builder, parameters)
        return builder.build()

    def collective_flows(self, plan: Plan) -> Sequence[Flow]:
        """The flows whose time is that of the collective; all, unless there is other traffic."""
        return plan.flows

    def job(self, plan: Plan) -> JobReference | None:
        """What the plan's times refer to; None unless ranks compute as well as communicate."""
        return None

    def communicators(self, plan: Plan) -> Sequence[Communicator]:
        """Who carries out a single collective, and how; none where the plan is something else."""
        return ()

    def verify(self, plan: Plan, rank: int, memory: Any) -> int:
        """Number of wrong elements of ``plan.dtype`` in a rank's memory after the traffic."""
        return verify_messages(plan, rank, memory)


_workloads: dict[str, type[Workload]] = {}


def register_workload(cls: type[Workload]) -> type[Workload]:
    """Class decorator: make a workload available under its name."""
    if cls.name in _workloads:
        raise ValueError(f"workload {cls.name!r} is registered twice")
    _workloads[cls.name] = cls
    return cls


def workload_names() -> list[str]:
    """Names of all workloads, sorted."""
    return sorted(_workloads)


def workload_class(name: str) -> type[Workload]:
    """The workload class of that name. Raises ValueError that lists the allowed names."""
    if name not in _workloads:
        raise ValueError(f"unknown workload {name!r}; allowed: {', '.join(workload_names())}")
    return _workloads[name]


def create_workload(name: str) -> Workload:
    """A workload by name. Raises ValueError that lists the allowed names."""
    return workload_class(name)()


def verify_rank(plan: Plan, rank: int, memory: Any) -> int:
    """Number of wrong elements in a rank's memory after the plan's traffic; 0 is right.

    Compared bit for bit. ``memory`` is any buffer of the rank's bytes.
    """
    return create_workload(plan.workload).verify(plan, rank, memory)
