"""The part of ``result.json`` that says what ranks did when: spans by rank and activity."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Activity(StrEnum):
    """What can be under way at a rank."""

    COMPUTE = "compute"
    REDUCE = "reduce"
    COPY = "copy"
    SEND = "send"
    RECEIVE = "receive"
    NVLINK_SEND = "nvlink-send"
    NVLINK_RECEIVE = "nvlink-receive"


WAITED_FOR = (Activity.COMPUTE, Activity.RECEIVE, Activity.NVLINK_RECEIVE)
"""What a rank waits for while none of it is under way."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class RankTimeline(_Model):
    """One rank's time. ``spans`` is by activity: begin, end, begin, end, … in seconds, ascending.

    Spans of one activity do not overlap; those of different activities do. ``shares`` adds up to
    the whole span of the timeline: seconds in which the rank computed; in which it did not but a
    message of NVLink was under way; in which only something was being sent; in which only
    something was on its way to it; in which nothing was under way; and in which it was done.
    ``waits_for`` are seconds in which it did not compute and nothing was on its way to it either,
    whether or not it had something under way to others, by the rank whose message ended that.
    """

    rank: int
    server: str = ""
    spans: dict[Activity, list[float]]
    shares: dict[str, float]
    waits_for: dict[int, float] = Field(default_factory=dict)

    @property
    def waiting(self) -> float:
        """Seconds in which it waited for other ranks."""
        return sum(self.waits_for.values())

    def waits(self, begin: float) -> list[tuple[float, float]]:
        """From ``begin`` on, when it did not compute and nothing was on its way to it."""
        spans = sorted(
            pair
            for activity in WAITED_FOR
            for pair in zip(*_halves(self.spans.get(activity, [])), strict=True)
        )
        found, reached = [], begin
        for start, end in spans:
            if start > reached:
                found.append((reached, start))
            reached = max(reached, end)
        return found

    @model_validator(mode="after")
    def _ascending(self) -> RankTimeline:
        for activity, times in self.spans.items():
            if len(times) % 2 or times != sorted(times):
                raise ValueError(f"timeline of rank {self.rank}: spans of {activity} overlap")
        return self


def _halves(times: list[float]) -> tuple[list[float], list[float]]:
    """Begins and ends."""
    return times[::2], times[1::2]


class TimelineResult(_Model):
    """All ranks from ``begin`` to ``end``; pauses shorter than ``resolution`` are not shown."""

    begin: float
    end: float
    resolution: float
    ranks: list[RankTimeline]

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.end - self.begin

    def share(self, seconds: float) -> float:
        """Of the whole."""
        return seconds / self.duration if self.duration else 0.0
