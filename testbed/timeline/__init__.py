"""What ranks did over time: intervals from a run's timelines, for the result and for Perfetto."""

from __future__ import annotations

from testbed.timeline.chrome import TRACE_FILE, write_chrome_trace
from testbed.timeline.intervals import Interval, intervals_of
from testbed.timeline.summary import summarise

__all__ = ["TRACE_FILE", "Interval", "intervals_of", "summarise", "write_chrome_trace"]
