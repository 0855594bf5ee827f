"""The table that the benchmarks print: what was measured, the ratio, its target, met or not."""

from __future__ import annotations

from dataclasses import dataclass

WIDTH = 80


@dataclass(frozen=True, slots=True)
class Row:
    """One ratio. ``ours`` and ``other`` are written with their units; ``target`` is the least
    ratio wanted, None for one that is only reported; ``notes`` are lines that go below the row."""

    name: str
    ours: str
    other: str
    ratio: float
    target: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def met(self) -> bool:
        """Whether the ratio reaches the target, if there is one."""
        return self.target is None or self.ratio >= self.target

    def text(self) -> str:
        """The row and its notes."""
        target = "" if self.target is None else f">= {self.target:g}"
        verdict = "" if self.target is None else "met" if self.met else "NOT MET"
        line = (
            f"{self.name:<20}{self.ours:>15}{self.other:>15}"
            f"{self.ratio:>9.3g}{target:>9}{verdict:>11}".rstrip()
        )
        return "\n".join([line, *(f"  {note}" for note in self.notes)])


def header(other: str) -> str:
    """The head of a group of rows whose second measurement is that of ``other``."""
    return f"{'':<20}{'RoCELab':>15}{other:>15}{'ratio':>9}{'target':>9}{'':>11}".rstrip()
