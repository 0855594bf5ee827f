"""Numbers as people read them: 83 ns, 1.25 ms, 398 KB, 382 Gb/s. Decimal prefixes throughout."""

from __future__ import annotations

from dataclasses import dataclass

MISSING = "–"

_STEPS: dict[str, list[tuple[float, str]]] = {
    "s": [(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")],
    "bit/s": [(1e12, "Tb/s"), (1e9, "Gb/s"), (1e6, "Mb/s"), (1e3, "kb/s"), (1.0, "b/s")],
    "B": [(1e9, "GB"), (1e6, "MB"), (1e3, "KB"), (1.0, "B")],
}


@dataclass(frozen=True, slots=True)
class Scale:
    """A unit for an axis or a value: show ``value / divisor`` followed by ``label``."""

    divisor: float
    label: str


def scale_for(magnitude: float, unit: str) -> Scale:
    """The prefix in which ``magnitude`` reads as a number of at least 1, where there is one."""
    steps = _STEPS.get(unit)
    if steps is None:
        return Scale(1.0, unit)
    for divisor, label in steps:
        # Half a unit of the last of three digits: 999.6 KB reads better as 1.00 MB.
        if abs(magnitude) >= divisor * 0.9995:
            return Scale(divisor, label)
    return Scale(*steps[-1])


def format_quantity(value: float | int | str | None, unit: str) -> str:
    """A value with its unit to three significant digits; counts in full; ``–`` for None."""
    if value is None:
        return MISSING
    if isinstance(value, str):
        return value
    if unit == "ratio":
        return f"{three_digits(value)}×"
    if unit == "share":
        return f"{three_digits(100 * value)} %" if value else "0 %"
    if unit == "1/s":
        return f"{three_digits(value)}/s"
    if unit not in _STEPS:
        return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"
    if value == 0:
        return "0" if unit == "B" else f"0 {_STEPS[unit][0][1]}"
    scale = scale_for(value, unit)
    if unit == "B" and float(value).is_integer() and scale.divisor == 1.0:
        return f"{value:.0f} B"
    return f"{three_digits(value / scale.divisor)} {scale.label}"


def three_digits(value: float) -> str:
    """Three significant digits without an exponent: 0.123, 1.23, 12.3, 123, 1,234."""
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:,.0f}"
    if magnitude >= 9.995:
        return f"{value:.1f}"
    if magnitude >= 0.9995 or magnitude == 0:
        return f"{value:.2f}"
    return f"{value:.3g}"


_ABBREVIATIONS = {"naks": "NAKs", "rnr": "RNR", "ecn": "ECN", "psn": "PSN"}


def in_words(name: str) -> str:
    """A metric's name as a table shows it: rnr_naks becomes RNR NAKs."""
    return " ".join(_ABBREVIATIONS.get(word, word) for word in name.split("_"))


def plural(count: int, noun: str) -> str:
    """1 packet, 2 packets, 1,234 packets; 2 leaves."""
    if count != 1:
        noun = "leaves" if noun == "leaf" else f"{noun}s"
    return f"{count:,} {noun}"
