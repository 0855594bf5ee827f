"""24-bit packet sequence numbers (IBTA vol. 1, 9.7.1): arithmetic modulo 2^24.

On the wire a PSN has 24 bits. Inside a queue pair it is kept *extended*: a Python integer that
starts at the initial PSN and never wraps, so that ordinary comparison and subtraction hold. These
functions convert between both forms.
"""

from __future__ import annotations

PSN_BITS = 24
PSN_MASK = (1 << PSN_BITS) - 1
PSN_HALF = 1 << (PSN_BITS - 1)
"""Half the PSN space: at most this many packets may be unacknowledged at once."""


def psn_add(psn: int, count: int) -> int:
    """The wire PSN that comes ``count`` packets after ``psn`` (before it, if negative)."""
    return (psn + count) & PSN_MASK


def psn_diff(a: int, b: int) -> int:
    """How far ``a`` is ahead of ``b``, in [-2^23, 2^23): negative when ``a`` is older."""
    return ((a - b + PSN_HALF) & PSN_MASK) - PSN_HALF


def psn_extend(psn: int, reference: int) -> int:
    """The extended PSN nearest to ``reference`` (extended) whose low 24 bits are ``psn``."""
    return reference + psn_diff(psn, reference)
