"""Overrides of a scenario: `--set a.b=c` on the command line and the `set` of a variant.

Both name a field by its dotted path and act on the plain mapping that the file holds, before it is
validated, so that an override can do what editing the file could do and nothing else.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from testbed.strict_yaml import StrictYamlError, parse


class OverrideError(ValueError):
    """The override cannot be applied; the message names its path and the reason."""


def parse_assignment(text: str) -> tuple[str, Any]:
    """("nic.timeout", 14) from "nic.timeout=14"; the value is YAML. Raises OverrideError."""
    path, equals, value = text.partition("=")
    path = path.strip()
    if not equals or not path:
        raise OverrideError(f"--set {text!r}: write it as FIELD=VALUE, e.g. nic.timeout=14")
    try:
        return path, parse(value)
    except StrictYamlError as error:
        raise OverrideError(f"--set {text!r}: {error}") from error


def apply_overrides(document: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the document with each dotted path set. Raises OverrideError.

    A missing section on the way is created; a whole number steps into a list. Whether the field
    exists at all is left to validation, which knows the names.
    """
    result: dict[str, Any] = copy.deepcopy(dict(document))
    for path, value in overrides.items():
        _assign(result, path, copy.deepcopy(value))
    return result


def _assign(document: dict[str, Any], path: str, value: Any) -> None:
    keys = path.split(".")
    if not all(keys):
        raise OverrideError(f"{path}: is not a dotted path such as nic.timeout")
    place: Any = document
    for depth, key in enumerate(keys):
        last = depth == len(keys) - 1
        parent = ".".join(keys[:depth])
        if isinstance(place, list):
            place = _step_into_list(place, key, path, parent, value if last else None, last=last)
        elif isinstance(place, dict):
            if last:
                place[key] = value
            else:
                if place.get(key) is None:
                    place[key] = {}
                place = place[key]
        else:
            raise OverrideError(f"{path}: {parent} is {place!r}, which has no fields")


def _step_into_list(
    place: list[Any], key: str, path: str, parent: str, value: Any, *, last: bool
) -> Any:
    if not key.isdecimal() or int(key) >= len(place):
        raise OverrideError(f"{path}: {parent} is a list of {len(place)}; {key!r} is not in it")
    if last:
        place[int(key)] = value
    return place[int(key)]
