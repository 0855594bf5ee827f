"""System calls about the calling process for which Python 3.11 has no function.

Each raises OSError when the kernel refuses. Nothing here imports from the rest of the project, so
that controller and servers may use it too.
"""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_TIMERSLACK: Final = 29  # both linux/prctl.h
_CLONE_NEWNET: Final = 0x4000_0000  # linux/sched.h

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends (prctl(2))."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl PR_SET_PDEATHSIG")


def set_timer_slack(nanoseconds: int) -> None:
    """How much later than asked the kernel may wake this thread up; 50 us by default (prctl(2))."""
    _check(_libc.prctl(_PR_SET_TIMERSLACK, nanoseconds, 0, 0, 0), "prctl PR_SET_TIMERSLACK")


def enter_network_namespace(descriptor: int) -> None:
    """Move the calling thread into the network namespace behind an open descriptor (setns(2))."""
    _check(_libc.setns(descriptor, _CLONE_NEWNET), "setns")


def _check(result: int, what: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
