"""From a result to what people read: charts, the report page, the summary on a terminal."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.results import RunResult, write_text

REPORT_FILE = "report.html"


def write_report(result: RunResult, run_dir: Path) -> Path:
    """Draw the charts and write ``report.html`` into ``run_dir``; returns the page's path.

    Needs nothing but the result, so a report can be rebuilt from ``result.json`` at any time.
    Raises OSError.
    """
    from testbed.report.charts import draw_charts
    from testbed.report.html import render

    path = run_dir / REPORT_FILE
    with fonts_listed_elsewhere():
        write_text(path, render(result, draw_charts(result, run_dir)))
    return path


@contextmanager
def fonts_listed_elsewhere() -> Iterator[None]:
    """Keep matplotlib's list of fonts out of the user's home; making it takes 0.1 s."""
    if "MPLCONFIGDIR" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="rocelab-") as directory:
        os.environ["MPLCONFIGDIR"] = directory
        try:
            yield
        finally:
            del os.environ["MPLCONFIGDIR"]


__all__ = ["REPORT_FILE", "fonts_listed_elsewhere", "write_report"]
