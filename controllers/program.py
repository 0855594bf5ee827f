"""The controller's work as a JSON file: the switches and, for each, its entries.

The runner computes and writes it; the application loads it. Only the standard library is imported
at run time, so that the application runs beside any OpenFlow library. Equal input, equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from controllers.entries import Action, Entry

if TYPE_CHECKING:
    from testbed.topology import Topology

VERSION = 1

_ACTIONS: dict[str, type] = {kind.__name__: kind for kind in get_args(Action)}

_ENUMERATIONS: dict[type, dict[str, type[Enum]]] = {
    kind: {
        name: hint
        for name, hint in get_type_hints(kind).items()
        if isinstance(hint, type) and issubclass(hint, Enum)
    }
    for kind in _ACTIONS.values()
}
"""Action -> its fields that are enumerations, which JSON holds by value."""


class ProgramError(ValueError):
    """A program file cannot be read; the message names the file and what is wrong."""


@dataclass(frozen=True, slots=True)
class SwitchProgram:
    """One switch and all entries that it shall hold."""

    name: str
    datapath_id: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """What the application installs. ``topology`` is the fabric's name, for messages."""

    topology: str
    switches: tuple[SwitchProgram, ...]


def write_program(path: Path, topology: Topology, entries: Mapping[str, Iterable[Entry]]) -> None:
    """Write the entries of every switch of a topology. Raises KeyError if a switch has none."""
    switches = [
        {
            "name": switch.name,
            "datapath_id": switch.datapath_id,
            "entries": [_encode_entry(entry) for entry in entries[switch.name]],
        }
        for switch in topology.switches
    ]
    document = {"version": VERSION, "topology": topology.name, "switches": switches}
    path.write_text(json.dumps(document, sort_keys=True, separators=(",", ":")) + "\n")


def load_program(path: Path) -> Program:
    """Read what ``write_program`` wrote. Raises ProgramError, also when the file is missing."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ProgramError(f"program {path}: {error}") from error
    try:
        if document["version"] != VERSION:
            raise ValueError(f"version {document['version']!r}; this controller reads {VERSION}")
        return Program(
            document["topology"],
            tuple(
                SwitchProgram(
                    switch["name"],
                    switch["datapath_id"],
                    tuple(_decode_entry(entry) for entry in switch["entries"]),
                )
                for switch in document["switches"]
            ),
        )
    except KeyError as error:
        raise ProgramError(f"program {path}: {error} is missing or unknown") from error
    except (TypeError, ValueError) as error:
        raise ProgramError(f"program {path}: {error}") from error


def _encode_entry(entry: Entry) -> dict[str, Any]:
    return {
        "table": entry.table,
        "priority": entry.priority,
        "match": dict(entry.match),
        "actions": [_encode_action(action) for action in entry.actions],
    }


def _encode_action(action: Action) -> dict[str, Any]:
    encoded: dict[str, Any] = {"action": type(action).__name__}
    for field in fields(action):
        value = getattr(action, field.name)
        encoded[field.name] = value.value if isinstance(value, Enum) else value
    return encoded


def _decode_entry(encoded: Mapping[str, Any]) -> Entry:
    actions = tuple(_decode_action(action) for action in encoded["actions"])
    return Entry(encoded["table"], encoded["priority"], encoded["match"], actions)


def _decode_action(encoded: Mapping[str, Any]) -> Action:
    arguments = dict(encoded)
    kind = _ACTIONS[arguments.pop("action")]
    for name, enumeration in _ENUMERATIONS[kind].items():
        arguments[name] = enumeration(arguments[name])
    action: Action = kind(**arguments)
    return action
