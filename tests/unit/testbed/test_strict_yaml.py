"""What the strict YAML reader refuses, and that it does so quickly and in one line."""

from __future__ import annotations

import string
import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from testbed.strict_yaml import FILE_SIZE_LIMIT, StrictYamlError, parse, read_mapping


def bomb(levels: int = 9, fan_out: int = 9) -> str:
    lines = ["a0: &a0 lol"]
    for level in range(1, levels):
        aliases = ", ".join([f"*a{level - 1}"] * fan_out)
        lines.append(f"a{level}: &a{level} [{aliases}]")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: 1\nb: 2\na: 3", "line 3: key 'a' is given twice"),
        ("a: {b: 1, b: 2}", "key 'b' is given twice"),
        (bomb(), "aliases"),
        ("a: &a [*a]", "contains itself"),
        ("[" * 5000, "nested deeper than 40"),
        ("a: [1, 2", "line 1"),
        ("a: 1\n\tb: 2", "line 2"),
        ("a: 1\n---\nb: 2", "another document"),
        ("a: !!python/object/apply:os.system [id]", "tag"),
        ("a: " + "9" * 5000, "not acceptable"),
        ("a: 2024-13-41", "not acceptable"),
        ("x: \x00", "not YAML"),
        ("[1, 2]: 3", "unhashable"),
        ("- 1\n" * 60_000, "more than 50000 values"),
    ],
)
def test_refuses(text: str, reason: str) -> None:
    started = time.monotonic()
    with pytest.raises(StrictYamlError, match=reason) as caught:
        parse(text)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - started < 10


def test_an_alias_that_does_not_multiply_is_fine() -> None:
    assert parse("a: &x {b: 1}\nc: *x") == {"a": {"b": 1}, "c": {"b": 1}}


@pytest.mark.parametrize(
    ("text", "value"), [("1e-3", 1e-3), ("1e4", 1e4), ("-2.5E+1", -25.0), ("1.5", 1.5), (".5e1", 5)]
)
def test_exponents_are_numbers(text: str, value: float) -> None:
    assert parse(f"a: {text}") == {"a": value}


@pytest.mark.parametrize("text", ["1:7", "1:1.125", "-1:30:0", "010", "+0_7"])
def test_numbers_of_yaml_1_1_that_nobody_means(text: str) -> None:
    """Meta writes an oversubscription as 1:7, which is 67 to YAML."""
    with pytest.raises(StrictYamlError, match=r"line 2: .*allowed: a decimal number"):
        parse(f"b: 0\na: {text}")
    assert parse(f"a: '{text}'") == {"a": text}


# Without e: PyYAML writes the text 1e3 bare, which is a number to us.
LETTERS = string.ascii_letters.replace("e", "").replace("E", "")
plain = st.text(alphabet=LETTERS + string.digits + " -_", max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | plain,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(plain, children, max_size=4),
    max_leaves=20,
)


@given(values)
def test_reads_what_pyyaml_writes(value: object) -> None:
    assert parse(yaml.safe_dump(value)) == value


@given(st.text(max_size=60))
def test_any_text_gives_a_value_or_one_line(text: str) -> None:
    try:
        parse(text)
    except StrictYamlError as error:
        assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"# nothing\n", "is empty"),
        (b"- a\n- b\n", "holds a list"),
        (b"just words", "holds a text"),
        (b"\xff\xfea: 1", "not UTF-8"),
        (b"a: " + b"x" * FILE_SIZE_LIMIT, "larger than 1024 KiB"),
    ],
)
def test_files_that_hold_no_mapping(tmp_path, content: bytes, reason: str) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_bytes(content)
    with pytest.raises(StrictYamlError, match=reason):
        read_mapping(path)


def test_what_is_no_file(tmp_path) -> None:
    with pytest.raises(StrictYamlError, match="cannot be read: Is a directory"):
        read_mapping(tmp_path)
    with pytest.raises(StrictYamlError, match="cannot be read: No such file"):
        read_mapping(tmp_path / "absent")
