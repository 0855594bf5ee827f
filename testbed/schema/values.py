"""Kinds of values in a scenario file beside those of testbed.units: parsed, or refused."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import PlainValidator, Strict

from testbed.units import Unit, parse_duration, parse_size

DILATION_LIMIT = 1e9
"""At this dilation a 400 Gb/s link carries 400 bit/s: nothing would ever finish."""

Integer = Annotated[int, Strict()]
"""A whole number; unlike pydantic's default, true, 1.0 and "1" are none."""

Real = Annotated[float, Strict()]
"""A number; true and "0.5" are none."""


def _parse_dilation(value: Any) -> float | Literal["auto"]:
    if value == "auto":
        return "auto"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{value!r} is neither 'auto' nor a number above 0")
    if not (0 < value <= DILATION_LIMIT and math.isfinite(value)):
        raise ValueError(f"{value!r} must be 'auto' or above 0 and at most {DILATION_LIMIT:.0e}")
    return float(value)


def _parse_limit(value: Any) -> int | None:
    if value is None or value == "infinite":
        return None
    size = parse_size(value)
    if size == 0:
        raise ValueError(f"{value!r} must be above 0, or 'infinite'")
    return size


def _parse_interval(value: Any) -> float | Literal["auto"]:
    if value == "auto":
        return "auto"
    interval = parse_duration(value)
    if interval == 0:
        raise ValueError(f"{value!r} must be above 0, or 'auto'")
    return interval


Dilation = Annotated[float | Literal["auto"], PlainValidator(_parse_dilation)]
BufferLimit = Annotated[int | None, PlainValidator(_parse_limit), Unit("B")]
Interval = Annotated[float | Literal["auto"], PlainValidator(_parse_interval), Unit("s")]
