"""Replay of a trace that others recorded or wrote, from a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from testbed.units import Size
from traffic.collectives.communicators import Communicator
from traffic.collectives.proof import prove
from traffic.collectives.request import Collective, CollectiveRequest
from traffic.collectives.schedule import Schedule
from traffic.lowering import CollectiveOptions
from traffic.plan import Plan
from traffic.replay import TraceOptions, guess_format, load_trace
from traffic.replay.files import read_file
from traffic.replay.msccl import MscclAlgorithm, parse_msccl
from traffic.replay.msccl_check import verify_msccl
from traffic.replay.msccl_schedule import msccl_collective, msccl_schedule
from traffic.replay.trace import NodeKind, Trace, TraceError, TraceNode
from traffic.workloads.base import (
    JobReference,
    Reference,
    collective_reference,
    register_workload,
)
from traffic.workloads.traced import TracedParameters, TracedWorkload

AUTOMATIC: Final = "auto"

_FORMATS = {
    AUTOMATIC: "",
    "chakra": "chakra",
    "astra-sim": "text",
    "simai": "text",
    "msccl": "msccl",
    "hpcc-flows": "flows",
}
"""Name in scenarios -> name of the reader."""


class GroupParameters(BaseModel):
    """A process group of a Chakra trace."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(description="pg_name")
    ranks: tuple[int, ...] = Field(min_length=1, description="its ranks, in order")


class ReplayParameters(TracedParameters):
    """Which file, what it does not say itself, and by how much it is scaled."""

    path: str = Field(
        min_length=1,
        description="the trace, from the current directory; of one file per rank, any of them, "
        "their directory, or the beginning of their names",
    )
    format: Literal["auto", "chakra", "astra-sim", "simai", "msccl", "hpcc-flows"] = Field(
        AUTOMATIC, description="what wrote it; auto guesses"
    )
    world_size: int | None = Field(
        None, ge=1, description="ranks of a format that does not say it; default: all GPUs"
    )
    size: Size | None = Field(
        None, gt=0, description="bytes that an MSCCL algorithm works on, as nccl-tests counts"
    )
    model_group: int | None = Field(
        None, ge=1, description="ranks of a tensor parallel group, for text workloads"
    )
    one_stage: bool = Field(False, description="replay the one pipeline stage of a SimAI workload")
    groups: tuple[GroupParameters, ...] | None = Field(
        None, description="process groups of a Chakra trace; default: those who use the name"
    )
    compute_rate: float | None = Field(
        None, gt=0, description="FLOP/s, for Chakra nodes that have operations but no duration"
    )
    size_scale: float = Field(1.0, gt=0, description="what all sizes are multiplied by")
    time_scale: float = Field(1.0, gt=0, description="what all times are multiplied by")


@register_workload
class Replay(TracedWorkload):
    """The trace's computations, messages and collectives, with its dependencies."""

    name = "replay"
    Parameters = ReplayParameters

    def trace(self, parameters: Any, ranks: int, gpus_per_server: int, seed: int) -> Trace:
        """The trace in the file, scaled. Raises TraceError."""
        p: ReplayParameters = parameters
        if _reader(p) == "msccl":
            return _one_call(p, _algorithm(p))
        options = TraceOptions(
            world_size=p.world_size,
            gpus=ranks,
            model_group=p.model_group,
            one_stage=p.one_stage,
            groups=None if p.groups is None else {g.name: g.ranks for g in p.groups},
            compute_rate=p.compute_rate,
            size_scale=p.size_scale,
            time_scale=p.time_scale,
        )
        return load_trace(Path(p.path), trace_format=_reader(p), options=options)

    def has_separate_messages(self, parameters: Any) -> bool:
        """The flows of a file have completion times of their own."""
        return _reader(parameters) == "flows"

    def options(self, parameters: Any) -> CollectiveOptions:
        """The schedule of an MSCCL file, proved right; else algorithms as the parameters say."""
        p: ReplayParameters = parameters
        options = p.options()
        if _reader(p) != "msccl":
            return options
        algorithm = _algorithm(p)

        def schedule_of(request: CollectiveRequest) -> Schedule:
            schedule = msccl_schedule(
                algorithm,
                request.elements,
                itemsize=request.itemsize,
                gpus_per_server=request.gpus_per_server,
            )
            prove(schedule)
            return schedule

        return replace(options, schedule_of=schedule_of)

    def communicators(self, plan: Plan) -> Sequence[Communicator]:
        """Those of a trace that is one collective and nothing else, as an MSCCL algorithm is."""
        arrangement = self.arrangement(plan)
        calls = arrangement.calls
        requests = [placed.call.schedule.request for placed in calls]
        alike = {(r.collective, r.ranks, r.elements) for r in requests}
        busy = sum(len(placed.call.nodes) for placed in calls)
        if len(alike) != 1 or busy != sum(map(len, arrangement.trace.ranks)):
            return ()
        if any(len(nodes) > 1 for nodes in arrangement.trace.ranks):
            return ()  # one after the other
        return [placed.communicator for placed in calls]

    def reference(self, plan: Plan) -> Reference:
        """That of the collective, if there is one; else S is all that crosses the network."""
        communicators = self.communicators(plan)
        if not communicators:
            return super().reference(plan)
        return collective_reference(plan, communicators)

    def job(self, plan: Plan) -> JobReference:
        """The whole trace counts as one iteration."""
        p: Any = plan.parameters
        arrangement = self.arrangement(plan)
        trace = arrangement.trace
        nodes = sum(map(len, trace.ranks))
        return JobReference(
            ranks=arrangement.ranks,
            iterations=1,
            tokens=None,
            size_scale=trace.size_scale,
            time_scale=trace.time_scale,
            notes=(
                f"{Path(p.path).name}: {trace.world_size} ranks, {nodes} nodes; "
                f"sizes × {trace.size_scale:g}, times × {trace.time_scale:g}",
            ),
            verified=self.verification_note(plan),
        )


def _reader(p: ReplayParameters) -> str:
    """The name of the reader of the file. Raises TraceError."""
    return _FORMATS[p.format] or guess_format(Path(p.path))


def _algorithm(p: ReplayParameters) -> MscclAlgorithm:
    """The algorithm in the file, verified in its own terms. Raises TraceError."""
    try:
        algorithm = parse_msccl(read_file(Path(p.path)))
        verify_msccl(algorithm)
        return algorithm
    except TraceError as error:
        if str(error).startswith(f"{Path(p.path)}: "):
            raise
        raise TraceError(f"{p.path}: {error}") from error


def _one_call(p: ReplayParameters, algorithm: MscclAlgorithm) -> Trace:
    """An MSCCL algorithm as the one collective that it carries out."""
    if p.size is None:
        raise TraceError(f"{p.path}: an algorithm works on any number of bytes; give the size")
    collective, ranks = msccl_collective(algorithm), len(algorithm.gpus)
    size = round(p.size * p.size_scale)
    chunk = algorithm.chunks_per_loop * p.dtype.itemsize
    if size % chunk:
        raise TraceError(
            f"{p.path}: size {size} bytes; allowed: multiples of {chunk}, which is "
            f"{algorithm.chunks_per_loop} chunks of {p.dtype} elements"
        )
    if collective is Collective.ALL_GATHER:
        size //= ranks
    node = TraceNode(0, NodeKind.COLLECTIVE, algorithm.name, size=size, collective=collective)
    return Trace(p.path, ((node,),) * ranks, size_scale=p.size_scale, time_scale=p.time_scale)
