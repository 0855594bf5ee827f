"""Planning 16 384 GPUs with one flow each, scheme by scheme, against 60 s and 4 GB.

Each scheme has a process of its own, whose CPU time and largest resident set count: imports, the
fabric and its next hops included. ``disjoint`` tries source ports path by path, so it gets a fabric
of two tiers; all others get the one with most switches.
"""

from __future__ import annotations

import json
import subprocess
import sys

from controllers.planning.schemes import planner_names
from tests.bench.table import Row

GPUS = 16_384
TIME_LIMIT = 60.0
MEMORY_LIMIT = 4e9
"""Seconds, and bytes."""

_THREE_TIERS, _TWO_TIERS = "meta-dc", "spectrum-x-like"

_PROGRAM = """
import json, resource, sys
from controllers.planning.catalogue import create_fabric
from controllers.planning.flows import make_flows
from controllers.planning.study import Question, study
topology, scheme, gpus = sys.argv[1], sys.argv[2], int(sys.argv[3])
fabric = create_fabric(topology, gpus)
flows = make_flows(fabric, "permutation", gpus=gpus)
(summary,) = study([scheme], Question(fabric, lambda seed: flows))
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, summary.slowdown.mean]))
"""


def run() -> list[Row]:
    """One row per scheme; the ratio is that of whichever limit is nearer."""
    return [_measure(scheme) for scheme in planner_names()]


def _measure(scheme: str) -> Row:
    topology = _TWO_TIERS if scheme == "disjoint" else _THREE_TIERS
    arguments = [sys.executable, "-c", _PROGRAM, topology, scheme, str(GPUS)]
    output = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout
    seconds, memory, slowdown = json.loads(output)
    return Row(
        f"plan {scheme}",
        f"{seconds:.1f} s {memory / 1e9:.2f} GB",
        f"{TIME_LIMIT:.0f} s {MEMORY_LIMIT / 1e9:.0f} GB",
        min(TIME_LIMIT / seconds, MEMORY_LIMIT / memory),
        1.0,
        (f"{GPUS:,} GPUs on {topology}: slowdown {slowdown:.3g}",),
    )
