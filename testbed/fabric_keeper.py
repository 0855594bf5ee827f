"""Which fabric a variant runs on: one of its own, or the one that the last variant ran on."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from testbed.experiment import Experiment, Measurements
from testbed.progress import ProgressReporter
from testbed.scenario import Scenario, build_topology, plan_traffic

SCRATCH = Path("/run/rocelab")
"""Sockets and the compiled program; on the run's own tmpfs (testbed.isolation)."""


class FabricKeeper:
    """Measures variants one after the other. A context manager, which takes down what stands.

    With ``keep`` a fabric stays until a variant comes that it does not suit. ``directory`` receives
    the logs of what is kept; ``dilation`` may be changed between two variants.
    """

    def __init__(
        self, dilation: float, progress: ProgressReporter, *, keep: bool, directory: Path
    ) -> None:
        self.dilation = dilation
        self._progress = progress
        self._keep = keep
        self._directory = directory
        self._standing: Experiment | None = None
        self._built_at = dilation

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._take_down()

    def measure(self, variant: Scenario, directory: Path) -> Measurements:
        """Run a variant's traffic once; its captures, and logs of its own, go to ``directory``."""
        directory.mkdir(exist_ok=True)
        if not self._keep:
            return create_experiment(variant, self.dilation, directory, self._progress).run()
        standing = self._standing
        if standing is None or not self._suits(standing, variant, directory):
            self._take_down()
            standing = create_experiment(variant, self.dilation, self._directory, self._progress)
            self._standing, self._built_at = standing, self.dilation
        return standing.measure()

    def _suits(self, standing: Experiment, variant: Scenario, directory: Path) -> bool:
        if self.dilation != self._built_at:
            return False
        return standing.take(variant, plan_traffic(variant, build_topology(variant)), directory)

    def _take_down(self) -> None:
        if self._standing is not None:
            self._standing.stop()
            self._standing = None


def create_experiment(
    variant: Scenario, dilation: float, directory: Path, progress: ProgressReporter
) -> Experiment:
    """An experiment that is planned but not built."""
    topology = build_topology(variant)
    SCRATCH.mkdir(exist_ok=True)
    return Experiment(
        variant,
        topology,
        plan_traffic(variant, topology),
        dilation=dilation,
        directory=directory,
        scratch=Path(tempfile.mkdtemp(dir=SCRATCH)),
        progress=progress,
    )
