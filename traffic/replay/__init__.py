"""Replay of what others recorded or wrote: readers to one neutral trace."""

from __future__ import annotations

from traffic.replay.check import check, collective_calls, message_edges, predecessors, progress
from traffic.replay.load import TraceOptions, load_trace, trace_formats
from traffic.replay.trace import (
    WORLD,
    CollectiveType,
    NodeKey,
    NodeKind,
    Trace,
    TraceError,
    TraceNode,
    scaled,
)

__all__ = [
    "WORLD",
    "CollectiveType",
    "NodeKey",
    "NodeKind",
    "Trace",
    "TraceError",
    "TraceNode",
    "TraceOptions",
    "check",
    "collective_calls",
    "load_trace",
    "message_edges",
    "predecessors",
    "progress",
    "scaled",
    "trace_formats",
]
