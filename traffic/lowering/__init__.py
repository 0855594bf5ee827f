"""From traces to plans: who waits for what stays, collectives become schedules on real numbers."""

from __future__ import annotations

from traffic.lowering.arrangement import Arrangement, arrange
from traffic.lowering.calls import CollectiveOptions
from traffic.lowering.lower import lower_trace
from traffic.lowering.verification import ArrangementVerifier

__all__ = [
    "Arrangement",
    "ArrangementVerifier",
    "CollectiveOptions",
    "arrange",
    "lower_trace",
]
