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


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class RankTimeline(_Model):
    """One rank's time. ``spans`` is by activity: begin, end, begin, end, … in seconds, ascending.

    Spans of one activity do not overlap; those of different activities do. ``shares`` adds up to
    the whole span of the timeline: seconds in which the rank computed; in which it did not but a
    message of NVLink was under way; in which only something was being sent; in which only
    something was on its way to it; in which it waited for others; and in which it was done.
    ``waits_for`` is by the rank whose message ended the wait.
    """

    rank: int
    server: str = ""
    spans: dict[Activity, list[float]]
    shares: dict[str, float]
    waits_for: dict[int, float] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _ascending(self) -> RankTimeline:
        for activity, times in self.spans.items():
            if len(times) % 2 or times != sorted(times):
                raise ValueError(f"timeline of rank {self.rank}: spans of {activity} overlap")
        return self


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
