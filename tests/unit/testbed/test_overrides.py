"""Overrides by dotted path."""

from __future__ import annotations

import pytest

from testbed.overrides import OverrideError, apply_overrides, parse_assignment


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("nic.timeout=14", "nic.timeout", 14),
        ("workload.message_size=8 MiB", "workload.message_size", "8 MiB"),
        ("switch.ecn.threshold=null", "switch.ecn.threshold", None),
        ("capture=[leaf1-spine1]", "capture", ["leaf1-spine1"]),
        ("description=a=b", "description", "a=b"),
        ("faults.loss=1e-3", "faults.loss", 1e-3),
        ("nic.timeout=", "nic.timeout", None),
    ],
)
def test_parse(text: str, path: str, value: object) -> None:
    assert parse_assignment(text) == (path, value)


@pytest.mark.parametrize("text", ["nic.timeout", "=3", "", "a=[1"])
def test_parse_refuses(text: str) -> None:
    with pytest.raises(OverrideError, match="--set"):
        parse_assignment(text)


def test_apply_leaves_the_document_alone() -> None:
    document = {"a": {"b": 1}, "list": [{"c": 1}, {"c": 2}]}
    changed = apply_overrides(document, {"a.b": 2, "a.new.deep": 3, "list.1.c": 9})
    assert changed == {"a": {"b": 2, "new": {"deep": 3}}, "list": [{"c": 1}, {"c": 9}]}
    assert document == {"a": {"b": 1}, "list": [{"c": 1}, {"c": 2}]}


def test_apply_does_not_share_values() -> None:
    value = {"x": 1}
    changed = apply_overrides({}, {"a": value, "b": value})
    changed["a"]["x"] = 2
    assert changed["b"] == {"x": 1}


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("name.x", "name is 'incast', which has no fields"),
        ("list.2.c", "list is a list of 1"),
        ("list.c", "list is a list of 1"),
        ("a..b", "not a dotted path"),
    ],
)
def test_apply_refuses(path: str, reason: str) -> None:
    with pytest.raises(OverrideError, match=reason):
        apply_overrides({"name": "incast", "list": [{}]}, {path: 1})
