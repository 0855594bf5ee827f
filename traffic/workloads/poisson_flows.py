"""Flows of random sizes between random pairs: the classic load of flow completion time studies."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import Field

from testbed.units import BitRate, Duration
from traffic.plan import Plan
from traffic.replay.files import read_file
from traffic.replay.flow_sizes import (
    FlowSizes,
    flow_size_names,
    parse_flow_sizes,
    published_flow_sizes,
)
from traffic.replay.flows import flows_trace, generate_flows
from traffic.replay.trace import Trace, TraceError, scaled
from traffic.workloads.base import JobReference, register_workload
from traffic.workloads.traced import TracedParameters, TracedWorkload


class PoissonFlowsParameters(TracedParameters):
    """How large flows are, and how many of them there are."""

    sizes: str = Field(
        "web-search",
        description="web-search, fb-hadoop, or a file of sizes in bytes and percentages, from the "
        "current directory",
    )
    load: float = Field(0.3, gt=0, le=1, description="share of each NIC's rate that is sent")
    rate: BitRate = Field(400e9, gt=0, description="rate of a NIC, which load refers to")
    duration: Duration = Field(100e-6, gt=0, description="emulated time in which flows begin")
    size_scale: float = Field(
        1.0, gt=0, description="what sizes are multiplied by; the load stays, flows are more"
    )


@register_workload
class PoissonFlows(TracedWorkload):
    """Every flow on a connection of its own; arrivals at every source are a Poisson process."""

    name = "poisson-flows"
    Parameters = PoissonFlowsParameters

    def trace(self, parameters: Any, ranks: int, gpus_per_server: int, seed: int) -> Trace:
        """The flows as sends and receives. Raises TraceError."""
        p: PoissonFlowsParameters = parameters
        # with sizes scaled down afterwards, the load is that of a slower network now
        flows = generate_flows(
            _sizes(p.sizes),
            hosts=ranks,
            load=p.load,
            rate=p.rate / p.size_scale,
            duration=p.duration,
            seed=seed,
        )
        if not flows:
            raise TraceError(f"duration: no flow begins within {p.duration} s; allowed: longer")
        return scaled(flows_trace(flows, hosts=ranks, source=p.sizes), size=p.size_scale)

    def has_separate_messages(self, parameters: Any) -> bool:
        """All that these flows are for is their completion times."""
        return True

    def job(self, plan: Plan) -> JobReference | None:
        """None: nothing is computed."""
        return None


@lru_cache(maxsize=8)
def _sizes(name: str) -> FlowSizes:
    """A distribution by name, spelt in any way (WebSearch), or from a file. Raises TraceError."""
    for known in flow_size_names():
        if known.replace("-", "") == name.lower().replace("-", "").replace("_", ""):
            return published_flow_sizes(known)
    if not Path(name).exists():
        raise TraceError(
            f"sizes: {name!r} is no file; allowed: {', '.join(flow_size_names())}, or a file"
        )
    try:
        return parse_flow_sizes(read_file(Path(name)))
    except TraceError as error:
        named = str(error).startswith(f"{Path(name)}: ")
        raise TraceError(f"sizes: {error}" if named else f"sizes: {name}: {error}") from error
