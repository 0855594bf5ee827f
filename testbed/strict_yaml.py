"""YAML as a scenario may use it: one small plain mapping, every key once.

`yaml.safe_load` accepts documents that mean something else than they seem to (a key given twice),
and documents that grow without bound when they are expanded ("billion laughs"). This reader refuses
both before anything is built from them, and says in one line what is wrong and where.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

FILE_SIZE_LIMIT = 1024 * 1024
"""Bytes; a scenario written by a person is a hundred times smaller."""

EVENT_LIMIT = 50_000
"""Scalars, brackets and aliases in one document."""

DEPTH_LIMIT = 40
"""Nested lists and mappings in one document; far below Python's recursion limit."""

EXPANSION_LIMIT = 100_000
"""Nodes after every alias has been replaced by what it stands for."""


_OCTAL = re.compile(r"[-+]?0[0-7_]+")


class StrictYamlError(ValueError):
    """The text is not acceptable YAML; the message is one line."""


class _Loader(yaml.SafeLoader):
    """The safe loader, but a key given twice is an error instead of a silent overwrite.

    And 1e-3 is a number, as in YAML 1.2; PyYAML, which reads YAML 1.1, demands 1.0e-3.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name is None:
                continue
            if name in seen:
                raise StrictYamlError(
                    f"line {key.start_mark.line + 1}: key {name!r} is given twice"
                )
            seen.add(name)
        return super().construct_mapping(node, deep=deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        _refuse_old_numbers(node)
        return int(super().construct_yaml_int(node))

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        _refuse_old_numbers(node)
        return float(super().construct_yaml_float(node))


def _refuse_old_numbers(node: yaml.ScalarNode) -> None:
    """YAML 1.1 takes 1:7 for 67, to the base 60, and 010 for 8; who writes that means neither."""
    text = str(node.value)
    if ":" in text:
        meant = "a number to the base 60"
    elif _OCTAL.fullmatch(text):
        meant = "an octal number"
    else:
        return
    raise StrictYamlError(
        f"line {_line(node.start_mark)}: {text} is {meant} in YAML; allowed: a decimal number, "
        "or text in quotes"
    )


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds. Raises StrictYamlError, also when it cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_SIZE_LIMIT + 1)
    except OSError as error:
        raise StrictYamlError(f"cannot be read: {error.strerror}") from error
    if len(content) > FILE_SIZE_LIMIT:
        raise StrictYamlError(f"is larger than {FILE_SIZE_LIMIT // 1024} KiB")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise StrictYamlError(f"is not UTF-8 text (byte {error.start})") from error
    document = parse(text)
    if document is None:
        raise StrictYamlError("is empty")
    if not isinstance(document, dict):
        raise StrictYamlError(f"holds a {_kind(document)}, not a mapping of fields to values")
    return document


def parse(text: str) -> Any:
    """What a YAML text stands for. Raises StrictYamlError."""
    try:
        _check_events(text)
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _check_expansion(node)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise StrictYamlError(_one_line(error)) from error
    except StrictYamlError:
        raise
    except (ValueError, RecursionError) as error:  # a number of 5000 digits, a date of month 13
        raise StrictYamlError(f"is not acceptable YAML: {_first_line(error)}") from error


def _check_events(text: str) -> None:
    """Refuse what is too deep or too long while it is still a stream, before it becomes a tree."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader), start=1):
        if count > EVENT_LIMIT:
            raise StrictYamlError(f"has more than {EVENT_LIMIT} values")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEPTH_LIMIT:
                line = _line(event.start_mark)
                raise StrictYamlError(f"line {line}: is nested deeper than {DEPTH_LIMIT} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _check_expansion(root: yaml.Node) -> None:
    """Refuse aliases that multiply: each node is visited once, its expanded size remembered."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: yaml.Node) -> int:
        if isinstance(node, yaml.ScalarNode):
            return 1
        identity = id(node)
        if identity in open_nodes:
            raise StrictYamlError(f"line {_line(node.start_mark)}: an alias contains itself")
        if identity not in sizes:
            open_nodes.add(identity)
            if isinstance(node, yaml.MappingNode):
                total = sum(size(key) + size(value) for key, value in node.value)
            else:
                total = sum(size(item) for item in node.value)
            open_nodes.discard(identity)
            sizes[identity] = 1 + total
        return sizes[identity]

    if size(root) > EXPANSION_LIMIT:
        raise StrictYamlError(f"expands to more than {EXPANSION_LIMIT} values through its aliases")


def _line(mark: Any) -> int:
    return int(mark.line) + 1


def _kind(value: object) -> str:
    return {list: "list", str: "text", bool: "true/false value"}.get(type(value), "single value")


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _one_line(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        return f"{where}{error.problem or error.context or 'is not YAML'}"
    return f"is not YAML: {_first_line(error)}"
