"""Queue pairs: requester, responder, and the state machine around them, without I/O."""

from __future__ import annotations

from traffic.qp.attributes import PathAttributes, QpAttributes
from traffic.qp.queue_pair import QueuePair
from traffic.qp.trace import TraceEvent, TraceHook

__all__ = ["PathAttributes", "QpAttributes", "QueuePair", "TraceEvent", "TraceHook"]
