"""Flows as fluid: the rates and finish times that fair sharing of links gives them.

Every flow gets its max-min fair share: rates grow together until a link is full, whose flows then
stay at their rate (progressive filling; D. Bertsekas, R. Gallager, "Data Networks", 6.5.2). This is
what congestion control tends to, without queues, losses and reaction times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def max_min_rates(paths: Sequence[Sequence[str]], capacity: Mapping[str, float]) -> list[float]:
    """The rate of each flow, given the links that it crosses and what each link carries.

    Rates have the unit of ``capacity``; a flow over no link has an infinite one. Raises KeyError
    for a link without capacity.
    """
    rates = [math.inf] * len(paths)
    crossing: dict[str, set[int]] = {}
    for flow, path in enumerate(paths):
        for link in path:
            crossing.setdefault(link, set()).add(flow)
    left = {link: capacity[link] for link in crossing}
    while crossing:
        tightest = min(crossing, key=lambda link: left[link] / len(crossing[link]))
        share = max(0.0, left[tightest]) / len(crossing[tightest])
        for flow in list(crossing[tightest]):
            rates[flow] = share
            for link in set(paths[flow]):
                left[link] -= share
                crossing[link].discard(flow)
        crossing = {link: flows for link, flows in crossing.items() if flows}
    return rates


def finish_times(
    sizes: Sequence[float], paths: Sequence[Sequence[str]], capacity: Mapping[str, float]
) -> list[float]:
    """When each flow has sent its bits, all starting at 0 and sharing max-min fairly throughout.

    ``sizes`` are in bits and ``capacity`` in bit/s, hence seconds.
    """
    left = list(sizes)
    times = [0.0] * len(sizes)
    active = [flow for flow, size in enumerate(sizes) if size > 0]
    now = 0.0
    while active:
        rates = max_min_rates([paths[flow] for flow in active], capacity)
        step = min(left[flow] / rate for flow, rate in zip(active, rates, strict=True))
        now += step
        for flow, rate in zip(active, rates, strict=True):
            left[flow] -= rate * step
            # what rounding leaves of a flow that ends now
            if left[flow] <= sizes[flow] * 1e-12:
                left[flow] = 0.0
                times[flow] = now
        active = [flow for flow in active if left[flow] > 0]
    return times
