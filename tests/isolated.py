"""Run a function in namespaces of its own and get back what it returns."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from testbed.isolation import run_isolated

T = TypeVar("T")


class IsolatedError(RuntimeError):
    """The function did not come to its end; what went wrong is on standard error."""


def isolated(function: Callable[[], T]) -> T:
    """What ``function`` returns in fresh namespaces; it must be picklable. Raises IsolatedError."""
    with tempfile.TemporaryFile() as answer:

        def body() -> int:
            pickle.dump(function(), answer)
            answer.flush()
            return 0

        status = run_isolated(body)
        if status != 0:
            raise IsolatedError(f"ended with status {status}; the reason is on standard error")
        answer.seek(0)
        result: T = pickle.load(answer)
        return result


def isolated_in_directory(function: Callable[[Path], T]) -> T:
    """The same for ``function(directory)``, a directory that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="rocelab-") as name:
        return isolated(lambda: function(Path(name)))
