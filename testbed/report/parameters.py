"""A scenario's parameters as dotted names and readable values, with the units of its schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel

from testbed import registries
from testbed.report.quantities import format_quantity
from testbed.schema import Scenario
from testbed.units import Unit

_ENTRY_LIMIT = 16
"""Entries of a list that are shown one by one."""

_STRATEGIES = {
    "topology": ("kind", registries.topology_parameters),
    "routing": ("scheme", registries.scheme_parameters),
    "workload": ("kind", registries.workload_parameters),
}


def parameters(scenario: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Dotted name and value of everything that is set; ``scenario`` is the resolved one.

    A value that the schema does not know, as of a strategy from elsewhere, has no unit.
    """
    for section, value in scenario.items():
        field = Scenario.model_fields.get(section)
        kind: Any = field
        if section in _STRATEGIES and isinstance(value, Mapping):
            selector, registered = _STRATEGIES[section]
            kind = registered().get(str(value.get(selector)))
        yield from _lines(section, value, kind)


def _lines(name: str, value: Any, kind: Any) -> Iterator[tuple[str, str]]:
    """``kind`` is what the schema has for the value: a field, a model, a type; None if unknown."""
    if isinstance(value, Mapping):
        model = next((t for t in _parts(kind) if _is_model(t)), None)
        fields = {} if model is None else model.model_fields
        for key, inner in value.items():
            yield from _lines(f"{name}.{key}", inner, fields.get(key))
    elif _has_parts(value) and len(value) <= _ENTRY_LIMIT:
        for position, inner in enumerate(value):
            yield from _lines(f"{name}.{position}", inner, kind)
    elif _has_parts(value):
        yield name, f"{len(value)} entries"
    elif value is not None and value != []:
        yield name, _readable(value, kind)


def _has_parts(value: Any) -> bool:
    return isinstance(value, Sequence) and any(isinstance(part, Mapping) for part in value)


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _readable(value: Any, kind: Any) -> str:
    unit = next((part.name for part in _parts(kind) if isinstance(part, Unit)), None)
    if unit is None or isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return format_quantity(value, unit)


def _parts(kind: Any) -> Iterator[Any]:
    """A type, what it is made of, and its annotations."""
    yield kind
    if hasattr(kind, "annotation"):  # a field of a model
        yield from _parts(kind.annotation)
    yield from (*getattr(kind, "metadata", ()), *getattr(kind, "__metadata__", ()))
    for argument in get_args(kind):
        yield from _parts(argument)
