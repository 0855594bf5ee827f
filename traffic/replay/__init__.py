"""Replay of what others recorded or wrote: readers to one neutral trace."""

from __future__ import annotations

from traffic.replay.trace import (
    WORLD,
    CollectiveType,
    NodeKind,
    Trace,
    TraceError,
    TraceNode,
    check,
    scaled,
)

__all__ = [
    "WORLD",
    "CollectiveType",
    "NodeKind",
    "Trace",
    "TraceError",
    "TraceNode",
    "check",
    "scaled",
]
