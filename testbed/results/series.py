"""Time series made small enough for ``result.json`` without hiding what matters in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from testbed.results.schema import DropRecord, FlowResult, PsnEvent, PsnTrace, QueueSeries

QUEUE_BINS = 1000
"""Points of a queue's series: about one per pixel of a chart."""

IDLE_SPANS = 100
"""Median sampling intervals without a sample that count as an idle span."""

PSN_EVENT_LIMIT = 12_000
"""Events of a PSN trace; beyond it sends, receives and ACKs are thinned, never the rare events."""

_COMMON: frozenset[PsnEvent] = frozenset({"send", "receive", "ack"})

PSN_MASK = 0xFFFFFF
"""A PSN has 24 bits (IBTA, BTH)."""


@dataclass(frozen=True)
class QueueSamples:
    """Depths in bytes by interface, sampled at ``times`` (seconds, ascending)."""

    times: npt.NDArray[np.float64]
    depths: Mapping[str, npt.NDArray[np.int64]]


def downsample_queues(samples: QueueSamples, *, bins: int = QUEUE_BINS) -> QueueSeries:
    """The maximum depth of every non-empty queue over runs of samples.

    There are at most ``bins`` runs, and one more for each idle span that would split one.
    """
    count = len(samples.times)
    if count == 0:
        return QueueSeries(times=[], depths={})
    even = np.linspace(0, count, num=min(bins, count), endpoint=False).astype(np.int64)
    # A bin across an idle span would move what came after it to before it.
    spans = np.diff(samples.times)
    resumed = 1 + np.flatnonzero(spans > IDLE_SPANS * np.median(spans)) if count > 1 else even[:0]
    starts = np.union1d(even, resumed)
    return QueueSeries(
        times=samples.times[starts].tolist(),
        depths={
            interface: np.maximum.reduceat(depths, starts).tolist()
            for interface, depths in samples.depths.items()
            if depths.any()
        },
    )


def build_psn_trace(
    flow: FlowResult,
    events: Iterable[tuple[float, PsnEvent, int]],
    *,
    drops: Sequence[DropRecord] = (),
    destination: str = "",
    destination_qp: int = -1,
    first_psn: int = 0,
    limit: int = PSN_EVENT_LIMIT,
) -> PsnTrace:
    """A trace from (time, event, PSN offset from the flow's first, unwrapped).

    Records of ``drops`` that were on their way to ``destination_qp`` at address ``destination``
    become drop events; their 24-bit PSN counts from ``first_psn``.
    """
    merged = list(events)
    highest = max((psn for _, _, psn in merged), default=0)
    for record in drops:
        if record.destination == destination and record.qp == destination_qp:
            offset = _unwrap((record.psn - first_psn) & PSN_MASK, near=highest)
            merged.append((record.time, "drop", offset))
    merged.sort(key=lambda event: event[0])
    merged = _thin(merged, limit)
    return PsnTrace(
        flow=flow.index,
        source_rank=flow.source_rank,
        destination_rank=flow.destination_rank,
        times=[time for time, _, _ in merged],
        events=[event for _, event, _ in merged],
        psns=[psn for _, _, psn in merged],
    )


def _unwrap(offset: int, *, near: int) -> int:
    """The number congruent to ``offset`` modulo 2^24 that is the largest not above ``near``."""
    return offset + max(0, near - offset) // (PSN_MASK + 1) * (PSN_MASK + 1)


def _thin(
    events: list[tuple[float, PsnEvent, int]], limit: int
) -> list[tuple[float, PsnEvent, int]]:
    """Keep every rare event and every n-th common one of each kind."""
    if len(events) <= limit:
        return events
    common = sum(1 for _, event, _ in events if event in _COMMON)
    room = max(limit - (len(events) - common), limit // 4)
    step = -(-common // room)
    seen: dict[PsnEvent, int] = {}
    kept = []
    for item in events:
        kind = item[1]
        if kind in _COMMON:
            seen[kind] = seen.get(kind, -1) + 1
            if seen[kind] % step:
                continue
        kept.append(item)
    return kept
