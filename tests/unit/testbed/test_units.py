"""Quantities as a person writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.units import parse_duration, parse_rate, parse_size


@pytest.mark.parametrize(
    ("text", "value"),
    [("400 Gbps", 400e9), ("400Gb/s", 400e9), ("1.6 Tbit/s", 1.6e12), ("100 mbps", 1e8)],
)
def test_rates(text, value):
    assert parse_rate(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "value"), [("1 us", 1e-6), ("67ms", 0.067), ("1.5 s", 1.5), ("0", 0.0), (0, 0.0)]
)
def test_durations(text, value):
    assert parse_duration(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("64 MiB", 64 * 2**20), ("300 KB", 300_000), (4096, 4096), ("4096", 4096), ("0.5 KiB", 512)],
)
def test_sizes(text, value):
    assert parse_size(text) == value


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_rate, 400), (parse_rate, "400"), (parse_rate, "5 MB/s"), (parse_rate, "0 Gbps"),
        (parse_rate, "-1 Gbps"), (parse_rate, "fast"), (parse_rate, "1e400 Gbps"),
        (parse_duration, 100), (parse_duration, "100"), (parse_duration, "-1 us"),
        (parse_duration, "1 h"), (parse_duration, True),
        (parse_size, -1), (parse_size, "1.5 B"), (parse_size, "1 Mb"), (parse_size, True),
        (parse_size, "1e400 GB"), (parse_size, float("nan")), (parse_size, float("inf")),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(parse, text):
    with pytest.raises(ValueError, match=r".") as error:
        parse(text)
    assert repr(text) in str(error.value)
    assert "\n" not in str(error.value)


@given(st.integers(0, 2**40), st.sampled_from(["B", "KB", "KiB", "MiB"]))
def test_sizes_are_exact(number, unit):
    factor = {"B": 1, "KB": 1000, "KiB": 1024, "MiB": 2**20}[unit]
    try:
        assert parse_size(f"{number} {unit}") == number * factor
    except ValueError:
        assert number * factor > 2**59
