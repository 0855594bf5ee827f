"""The trace hook: every event of a queue pair that a PSN-over-time chart shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

TraceEvent = Literal[
    "send", "resend", "ack", "nak", "rnr", "timeout", "receive", "out-of-order", "duplicate"
]
"""At the requester: packet sent, sent again, acknowledged (the newest PSN that is), NAK received,
RNR NAK received, ACK timeout (the oldest unacknowledged PSN). At the responder: packet executed,
arrived ahead of the expected PSN, arrived a second time."""

TraceHook = Callable[[float, TraceEvent, int], None]
"""Called with emulated seconds, the event, and the PSN, which is extended: it does not wrap."""
