"""Sizes as nccl-tests takes them: 8K, 64M, and ranges of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from testbed.units import SIZE_LIMIT, parse_size

MOST_SIZES = 100
"""Sizes of one sweep."""

_BINARY = re.compile(r"(?P<number>\d+)(?P<prefix>[kmgKMG])")
_FACTORS = {"K": 2**10, "M": 2**20, "G": 2**30}


def parse_nccl_size(text: str) -> int:
    """Bytes from "8K", which is 8 KiB as in nccl-tests, "64 MiB" or "4096". Raises ValueError."""
    match = _BINARY.fullmatch(text.strip())
    if match is None:
        try:
            size = parse_size(text)
        except ValueError as error:
            raise ValueError(f"{error}; or K, M, G for 1024, 1024², 1024³ bytes") from None
    else:
        size = int(match["number"]) * _FACTORS[match["prefix"].upper()]
    if not 0 < size <= SIZE_LIMIT:
        raise ValueError(f"{text!r}; allowed: 1 byte or more")
    return size


def size_range(least: int, most: int, factor: float) -> tuple[int, ...]:
    """From ``least`` in steps of ``factor`` as long as ``most`` is not exceeded.

    Raises ValueError, with the option's name first.
    """
    if not factor > 1:
        raise ValueError(f"--factor: {factor:g}; allowed: more than 1")
    if least > most:
        raise ValueError(f"--min: {least} bytes is more than --max, {most}; allowed: up to that")
    sizes: list[int] = []
    size = float(least)
    while size <= most and len(sizes) <= MOST_SIZES:  # one more is too many
        sizes.append(int(size))
        size = max(size * factor, size + 1)
    return distinct(sizes)


def distinct(sizes: Sequence[int]) -> tuple[int, ...]:
    """Each size once, in order. Raises ValueError for too many."""
    found = tuple(dict.fromkeys(sizes))
    if len(found) > MOST_SIZES:
        raise ValueError(f"--factor: makes more than {MOST_SIZES} sizes; allowed: fewer")
    return found


def short_size(size: int) -> str:
    """The shortest exact name of a size that can be part of a variant's: 8K, 64M, 1000."""
    for prefix in "GMK":
        if size % _FACTORS[prefix] == 0:
            return f"{size // _FACTORS[prefix]}{prefix}"
    return str(size)


def binary_size(size: int) -> str:
    """A size for a sentence: 8 KiB, 64 MiB, 1000 B."""
    name = short_size(size)
    return f"{name[:-1]} {name[-1]}iB" if name[-1] in _FACTORS else f"{name} B"
