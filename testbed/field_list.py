"""`rocelab list NAME`: the fields of a strategy or section, as a scenario file has them.

All of it is read from the models that validate the file: names, defaults, what is allowed, meaning.
"""

from __future__ import annotations

import re
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from testbed import registries
from testbed.units import Unit

COLUMNS = 80

NAME_LIMIT = 30
DEFAULT_LIMIT = 18
"""Characters; what is longer has its text begin on a line of its own."""

_SCALES: dict[str, tuple[tuple[str, float], ...]] = {
    "bit/s": (("Tbps", 1e12), ("Gbps", 1e9), ("Mbps", 1e6), ("kbps", 1e3)),
    "s": (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)),
    "B": (("MiB", 2.0**20), ("KiB", 2.0**10)),
}
_KINDS = {"bit/s": "a rate", "s": "a duration", "B": "a size"}

_ENTRY = re.compile(r"^One entry of `[a-z.]+`: ")

_CHOSEN_BY = {"topology": "kind", "routing": "scheme", "workload": "kind"}
"""Sections that name a strategy, and the field that does."""


class UnknownNameError(ValueError):
    """Nothing of that name has fields; the message says what has."""


@dataclass(frozen=True, slots=True)
class Line:
    """A field: dotted name, default, and what it may be and means."""

    name: str
    default: str
    text: str


def print_fields(name: str) -> None:
    """Print everything of that name that has fields. Raises UnknownNameError."""
    found = list(_things(name))
    if not found:
        known = sorted({*_sections(), *_CHOSEN_BY, "metrics", *_strategy_names()})
        raise UnknownNameError(f"{name!r} has no fields; {registries.suggestion(name, known)}")
    for number, (title, lines) in enumerate(found):
        if number:
            print()
        print(textwrap.fill(title, COLUMNS, break_on_hyphens=False), end="\n\n")
        _print_lines(list(lines))


def named_sections() -> list[str]:
    """The sections of a scenario that have fields of their own."""
    return sorted(_sections())


def _things(name: str) -> Iterator[tuple[str, Iterable[Line]]]:
    """(title, lines) of all that has a name; a workload and a topology may share one."""
    if name == "metrics":
        yield "Metrics that `expect` may use", _metrics()
    if name in _CHOSEN_BY:
        yield f"`{name}`", [_choice(name)]
    section = _sections().get(name)
    if section is not None:
        yield _summary(section), field_lines(section)
    for field, (what, registered) in _strategies().items():
        if name in registered:
            strategy, model = registered[name]
            choice = Line(_CHOSEN_BY[field], "required", name)
            yield f"{what} `{name}`: {_summary(strategy)}", [choice, *field_lines(model)]


def field_lines(model: type[BaseModel], prefix: str = "") -> Iterator[Line]:
    """The fields of a model; those of the sections and lists in it have dotted names."""
    for name, field in model.model_fields.items():
        description = " ".join((field.description or "").split())
        inner, many = _inner_model(field.annotation)
        if inner is None:
            allowed = _allowed(field)
            text = "; ".join(part for part in (allowed, description) if part)
            yield Line(f"{prefix}{name}", _default(field), text)
            continue
        if many:
            text = description or _ENTRY.sub("", _summary(inner)).removesuffix(".")
            yield Line(f"{prefix}{name}", _default(field), f"a list; {text}")
        elif field.is_required() or field.default is None:
            yield Line(f"{prefix}{name}", _default(field), description or _summary(inner))
        yield from field_lines(inner, f"{prefix}{name}.{'N.' if many else ''}")


def _sections() -> dict[str, type[BaseModel]]:
    """The scenario and its sections, apart from those that name a strategy."""
    from testbed.schema import Scenario

    found: dict[str, type[BaseModel]] = {}
    for name, field in Scenario.model_fields.items():
        inner, _ = _inner_model(field.annotation)
        if inner is not None and name not in _CHOSEN_BY:
            found[name] = inner
    return found


def _strategies() -> dict[str, tuple[str, dict[str, tuple[type, type[BaseModel]]]]]:
    """Section -> what it names, and by name the strategies and the models of their parameters."""
    from controllers.schemes import scheme_class, scheme_names
    from testbed.topology import topology_kinds
    from traffic.workloads import workload_class, workload_names

    schemes = {name: scheme_class(name) for name in scheme_names()}
    workloads = {name: workload_class(name) for name in workload_names()}
    return {
        "topology": ("topology", {n: (k, k.parameters) for n, k in topology_kinds().items()}),
        "routing": ("routing scheme", {n: (k, k.parameters_type) for n, k in schemes.items()}),
        "workload": ("workload", {n: (k, k.Parameters) for n, k in workloads.items()}),
    }


def _strategy_names() -> set[str]:
    return {name for _, registered in _strategies().values() for name in registered}


