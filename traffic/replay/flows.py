"""Flow files of the HPCC simulator, and flows drawn from a distribution of sizes.

A file's first line is the number of flows; each further line is source, destination, priority
group, destination port, bytes and start in seconds (alibaba-edu/High-Precision-Congestion-Control,
traffic_gen/README.md). Some derivatives leave out priority and port.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from traffic.plan_builder import draw_uniform
from traffic.replay.check import check
from traffic.replay.files import decoded, unpacked
from traffic.replay.flow_sizes import FlowSizes
from traffic.replay.trace import NodeKind, Trace, TraceError, TraceNode

FLOW_LIMIT = 1_000_000
"""Flows of a file or of generated traffic."""

_WHOLE = re.compile(r"^[0-9]{1,18}$")
_DECIMAL = re.compile(r"^[0-9]{1,12}(\.[0-9]{1,18})?([eE][-+]?[0-9]{1,2})?$")
_LONG, _SHORT = 6, 4


@dataclass(frozen=True, slots=True)
class TraceFlow:
    """One message; ``start`` in seconds since the start of the traffic."""

    source: int
    destination: int
    size: int
    start: float
    priority: int = 0


def parse_flows(data: bytes, *, hosts: int, rebase: bool = True) -> tuple[TraceFlow, ...]:
    """The flows of a file, possibly gzipped, in its order.

    ``rebase`` lets the earliest one start at 0; HPCC's generator starts at 2 s. Raises TraceError
    that names the line.
    """
    lines = [
        (number, line.split())
        for number, line in enumerate(decoded(unpacked(data)).split("\n"), 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not lines or len(lines[0][1]) != 1 or not _WHOLE.match(lines[0][1][0]):
        raise TraceError("flow file: the first line is not the number of flows")
    count = int(lines[0][1][0])
    if count > FLOW_LIMIT:
        raise TraceError(f"line {lines[0][0]}: {count} flows; at most {FLOW_LIMIT}")
    if count != len(lines) - 1:
        raise TraceError(f"flow file: {count} flows announced, {len(lines) - 1} are there")
    flows = [_flow(number, words, hosts) for number, words in lines[1:]]
    if rebase and flows:
        first = min(flow.start for flow in flows)
        flows = [
            TraceFlow(f.source, f.destination, f.size, f.start - first, f.priority) for f in flows
        ]
    return tuple(flows)


def generate_flows(
    sizes: FlowSizes, *, hosts: int, load: float, rate: float, duration: float, seed: int
) -> tuple[TraceFlow, ...]:
    """Poisson arrivals between random pairs that load every host's link to a share of its rate.

    ``rate`` in bit/s, ``duration`` in seconds. Ordered by start. Raises TraceError.
    """
    if hosts < 2:
        raise TraceError(f"hosts: {hosts}; at least 2")
    if not 0 < load <= 1:
        raise TraceError(f"load: {load}; allowed: above 0, at most 1")
    if not (rate > 0 and duration > 0):
        raise TraceError(f"rate {rate} bit/s for {duration} s; allowed: above 0")
    gap = sizes.mean() * 8 / (rate * load)
    expected = hosts * duration / gap
    if expected > FLOW_LIMIT:
        raise TraceError(f"about {expected:.0f} flows; at most {FLOW_LIMIT}")
    flows: list[TraceFlow] = []
    for source in range(hosts):
        number, start = 0, 0.0
        while True:
            labels = ("flow", source, number)
            start -= gap * math.log1p(-draw_uniform(seed, *labels, "gap"))
            if start >= duration:
                break
            other = int(draw_uniform(seed, *labels, "destination") * (hosts - 1))
            size = sizes.quantile(draw_uniform(seed, *labels, "size"))
            flows.append(TraceFlow(source, other + (other >= source), size, start))
            number += 1
    return tuple(sorted(flows, key=lambda flow: (flow.start, flow.source)))


def flows_trace(flows: Sequence[TraceFlow], *, hosts: int, source: str = "flows") -> Trace:
    """Every flow as a SEND at its start and a RECEIVE, no dependencies. Raises TraceError."""
    ranks: list[list[TraceNode]] = [[] for _ in range(hosts)]
    for index, flow in enumerate(flows):
        for rank, peer, kind in (
            (flow.source, flow.destination, NodeKind.SEND),
            (flow.destination, flow.source, NodeKind.RECEIVE),
        ):
            ranks[rank].append(
                TraceNode(
                    node_id=len(ranks[rank]),
                    kind=kind,
                    name=f"flow {index}",
                    size=flow.size,
                    peer=peer,
                    tag=index,
                    start=flow.start if kind is NodeKind.SEND else 0.0,
                )
            )
    trace = Trace(source, tuple(tuple(nodes) for nodes in ranks))
    check(trace)
    return trace


def _flow(number: int, words: list[str], hosts: int) -> TraceFlow:
    if len(words) not in (_LONG, _SHORT):
        raise TraceError(f"line {number}: {len(words)} columns; allowed: {_LONG} or {_SHORT}")
    *ends_and_more, size, start = words
    for word in (*ends_and_more, size):
        if not _WHOLE.match(word):
            raise TraceError(
                f"line {number}: {word!r}; allowed: whole numbers from 0, of 18 digits at most"
            )
    if not _DECIMAL.match(start):
        raise TraceError(f"line {number}: start {start!r}; allowed: seconds from 0")
    source, destination = int(words[0]), int(words[1])
    for host in (source, destination):
        if host >= hosts:
            raise TraceError(f"line {number}: host {host}; allowed: 0 to {hosts - 1}")
    if source == destination:
        raise TraceError(f"line {number}: host {source} sends to itself")
    if int(size) == 0:
        raise TraceError(f"line {number}: a flow of 0 bytes; at least 1")
    priority = int(words[2]) if len(words) == _LONG else 0
    return TraceFlow(source, destination, int(size), float(start), priority)
