"""Distributions of flow sizes: the published ones by name, others from files.

A distribution is a piecewise linear CDF. Files have a size in bytes and a percentage per line, as
the traffic generator of HPCC reads them.
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
from dataclasses import dataclass

from traffic.replay.files import decoded
from traffic.replay.trace import TraceError

_NUMBER = re.compile(r"^[0-9]{1,15}(\.[0-9]{1,15})?$")

_PUBLISHED: dict[str, tuple[tuple[float, float], ...]] = {
    "web-search": (
        (0, 0), (10_000, 15), (20_000, 20), (30_000, 30), (50_000, 40), (80_000, 53),
        (200_000, 60), (1_000_000, 70), (2_000_000, 80), (5_000_000, 90), (10_000_000, 97),
        (30_000_000, 100),
    ),
    "fb-hadoop": (
        (0, 0), (100, 1), (200, 2), (300, 5), (350, 15), (400, 20), (500, 30), (600, 40),
        (700, 50), (1_000, 60), (2_000, 67), (7_000, 70), (30_000, 72), (50_000, 82),
        (80_000, 87), (120_000, 90), (300_000, 95), (1_000_000, 97.5), (2_000_000, 99),
        (10_000_000, 100),
    ),
}  # fmt: skip
"""(bytes, percent) as the HPCC paper used them (SIGCOMM'19; in its repository
traffic_gen/WebSearch_distribution.txt and FbHdp_distribution.txt): a web search cluster (DCTCP,
SIGCOMM'10) and Facebook's Hadoop cluster (Roy et al., SIGCOMM'15)."""


@dataclass(frozen=True, slots=True)
class FlowSizes:
    """A CDF: ``points`` are (bytes, percent), both increasing, from 0 to 100 percent.

    Raises TraceError for anything else.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if len(self.points) < 2:
            raise TraceError(f"flow sizes: {len(self.points)} points; at least 2")
        for (size, percent), (next_size, next_percent) in itertools.pairwise(self.points):
            if not (size < next_size and percent < next_percent):
                raise TraceError(
                    f"flow sizes: after {size:g} bytes {percent:g} % comes {next_size:g} bytes "
                    f"{next_percent:g} %; both must grow"
                )
        first, last = self.points[0], self.points[-1]
        if first[1] != 0 or last[1] != 100 or first[0] < 0:
            raise TraceError(f"flow sizes: from {first[1]:g} to {last[1]:g} %; must be 0 to 100")

    def quantile(self, share: float) -> int:
        """Bytes of the flow below which a share in [0, 1) of all flows lies; at least 1."""
        percents = [percent for _, percent in self.points]
        index = min(bisect.bisect_right(percents, share * 100), len(percents) - 1)
        (low, low_percent), (high, high_percent) = self.points[index - 1], self.points[index]
        size = low + (high - low) * (share * 100 - low_percent) / (high_percent - low_percent)
        return max(1, math.ceil(size))

    def mean(self) -> float:
        """Mean bytes of a flow."""
        return sum(
            (low + high) / 2 * (high_percent - low_percent) / 100
            for (low, low_percent), (high, high_percent) in itertools.pairwise(self.points)
        )


def flow_size_names() -> list[str]:
    """Names of the published distributions, sorted."""
    return sorted(_PUBLISHED)


def published_flow_sizes(name: str) -> FlowSizes:
    """A distribution by name. Raises ValueError that lists the allowed names."""
    if name not in _PUBLISHED:
        raise ValueError(f"unknown flow sizes {name!r}; allowed: {', '.join(flow_size_names())}")
    return FlowSizes(_PUBLISHED[name])


def parse_flow_sizes(data: bytes) -> FlowSizes:
    """The distribution in a file. Raises TraceError that names the line."""
    points = []
    for number, line in enumerate(decoded(data).split("\n"), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or not all(_NUMBER.match(word) for word in words):
            raise TraceError(f"line {number}: {line.strip()!r}; allowed: bytes and percent")
        points.append((float(words[0]), float(words[1])))
    return FlowSizes(tuple(points))
