"""The two encoded durations of a queue pair: local ACK timeout and RNR NAK timer."""

from __future__ import annotations

from typing import Final

MAX_TIMEOUT_EXPONENT: Final = 31

# IBTA vol. 1, table 45, in milliseconds, by code 0 to 31.
_RNR_TIMER_MS: Final = (
    655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12,
    0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92,
    2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72,
    40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52,
)  # fmt: skip


def ack_timeout_seconds(exponent: int) -> float | None:
    """Local ACK timeout 4.096 us * 2^n in seconds; None for n = 0, which turns it off.

    IBTA lets hardware take up to four times as long; here the timer is exact.
    """
    if exponent == 0:
        return None
    seconds: float = 4.096e-6 * (1 << exponent)
    return seconds


def rnr_timer_seconds(code: int) -> float:
    """Seconds that an RNR NAK with this 5-bit code asks the requester to wait."""
    return _RNR_TIMER_MS[code & 0x1F] * 1e-3
