"""Who runs first when cores are few: switches, then the sampler, then the servers, then the rest.

All stay ordinary processes (SCHED_OTHER): a real-time class could starve the kernel's own threads.
Besides a nice value each asks for a short time slice, which a kernel from 6.12 on honours and which
makes a process that wakes up run sooner; older kernels ignore it. Nothing here imports from the
rest of the project.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from enum import Enum

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_ATTRIBUTES = struct.Struct("<IIQiIQQQ")  # struct sched_attr, version 0 (linux/sched/types.h)
_SLICE = 500_000
"""Nanoseconds."""

_libc = ctypes.CDLL(None, use_errno=True)


class Priority(Enum):
    """Nice values."""

    SWITCH = -20
    SAMPLER = -19
    SERVER = -15


def set_priority(priority: Priority, pid: int = 0) -> None:
    """Apply to a process, the caller by default. Raises OSError without the right to."""
    os.setpriority(os.PRIO_PROCESS, pid, priority.value)
    number = _SCHED_SETATTR.get(platform.machine())
    if number is not None:
        attributes = _ATTRIBUTES.pack(
            _ATTRIBUTES.size, os.SCHED_OTHER, 0, priority.value, 0, _SLICE, 0, 0
        )
        # a kernel that does not know slices for this class refuses or ignores them
        _libc.syscall(number, pid, attributes, 0)
