"""Run a measurement in namespaces of its own and get back what it returns."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from testbed.isolation import run_isolated

T = TypeVar("T")


class BenchmarkError(RuntimeError):
    """A measurement did not come to its end; what went wrong is on standard error."""


def isolated(function: Callable[[Path], T]) -> T:
    """``function(directory)`` in fresh namespaces, with a directory that is removed afterwards.

    Raises BenchmarkError.
    """
    with tempfile.TemporaryDirectory(prefix="rocelab-bench-") as name:
        answer = Path(name) / "answer"

        def body() -> int:
            answer.write_bytes(pickle.dumps(function(Path(name))))
            return 0

        status = run_isolated(body)
        if status != 0:
            raise BenchmarkError(f"ended with status {status}")
        result: T = pickle.loads(answer.read_bytes())
        return result
