"""Replay of what others recorded or wrote: readers to one neutral trace."""

from __future__ import annotations

from traffic.replay.check import check, collective_calls, message_edges, predecessors, progress
from traffic.replay.demand import rank_totals, traffic_matrix
from traffic.replay.load import TraceOptions, guess_format, load_trace, trace_formats
from traffic.replay.trace import (
    WORLD,
    NodeKey,
    NodeKind,
    Trace,
    TraceError,
    TraceNode,
    largest_buffer,
    scaled,
    side_by_side,
)

__all__ = [
    "WORLD",
    "NodeKey",
    "NodeKind",
    "Trace",
    "TraceError",
    "TraceNode",
    "TraceOptions",
    "check",
    "collective_calls",
    "guess_format",
    "largest_buffer",
    "load_trace",
    "message_edges",
    "predecessors",
    "progress",
    "rank_totals",
    "scaled",
    "side_by_side",
    "trace_formats",
    "traffic_matrix",
]
