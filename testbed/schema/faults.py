"""Section `faults`: what an experiment breaks, and when."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from testbed.schema.section import Section
from testbed.schema.values import Integer, Real
from testbed.units import BitRate, Duration


def _in_us(seconds: float) -> str:
    return f"{seconds * 1e6:g} us"


class DropFault(Section):
    """One entry of `faults.drop`: a data packet that the first switch discards."""

    connection: Integer = Field(ge=0, description="index in the plan's list of connections")
    psn_offset: Integer = Field(ge=0, description="packets after the connection's first PSN")
    times: Integer = Field(
        default=1, ge=1, le=1000, description="how many of its transmissions are lost"
    )


class _Outage(Section):
    """From when to when something is down."""

    down: Duration = Field(description="emulated time at which it goes down")
    up: Duration | None = Field(default=None, description="when it comes back; null: never")

    @model_validator(mode="after")
    def _down_before_up(self) -> Self:
        if self.up is not None and not self.down < self.up:
            raise PydanticCustomError(
                "down_after_up",
                "{up} is not after down ({down}); allowed: any later time, or null for never",
                {"field": "up", "up": _in_us(self.up), "down": _in_us(self.down)},
            )
        return self


class LinkFault(_Outage):
    """One entry of `faults.links`: a cut cable. Names one of the link's two interfaces."""

    link: str = Field(description="such as leaf1-spine1, or rank0-leaf1 for a NIC's")


class SwitchFault(_Outage):
    """One entry of `faults.switches`: a switch without power; all of its links are down."""

    switch: str = Field(description="such as spine1")


class FlapFault(Section):
    """One entry of `faults.flaps`: a link that is down for the first half of every period."""

    link: str = Field(description="by either of its interfaces")
    at: Duration = Field(description="when it goes down for the first time")
    period: Duration = Field(gt=0, description="from one time to the next")
    count: Integer = Field(default=1, ge=1, le=1000, description="how often it goes down")


class SlowFault(Section):
    """One entry of `faults.slow`: a link that transmits slower, both ways, than it was built to."""

    link: str = Field(description="by either of its interfaces")
    rate: BitRate = Field(description="at most what it was built to")
    at: Duration = Field(default=0.0, description="from when on; 0: from before the traffic")


class ControllerFault(Section):
    """One entry of `faults.controller`: the controller is killed and started again."""

    restart: Duration = Field(description="emulated time")


class Faults(Section):
    """`faults`: what the experiment breaks, apart from what full queues lose by themselves."""

    drop: tuple[DropFault, ...] = ()
    loss: Real = Field(
        default=0.0,
        ge=0,
        lt=1,
        allow_inf_nan=False,
        description="probability per data packet, from seed",
    )
    links: tuple[LinkFault, ...] = ()
    switches: tuple[SwitchFault, ...] = ()
    flaps: tuple[FlapFault, ...] = ()
    slow: tuple[SlowFault, ...] = ()
    controller: tuple[ControllerFault, ...] = ()
    detection: Duration = Field(
        default=10e-6,
        description="until both ends of a link know, and a switch uses its other ports",
    )
    convergence: Duration = Field(
        default=100e-6, description="until every switch has the entries that fit the new links"
    )

    @model_validator(mode="after")
    def _local_before_global(self) -> Self:
        if self.convergence < self.detection:
            raise PydanticCustomError(
                "convergence_before_detection",
                "{convergence} is shorter than detection ({detection}); allowed: that or longer",
                {
                    "field": "convergence",
                    "convergence": _in_us(self.convergence),
                    "detection": _in_us(self.detection),
                },
            )
        return self
