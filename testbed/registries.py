"""The strategies that a scenario may name, whichever package registers them.

The packages are imported when they are first asked for, because they pull in the traffic and
routing code, which `rocelab --help` can do without.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pydantic import BaseModel

if TYPE_CHECKING:
    from traffic.workloads import Workload


def topology_parameters() -> dict[str, type[BaseModel]]:
    """Topology family -> model of its parameters."""
    from testbed.topology import topology_kinds

    return {name: kind.parameters for name, kind in topology_kinds().items()}


def scheme_parameters() -> dict[str, type[BaseModel]]:
    """Routing scheme -> model of its parameters."""
    from controllers.schemes import scheme_class, scheme_names

    return {name: scheme_class(name).parameters_type for name in scheme_names()}


def workload_parameters() -> dict[str, type[BaseModel]]:
    """Workload -> model of its parameters."""
    from traffic.workloads import workload_class, workload_names

    return {name: workload_class(name).Parameters for name in workload_names()}


def workload(name: str) -> Workload:
    """The workload of that name. Raises ValueError."""
    from traffic.workloads import create_workload

    return create_workload(name)


def recovery_names(transport: str) -> list[str]:
    """Names of the loss recovery schemes for a transport, "rc" or "uc"."""
    from traffic.recovery import recovery_names as names
    from traffic.verbs import QpType

    return names(QpType[transport.upper()])


def server_names() -> list[str]:
    """Names of the servers that there are presets of."""
    from traffic.servers import server_preset_names

    return server_preset_names()


def placement_names() -> list[str]:
    """Names of the strategies that place jobs on GPUs."""
    from traffic.placement import placement_names as names

    return names()


def metric_names() -> list[str]:
    """Names of the metrics that an expectation may use."""
    from testbed.results import METRICS

    return sorted(METRICS)


def suggestion(word: str, allowed: Iterable[str]) -> str:
    """The end of an error message: the nearest allowed word, and all of them."""
    names = sorted(allowed)
    close = difflib.get_close_matches(word, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}allowed: {', '.join(names) or 'none'}"
