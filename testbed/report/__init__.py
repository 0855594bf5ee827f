"""From a result to what people read: charts, the report page, the summary on a terminal."""

from __future__ import annotations

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
    write_text(path, render(result, draw_charts(result, run_dir)))
    return path


__all__ = ["REPORT_FILE", "write_report"]
