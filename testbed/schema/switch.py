"""Section `switch`: buffers and marking."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from testbed.schema.section import Section
from testbed.schema.values import BufferLimit
from testbed.units import Size


class Buffer(Section):
    """`switch.buffer`: who may queue how much."""

    policy: Literal["static"] = "static"
    limit: BufferLimit = Field(
        default=1024 * 1024,
        description="bytes that one port may hold, or 'infinite'",
    )


class Ecn(Section):
    """`switch.ecn`: marking."""

    threshold: Size | None = Field(
        default=None,
        description="a packet that finds more bytes queued than this is marked CE; null: never",
    )


class Switch(Section):
    """`switch`: the buffer management of every switch."""

    buffer: Buffer = Buffer()
    ecn: Ecn = Ecn()
