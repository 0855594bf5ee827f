"""Progress of a run, as a person watches it: a live bar, plain lines, or nothing.

The runner reports to a ProgressReporter and does not know which one it is. All write to standard
error, so that standard output holds results only.
"""

from __future__ import annotations

import contextlib
import time
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

PLAIN_INTERVAL = 10.0
"""Wall seconds between two plain lines about the same stage."""


class Stage(StrEnum):
    """What a run does, in this order; build to collect once per variant."""

    LOAD = "load"
    BUILD = "build"
    ROUTE = "route"
    TRAFFIC = "traffic"
    COLLECT = "collect"
    REPORT = "report"


class ProgressReporter(Protocol):
    """Where a run reports how far it is. A context manager: open it in the process that reports."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def variant(self, name: str, *, number: int, count: int) -> None:
        """A variant begins, the ``number``-th of ``count``, counted from 1."""

    def stage(self, stage: Stage) -> None:
        """A stage begins."""

    def update(self, *, fraction: float, emulated: float, wall: float) -> None:
        """``fraction`` (0 to 1) of the stage is done, after seconds of emulated and wall time."""

    def note(self, text: str) -> None:
        """Say something once, such as the dilation that was chosen."""

    def result(self, line: str) -> None:
        """Print a line of results to standard output, whatever else is on the screen."""


def create_progress(stream: TextIO, *, quiet: bool, transient: bool = False) -> ProgressReporter:
    """The reporter that suits a stream: live for a terminal, lines for a file or pipe.

    With ``transient`` the live one leaves nothing on the screen when it ends.
    """
    if quiet:
        return QuietProgress()
    if stream.isatty():
        return LiveProgress(stream, transient=transient)
    return PlainProgress(stream)


class QuietProgress:
    """Says nothing, but prints results."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing was opened."""

    def variant(self, name: str, *, number: int, count: int) -> None:
        """Say nothing."""

    def stage(self, stage: Stage) -> None:
        """Say nothing."""

    def update(self, *, fraction: float, emulated: float, wall: float) -> None:
        """Say nothing."""

    def note(self, text: str) -> None:
        """Say nothing."""

    def result(self, line: str) -> None:
        """Print it."""
        with contextlib.suppress(BrokenPipeError):  # nobody reads any more; the run goes on
            print(line, flush=True)


class PlainProgress(QuietProgress):
    """One line per stage, and one every PLAIN_INTERVAL while a stage lasts."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._variant = ""
        self._stage = Stage.LOAD
        self._last = 0.0

    def variant(self, name: str, *, number: int, count: int) -> None:
        """Name the variant in the lines that follow."""
        self._variant = f"{name} ({number}/{count}) " if count > 1 else ""

    def stage(self, stage: Stage) -> None:
        """Write the stage's name."""
        self._stage = stage
        self._last = time.monotonic()
        self._write(stage.value)

    def update(self, *, fraction: float, emulated: float, wall: float) -> None:
        """Write how far the stage is, now and then."""
        if time.monotonic() - self._last >= PLAIN_INTERVAL:
            self._last = time.monotonic()
            times = f"emulated {format_time(emulated)}, wall {wall:.0f} s"
            self._write(f"{self._stage.value} {fraction:.0%}, {times}")

    def note(self, text: str) -> None:
        """Write the text."""
        self._write(text)

    def _write(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # nobody watches any more; the run goes on
            print(f"{self._variant}{text}", file=self._stream, flush=True)


class LiveProgress(QuietProgress):
    """A bar per variant with the stage, emulated and wall time, redrawn in place."""

    def __init__(self, stream: TextIO, *, transient: bool = False) -> None:
        self._stream = stream
        self._transient = transient
        self._progress: Progress | None = None
        self._console: Console | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        self._console = Console(file=self._stream, highlight=False)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[times]}", markup=False),
            console=self._console,
            transient=self._transient,
            redirect_stdout=False,
        )
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def variant(self, name: str, *, number: int, count: int) -> None:
        """Begin a new bar."""
        if self._progress is not None:
            self._finish()
            if self._transient and self._task is not None:
                self._progress.remove_task(self._task)
            self._task = self._progress.add_task(name, total=1.0, times="")

    def stage(self, stage: Stage) -> None:
        """Name the stage beside the bar."""
        if self._progress is None:
            return
        if stage is Stage.REPORT:
            self._finish()
        elif self._task is not None:
            self._progress.update(self._task, times=stage.value)

    def update(self, *, fraction: float, emulated: float, wall: float) -> None:
        """Move the bar."""
        if self._progress is not None and self._task is not None:
            times = f"emulated {format_time(emulated)}, wall {wall:.0f} s"
            self._progress.update(self._task, completed=min(max(fraction, 0.0), 1.0), times=times)

    def note(self, text: str) -> None:
        """Write the text above the bar."""
        if self._console is not None:
            self._console.print(text, markup=False)

    def result(self, line: str) -> None:
        """Take the bars away for a moment: standard output may be the same terminal."""
        if self._progress is not None:
            self._progress.stop()
        super().result(line)
        if self._progress is not None:
            self._progress.start()

    def _finish(self) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=1.0)


def format_time(seconds: float) -> str:
    """Seconds with the unit that fits: "12.3 us"."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= factor:
            return f"{seconds / factor:.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns"
