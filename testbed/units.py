"""Quantities with units, as a person writes them: "400 Gbps", "64 MiB", "1 us".

Parsed values are plain numbers in SI units or bytes: bit/s, seconds, bytes. A number without a
unit is refused for rates and durations (is 100 microseconds or seconds?) and, for sizes, read as
bytes. Nothing here imports from the rest of the project.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator

RATE_LIMITS = (1e3, 1e15)
"""Bit/s: below and above lies no link, but a slip of the keyboard."""

DURATION_LIMIT = 86400.0
"""Seconds: a day of emulated time."""

SIZE_LIMIT = 2**60
"""Bytes; counters of 64 bits stay far from overflowing."""

_NUMBER = re.compile(r"^\s*([+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ/]*)\s*$")

_RATES = {
    "bps": 1.0, "kbps": 1e3, "mbps": 1e6, "gbps": 1e9, "tbps": 1e12,
    "bit/s": 1.0, "kbit/s": 1e3, "mbit/s": 1e6, "gbit/s": 1e9, "tbit/s": 1e12,
    "b/s": 1.0, "kb/s": 1e3, "mb/s": 1e6, "gb/s": 1e9, "tb/s": 1e12,
}  # fmt: skip
_DURATIONS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_SIZES = {
    "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip


def _split(value: str, kind: str, example: str) -> tuple[float, str]:
    match = _NUMBER.match(value)
    if match is None:
        raise ValueError(f"{value!r} is not a {kind}; write it as {example!r}")
    return float(match.group(1)), match.group(2)


def parse_rate(value: Any) -> float:
    """Bit/s from "400 Gbps" or "1.5 Tb/s". Raises ValueError; a rate is positive."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise ValueError(f"{value!r} has no unit; write a rate as '400 Gbps'")
    number, unit = _split(str(value), "rate", "400 Gbps")
    # a capital B is a byte, which no link's rate is counted in
    factor = None if "B" in unit else _RATES.get(unit.lower())
    if factor is None:
        raise ValueError(f"{value!r} has no known unit; allowed: bps, kbps, Mbps, Gbps, Tbps")
    if number <= 0:
        raise ValueError(f"{value!r} must be above 0")
    rate = number * factor
    if not RATE_LIMITS[0] <= rate <= RATE_LIMITS[1]:
        raise ValueError(f"{value!r} is no rate of a link; allowed: 1 kbps to 1000 Tbps")
    return rate


def parse_duration(value: Any) -> float:
    """Seconds from "1 us" or "67 ms"; "0" alone is allowed. Raises ValueError."""
    if value in (0, "0") and not isinstance(value, bool):
        return 0.0
    if isinstance(value, (int, float)):
        raise ValueError(f"{value!r} has no unit; write a duration as '1 us'")
    number, unit = _split(str(value), "duration", "1 us")
    factor = _DURATIONS.get(unit)
    if factor is None:
        raise ValueError(f"{value!r} has no known unit; allowed: ns, us, ms, s")
    if number < 0:
        raise ValueError(f"{value!r} must not be negative")
    duration = number * factor
    if duration > DURATION_LIMIT:
        raise ValueError(f"{value!r} is too long; allowed: at most {DURATION_LIMIT:.0f} s")
    return duration


def parse_size(value: Any) -> int:
    """Bytes from "64 MiB", "300 KB" or a plain whole number. Raises ValueError."""
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is not a size; write it as '64 MiB'")
    number: float
    if isinstance(value, (int, float)):
        number, factor = value, 1
    else:
        number, unit = _split(str(value), "size", "64 MiB")
        found = 1 if unit == "" else _SIZES.get(unit)
        if found is None:
            raise ValueError(f"{value!r} has no known unit; allowed: B, KB, MB, GB, KiB, MiB, GiB")
        factor = found
    total = number * factor
    if total < 0:
        raise ValueError(f"{value!r} must not be negative")
    if not total <= SIZE_LIMIT:  # nor is NaN
        raise ValueError(f"{value!r} is not a size of at most {SIZE_LIMIT} bytes")
    if total != int(total):
        raise ValueError(f"{value!r} is not a whole number of bytes")
    return int(total)


@dataclass(frozen=True, slots=True)
class Unit:
    """Annotates a field's type with the unit of its parsed value: "bit/s", "s" or "B"."""

    name: str


BitRate = Annotated[float, BeforeValidator(parse_rate), Unit("bit/s")]
"""Pydantic field type: a rate in bit/s, written with its unit."""

Duration = Annotated[float, BeforeValidator(parse_duration), Unit("s")]
"""Pydantic field type: a duration in seconds of emulated time, written with its unit."""

Size = Annotated[int, BeforeValidator(parse_size), Unit("B")]
"""Pydantic field type: a number of bytes."""