def _choice(section: str) -> Line:
    from testbed.schema import Scenario

    what, registered = _strategies()[section]
    field, default = Scenario.model_fields[section], "required"
    if not field.is_required():
        default = getattr(field.get_default(call_default_factory=True), _CHOSEN_BY[section])
    names = ", ".join(sorted(registered))
    return Line(
        _CHOSEN_BY[section], default, f"{names}; `rocelab list NAME` has the fields of a {what}"
    )


def _metrics() -> Iterator[Line]:
    from testbed.results import METRICS

    for name, info in METRICS.items():
        yield Line(name, info.unit, info.description)


def _summary(described: type) -> str:
    """The first paragraph of a docstring."""
    return " ".join((described.__doc__ or described.__name__).split("\n\n")[0].split())


def _parts(annotation: Any) -> list[Any]:
    """The alternatives of a type without None, and without what annotates them."""
    origin = get_origin(annotation)
    if origin is typing.Annotated:
        return _parts(get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return [part for a in get_args(annotation) if a is not type(None) for part in _parts(a)]
    return [annotation]


def _inner_model(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The model whose fields a field has, and whether it is a list of such."""
    for part in _parts(annotation):
        if get_origin(part) in (tuple, list):
            inner, _ = _inner_model(get_args(part)[0])
            return inner, inner is not None
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part, False
    return None, False


def _marks(annotation: Any) -> Iterator[Any]:
    """What annotates a type or its alternatives."""
    origin = get_origin(annotation)
    if origin is typing.Annotated:
        inner, *marks = get_args(annotation)
        yield from _marks(inner)
        yield from marks
    elif origin in (typing.Union, types.UnionType):
        for part in get_args(annotation):
            yield from _marks(part)


def _all_marks(field: FieldInfo) -> list[Any]:
    found = [*field.metadata, *_marks(field.annotation)]
    nested = [m.metadata for m in found if isinstance(m, FieldInfo)]
    return [*found, *(mark for marks in nested for mark in marks)]


def _unit(field: FieldInfo) -> str:
    return next((mark.name for mark in _all_marks(field) if isinstance(mark, Unit)), "")


def _allowed(field: FieldInfo) -> str:
    """What a field may be, in a few words; empty where the meaning says it."""
    parts = _parts(field.annotation)
    names = [name for part in parts for name in _names(part)]
    unit = _unit(field)
    if unit:
        names.insert(0, _KINDS[unit])
    elif bool in parts:
        names = ["true", "false"]
    elif int in parts or float in parts:
        names.insert(0, _range(field) or ("a whole number" if int in parts else "a number"))
    elif any(get_origin(part) in (tuple, list) for part in parts):
        names.insert(0, "a list")
    return " or ".join([", ".join(names[:-1]), names[-1]] if names[:-1] else names)


def _names(part: Any) -> list[str]:
    if get_origin(part) is Literal:
        return [str(value) for value in get_args(part)]
    if isinstance(part, type) and issubclass(part, Enum):
        return [str(member.value) for member in part]
    return []


def _range(field: FieldInfo) -> str:
    low = high = ""
    for mark in _all_marks(field):
        if isinstance(mark, annotated_types.Ge):
            low = f"{mark.ge:g}"
        elif isinstance(mark, annotated_types.Gt):
            low = f"above {mark.gt:g}"
        elif isinstance(mark, annotated_types.Le):
            high = _whole(mark.le)
        elif isinstance(mark, annotated_types.Lt):
            high = f"below {_whole(mark.lt)}"
    if low and high:
        return f"{low} to {high}"
    if low:
        return low if low.startswith("above") else f"at least {low}"
    return high if not high or high.startswith("below") else f"at most {high}"


def _whole(number: Any) -> str:
    """A limit as a person writes it: 2^63, not 9.22e+18."""
    if isinstance(number, int) and number > 4096 and number & (number - 1) == 0:
        return f"2^{number.bit_length() - 1}"
    return f"{number:g}"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return ""
    if isinstance(value, Enum):
        return str(value.value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return _quantity(value, _unit(field))
    if isinstance(value, (tuple, list, dict)):
        return "{}" if isinstance(value, dict) else f"[{', '.join(map(str, value))}]"
    return str(value) or "''"


def _quantity(value: float, unit: str) -> str:
    """A value in the unit in which a file would have it."""
    for label, scale in _SCALES.get(unit, ()):
        shown = value / scale
        if shown >= 1 and (unit != "B" or shown == int(shown)):
            return f"{shown:.6g} {label}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _print_lines(lines: list[Line]) -> None:
    name_width = min(NAME_LIMIT, max(len(line.name) for line in lines))
    default_width = min(DEFAULT_LIMIT, max(len(line.default) for line in lines))
    indent = " " * (name_width + default_width + 4)
    for line in lines:
        head = f"{line.name:<{name_width}}  {line.default:<{default_width}}  "
        text = textwrap.wrap(line.text, COLUMNS - len(indent), break_on_hyphens=False)
        if len(head) > len(indent):
            print(head.rstrip())
            head = indent
        print(f"{head}{text[0] if text else ''}".rstrip())
        for rest in text[1:]:
            print(indent + rest)
