"""What `rocelab coll` is asked for, turned into a scenario: a variant per algorithm and size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.coll.sizes import short_size
from testbed.registries import suggestion
from testbed.scenario import (
    Scenario,
    ScenarioError,
    read_document,
    scenario_from_document,
)

AUTOMATIC = "auto"

_REPLACED = frozenset({"name", "description", "workload", "variants", "expect"})
"""What a scenario file says that a sweep says instead."""

_OPTIONS = {
    "workload.kind": "always collective",
    "workload.collective": "the command's OPERATION",
    "workload.size": "--sizes",
    "workload.algorithm": "--algorithm",
}
"""What the variants of a sweep are made of, and where it is said instead."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """``sizes`` in bytes; ``settings`` are further fields of the scenario by dotted path.

    ``base`` is the path or name of a scenario whose fabric, NICs and routing it takes place in;
    None for a fabric of the kind ``topology`` as that is by default.
    """

    operation: str
    sizes: tuple[int, ...]
    algorithms: tuple[str, ...] = (AUTOMATIC,)
    channels: int = 1
    dtype: str = "float32"
    reduction: str = "sum"
    base: str | None = None
    topology: str = "leaf-spine"
    settings: Sequence[str] = ()

    def scenario(self) -> Scenario:
        """The scenario, validated and planned. Raises ScenarioError."""
        self._check()
        document: dict[str, Any] = {
            "name": f"coll-{self.operation}",
            "description": self._description(),
            **self._base(),
            "workload": {
                "kind": "collective",
                "collective": self.operation,
                "size": self._sizes[0],
                "algorithm": self.algorithms[0],
                "channels": self.channels,
                "dtype": self.dtype,
                "reduction": self.reduction,
            },
            "variants": self._variants(),
            "expect": ["wrong_elements == 0"],
        }
        return scenario_from_document(document, self.settings, origin=f"coll {self.operation}")

    @property
    def _sizes(self) -> tuple[int, ...]:
        """A barrier has no size, so it is run once."""
        return self.sizes[:1] if self.operation == "barrier" else self.sizes

    def _check(self) -> None:
        """Name the command line's words, rather than the scenario's fields, where they are wrong.

        Raises ScenarioError.
        """
        from traffic.collectives.algorithms import algorithm_names
        from traffic.collectives.request import Collective
        from traffic.plan import DataType, Reduction

        for what, words, allowed in (
            ("OPERATION", [self.operation], [c.value for c in Collective]),
            ("--algorithm", self.algorithms, [AUTOMATIC, *algorithm_names()]),
            ("--dtype", [self.dtype], [d.value for d in DataType if d is not DataType.UINT8]),
            ("--op", [self.reduction], [r.value for r in Reduction]),
        ):
            for word in words:
                if word not in allowed:
                    raise ScenarioError(f"{what}: {word!r}; {suggestion(word, allowed)}")
        for setting in self.settings:
            field = setting.partition("=")[0].strip()
            if field in _OPTIONS:
                raise ScenarioError(f"--set {field}: not in a sweep; it is {_OPTIONS[field]}")
            section = field.partition(".")[0]
            if field == "workload" or section == "variants":
                raise ScenarioError(f"--set {field}: not in a sweep, which has its own {section}")
        if len(set(self.algorithms)) < len(self.algorithms):
            raise ScenarioError(f"--algorithm: {','.join(self.algorithms)} names one twice")

    def _description(self) -> str:
        return (
            f"{self.operation} of {short_size(min(self._sizes))} to "
            f"{short_size(max(self._sizes))} bytes, algorithm {', '.join(self.algorithms)}"
        )

    def _base(self) -> dict[str, Any]:
        if self.base is None:
            return {"topology": {"kind": self.topology}}
        document: Mapping[str, Any] = read_document(self.base)
        return {key: value for key, value in document.items() if key not in _REPLACED}

    def _variants(self) -> list[dict[str, Any]]:
        return [
            {
                "name": f"{algorithm}-{short_size(size)}",
                "set": {"workload.algorithm": algorithm, "workload.size": size},
            }
            for algorithm in self.algorithms
            for size in self._sizes
        ]
