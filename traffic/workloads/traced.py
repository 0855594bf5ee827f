"""What workloads that come from a trace have in common: parameters, plan, and verification."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from testbed.units import Size
from traffic.collectives.choice import AlgorithmRule
from traffic.collectives.request import Collective, ScheduleError
from traffic.locations import gpus_per_server
from traffic.lowering import (
    Arrangement,
    ArrangementVerifier,
    CollectiveOptions,
    arrange,
    lower_trace,
)
from traffic.plan import (
    MAX_MESSAGE_BYTES,
    DataType,
    Operation,
    Plan,
    PlanError,
    WorkloadParameters,
)
from traffic.plan_builder import PlanBuilder
from traffic.replay.trace import Trace, TraceError, side_by_side
from traffic.training.shape import TrainingError
from traffic.workloads.base import (
    JobReference,
    NotifyingOperation,
    Reference,
    Workload,
    members,
    workload_class,
)


class CollectiveRuleParameters(BaseModel):
    """A row of the table that algorithms are chosen by."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    collective: Collective = Field(description="what the row speaks of")
    algorithm: str = Field(description="name of the algorithm")
    up_to: Size | None = Field(None, gt=0, description="largest size it is for; default: any")


class TracedParameters(WorkloadParameters):
    """Where a trace's ranks run, and how its collectives are carried out."""

    ranks: tuple[int, ...] | None = Field(
        None, description="the GPU of each of the job's ranks; default: all, in order"
    )
    algorithm_table: tuple[CollectiveRuleParameters, ...] = Field(
        (), description="rules for the choice of algorithms, before the built-in ones"
    )
    channels: int = Field(1, ge=1, le=64, description="parts that a collective's data are cut into")
    chunk: Annotated[Size, Field(gt=0, le=MAX_MESSAGE_BYTES)] | None = Field(
        None, description="largest message of a pipelined algorithm; default: the algorithm's own"
    )
    dtype: DataType = Field(
        DataType.FLOAT32, description="type of the numbers that are reduced; sizes are in bytes"
    )
    operation: NotifyingOperation = Field(
        Operation.WRITE_WITH_IMM, description="verb that carries the messages"
    )

    def options(self) -> CollectiveOptions:
        """How collectives are carried out. Raises ScheduleError."""
        rules = (AlgorithmRule(r.collective, r.algorithm, r.up_to) for r in self.algorithm_table)
        return CollectiveOptions(tuple(rules), self.channels, self.chunk, self.dtype)


Jobs = tuple[tuple[int, ...], ...]
"""The GPUs of each job's ranks."""


class TracedWorkload(Workload):
    """A workload whose plan is a trace, lowered; every job of the plan runs one of its own."""

    @abc.abstractmethod
    def trace(self, parameters: Any, ranks: int, gpus_per_server: int, seed: int) -> Trace:
        """The trace of at most so many ranks, of which each server has ``gpus_per_server``.

        Raises TraceError, TrainingError or PlanError.
        """

    @abc.abstractmethod
    def job(self, plan: Plan) -> JobReference | None:
        """What the plan's times refer to; all jobs together."""

    def has_separate_messages(self, parameters: Any) -> bool:
        """Whether every message is a flow of its own, with a completion time and a connection."""
        return False

    def options(self, parameters: Any) -> CollectiveOptions:
        """How collectives are carried out. Raises ScheduleError or TraceError."""
        p: TracedParameters = parameters
        return p.options()

    def fill(self, builder: PlanBuilder, parameters: Any) -> None:
        """Add the trace's operations."""
        p: TracedParameters = parameters
        builder.dtype = p.dtype
        arrangement = _arrangement(self.name, p, builder.jobs, builder.server_of, builder.seed)
        lower_trace(
            arrangement,
            builder,
            operation=p.operation,
            separate_messages=self.has_separate_messages(p),
        )

    def reference(self, plan: Plan) -> Reference:
        """S is all that crosses the network."""
        return Reference(
            plan.payload_bytes, plan.payload_bytes, 1.0, len(self.arrangement(plan).ranks)
        )

    def verify(self, plan: Plan, rank: int, memory: Any) -> int:
        """Compare what is still there at the end with numpy's results."""
        verifier = _verifier(self.name, plan.parameters, plan.jobs, plan.servers, plan.seed)
        return verifier.wrong_elements(plan, rank, memory)

    def arrangement(self, plan: Plan) -> Arrangement:
        """How the plan's trace lies in memory."""
        return _arrangement(self.name, plan.parameters, plan.jobs, plan.servers, plan.seed)

    def verification_note(self, plan: Plan) -> str:
        """How much of the collectives' results is compared with numpy's, in words."""
        arrangement = self.arrangement(plan)
        total = sum(len(placed.call.nodes) for placed in arrangement.calls)
        if not total:
            return ""  # messages, no collectives
        left = len(arrangement.intact)
        rest = " (others are overwritten)" if left < total else ""
        return f"results verified: {left} of {total}{rest}"


def worlds(
    parameters: TracedParameters, jobs: Jobs, servers: Sequence[str]
) -> list[tuple[tuple[int, ...], int]]:
    """The GPUs that there are for every job, and how many of a job's a server has."""
    orders = [members(None, job) for job in jobs]
    if parameters.ranks is not None:
        orders = [members(parameters.ranks, [rank for job in jobs for rank in job])]
    return [(order, gpus_per_server([servers[rank] for rank in order])) for order in orders]


@lru_cache(maxsize=4)
def _arrangement(
    name: str, parameters: Any, jobs: Jobs, servers: tuple[str, ...], seed: int
) -> Arrangement:
    """Remembered, as planning, explaining and verifying all need it."""
    workload: Any = workload_class(name)()
    traces: list[Trace] = []
    ranks: list[int] = []
    try:
        options = workload.options(parameters)
        for order, per_server in worlds(parameters, jobs, servers):
            trace = workload.trace(parameters, len(order), per_server, seed)
            if trace.world_size > len(order):
                raise PlanError(
                    f"the trace has {trace.world_size} ranks; allowed: at most {len(order)}, "
                    "the GPUs that there are for it"
                )
            traces.append(trace)
            ranks += order[: trace.world_size]
        return arrange(side_by_side(traces), ranks, [servers[rank] for rank in ranks], options)
    except (ScheduleError, TraceError, TrainingError) as error:
        raise PlanError(str(error)) from error


@lru_cache(maxsize=1)
def _verifier(
    name: str, parameters: Any, jobs: Jobs, servers: tuple[str, ...], seed: int
) -> ArrangementVerifier:
    return ArrangementVerifier(_arrangement(name, parameters, jobs, servers, seed))
