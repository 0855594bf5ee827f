"""Timelines in Chrome's trace event format, for ui.perfetto.dev and chrome://tracing.

A process is a server, a thread is a lane: of each rank one for its computations, one for its
reductions and one for each connection, since what is in one lane must not overlap. Messages of a
connection are drawn one after the other: one begins when it was posted or, if that is later, when
the one before it was complete. Times are emulated microseconds. An arrow leads from a SEND to its
RECEIVE, except where it had arrived before the one before it was acknowledged. (Trace Event Format,
Google, section "Event Descriptions".)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.results import Activity, atomic_write
from testbed.timeline.intervals import Interval

TRACE_FILE = "timeline.json"

EVENT_LIMIT = 100_000
"""Operations in a file, some 20 MB; of more, those that took longest."""

ARROW_LIMIT = 20_000
"""Operations beyond which there are no arrows, which nobody could follow."""

Event = dict[str, Any]

_NAMES = {
    Activity.COMPUTE: "compute",
    Activity.REDUCE: "reduce",
    Activity.COPY: "copy",
    Activity.SEND: "send to {}",
    Activity.RECEIVE: "receive from {}",
    Activity.NVLINK_SEND: "NVLink to {}",
    Activity.NVLINK_RECEIVE: "NVLink from {}",
}

_ORDER = tuple(Activity)
_LANES_PER_RANK = 4096
"""Thread numbers that belong to one rank."""


def write_chrome_trace(
    directory: Path, intervals: Mapping[int, Sequence[Interval]], servers: Sequence[str] = ()
) -> Path:
    """Write ``timeline.json`` into ``directory``; ``servers`` is by rank. Raises OSError."""
    path = directory / TRACE_FILE
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        json.dump(chrome_trace(intervals, servers), file, separators=(",", ":"))
        file.write("\n")
    return path


def chrome_trace(
    intervals: Mapping[int, Sequence[Interval]], servers: Sequence[str] = ()
) -> dict[str, Any]:
    """The document. Of a rank without a server, its own number is the process."""
    kept, left_out = _longest(intervals)
    names = list(dict.fromkeys(servers[rank] if servers else f"rank {rank}" for rank in kept))
    events: list[Event] = []
    for pid, name in enumerate(names):
        events.append(_metadata("process_name", pid, 0, {"name": name}))
        events.append(_metadata("process_sort_index", pid, 0, {"sort_index": pid}))
    for rank, own in kept.items():
        pid = names.index(servers[rank] if servers else f"rank {rank}")
        events += _rank_events(rank, own, pid)
    with_arrows = sum(map(len, kept.values())) <= ARROW_LIMIT
    return {
        "traceEvents": _forward_arrows_only(events, arrows=with_arrows),
        "displayTimeUnit": "ns",
        "otherData": {"clock": "emulated time", "operations_left_out": left_out},
    }


def _forward_arrows_only(events: Sequence[Event], *, arrows: bool) -> list[Event]:
    """Without arrows that have one end only or would lead back in time, or without any."""
    begins = {event["id"]: event["ts"] for event in events if event["ph"] == "s"}
    ends = {event["id"]: event["ts"] for event in events if event["ph"] == "f"}
    both = begins.keys() & ends.keys() if arrows else ()
    drawn = {name for name in both if begins[name] <= ends[name]}
    return [event for event in events if event["ph"] not in ("s", "f") or event["id"] in drawn]


def _longest(
    intervals: Mapping[int, Sequence[Interval]],
) -> tuple[dict[int, Sequence[Interval]], int]:
    """What is kept of each rank, and how many operations are left out."""
    total = sum(map(len, intervals.values()))
    if total <= EVENT_LIMIT:
        return dict(sorted(intervals.items())), 0
    lengths = sorted((i.end - i.begin for own in intervals.values() for i in own), reverse=True)
    least = lengths[EVENT_LIMIT]
    kept: dict[int, Sequence[Interval]] = {
        rank: [i for i in own if i.end - i.begin > least] for rank, own in sorted(intervals.items())
    }
    return kept, total - sum(map(len, kept.values()))


def _rank_events(rank: int, own: Sequence[Interval], pid: int) -> Iterator[Event]:
    lanes: dict[tuple[int, ...], list[Interval]] = {}
    for interval in own:
        lanes.setdefault(_lane(interval), []).append(interval)
    number = 0
    for key in sorted(lanes):
        lane = sorted(lanes[key], key=lambda interval: (interval.begin, interval.end))
        alone = lane[0].activity is Activity.COMPUTE
        for part in _without_overlap(lane) if alone else [lane]:
            tid = rank * _LANES_PER_RANK + number
            name = f"rank {rank} {_name(lane[0])}"
            yield _metadata("thread_name", pid, tid, {"name": name})
            yield _metadata("thread_sort_index", pid, tid, {"sort_index": tid})
            yield from _lane_events(rank, part, pid, tid)
            number += 1


def _lane(interval: Interval) -> tuple[int, ...]:
    """What is drawn in one lane; reductions and copies share theirs."""
    activity = Activity.REDUCE if interval.activity is Activity.COPY else interval.activity
    return _ORDER.index(activity), interval.peer, interval.op.connection


def _without_overlap(lane: Sequence[Interval]) -> list[list[Interval]]:
    """Computations of one rank may overlap: each goes to the first lane that is free."""
    parts: list[list[Interval]] = []
    for interval in lane:
        for part in parts:
            if part[-1].end <= interval.begin:
                part.append(interval)
                break
        else:
            parts.append([interval])
    return parts


def _lane_events(rank: int, lane: Sequence[Interval], pid: int, tid: int) -> Iterator[Event]:
    reached = 0
    for interval in sorted(lane, key=lambda interval: (interval.end, interval.begin)):
        begin = max(_nanoseconds(interval.begin), reached)
        end = max(_nanoseconds(interval.end), begin)
        reached = end
        place = {"pid": pid, "tid": tid}
        yield {
            "ph": "X", "name": interval.op.name or _name(interval), "cat": interval.activity.value,
            "ts": begin / 1e3, "dur": (end - begin) / 1e3, **place, "args": _arguments(interval),
        }  # fmt: skip
        if interval.peer >= 0 and interval.finished and end > begin:
            yield {
                **_arrow(rank, interval),
                **place,
                "ts": (begin if _sends(interval) else end) / 1e3,
            }


def _arrow(rank: int, interval: Interval) -> Event:
    """One end of the arrow from a SEND to its RECEIVE."""
    ends = (rank, interval.peer) if _sends(interval) else (interval.peer, rank)
    message = f"{ends[0]}-{ends[1]}-{interval.op.connection}-{interval.op.tag}"
    arrow: Event = {"name": "message", "cat": "message", "id": message}
    return {**arrow, "ph": "s"} if _sends(interval) else {**arrow, "ph": "f", "bp": "e"}


def _sends(interval: Interval) -> bool:
    return interval.activity in (Activity.SEND, Activity.NVLINK_SEND)


def _arguments(interval: Interval) -> dict[str, Any]:
    op = interval.op
    arguments: dict[str, Any] = {"op_id": op.op_id}
    if op.length:
        arguments["bytes"] = op.length
    if interval.peer >= 0:
        arguments |= {"peer": interval.peer, "posted_us": _nanoseconds(interval.begin) / 1e3}
    if op.connection >= 0:
        arguments |= {"connection": op.connection, "flow": op.flow}
    if not interval.finished:
        arguments["unfinished"] = True
    return arguments


def _name(interval: Interval) -> str:
    return _NAMES[interval.activity].format(interval.peer)


def _nanoseconds(seconds: float) -> int:
    """Whole nanoseconds: rounded once, so that neighbours still touch."""
    return round(seconds * 1e9)


def _metadata(name: str, pid: int, tid: int, arguments: dict[str, Any]) -> Event:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": arguments}
