"""Input that nobody meant: every file, number and name is used, or refused in one short line."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed import cli
from testbed.scenario import ScenarioError, load_scenario
from testbed.units import parse_duration, parse_rate, parse_size

ROOT = Path(__file__).resolve().parents[3]

GOOD: dict[str, Any] = {
    "name": "good",
    "topology": {"kind": "leaf-spine"},
    "workload": {"kind": "incast", "message_size": "64 KiB"},
}


def refusal(path: Path | str, *assignments: str) -> str:
    """What load_scenario says; checked to be one short printable line, said soon."""
    started = time.monotonic()
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path, assignments)
    assert time.monotonic() - started < 10
    message = str(caught.value)
    assert "\n" not in message
    assert len(message.removeprefix(str(path))) < 900  # an unknown metric lists all
    return message


@pytest.fixture
def refuse(tmp_path):
    """Write a file and return what load_scenario says about it."""

    def check(content: bytes | str | dict[str, Any]) -> str:
        path = tmp_path / "scenario.yaml"
        if isinstance(content, dict):
            content = yaml.safe_dump(content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return refusal(path)

    return check


def good_text() -> str:
    return yaml.safe_dump(GOOD)


def test_the_good_scenario_is_good(tmp_path) -> None:
    path = tmp_path / "good.yaml"
    path.write_text(good_text())
    assert load_scenario(path).name == "good"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"# only a remark\n", "is empty"),
        (b"\x7fELF\x02\x01\x01\x00\x03\xff", "is not UTF-8 text"),
        (b"name: a\0b", "is not YAML"),
        (good_text().encode("utf-16"), "is not UTF-8 text"),
        (b"name: " + b"x" * 10_000_000, "is larger than 1024 KiB"),
        (b"a: " + b"[" * 100_000 + b"]" * 100_000, "nested deeper"),
        ("".join(" " * depth + "a:\n" for depth in range(900)).encode(), "nested deeper"),
        (b"a: [" + b"1," * 100_000 + b"]", "more than 50000 values"),
        (b"name: 1\nname: 2", "key 'name' is given twice"),
        (f"{good_text()}\n---\n{good_text()}".encode(), "line "),
        (b"- a\n- b", "holds a list"),
        (b"5", "holds a single value"),
        (b"a: &a [*a]", "an alias contains itself"),
        (b"? [a]\n: 5", "line 1"),
        (b"name: !!python/object/apply:os.system ['touch owned']", "could not determine a cons"),
        (b"!!python/object/new:os.system ['touch owned']", "could not determine a constructor"),
        (b"name: " + b"9" * 5000, "is not acceptable YAML"),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value[:12]),
)
def test_files_that_are_no_scenario(refuse, tmp_path, monkeypatch, content, message) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refuse(content)
    assert [path.name for path in tmp_path.iterdir()] == ["scenario.yaml"]


@pytest.mark.parametrize("path", ["/nowhere/x.yaml", "", "/", "/dev/null", "/dev/zero", "a" * 300])
def test_paths_that_are_no_file(path) -> None:
    refusal(path)


def test_a_file_that_may_not_be_read(tmp_path) -> None:
    path = tmp_path / "loop.yaml"
    path.symlink_to(path)
    refusal(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("topology.link_rate", value)
        for value in (
            ".nan", ".inf", "nan Gbps", "inf Gbps", "1e400 Gbps", "1e-400 Gbps", "1e300 Tbps",
            "1e-300 bps", "-400 Gbps", "0 Gbps", "400", "400 Gb", "''", "[]", "{}", "true",
            "400 Gbps; reboot",
        )
    ]
    + [
        ("workload.message_size", value)
        for value in (
            ".nan", ".inf", "-.inf", "1e400 GB", "1e300 GB", "1e20", "0.5 B", "0", "-1", "-1 MiB",
            "1" + "0" * 400, "100 TB", "null", "true",
        )
    ]
    + [("switch.buffer.limit", v) for v in ("1e400 GB", "0", "-1", ".nan", "'inf'", "9" * 400)]
    + [("topology.hop_latency", v) for v in ("1e400 us", "-1 us", ".nan", ".inf", "1", "1 min")]
    + [("time_limit", v) for v in ("1e400 us", "0", "-1 us", ".nan", "2 h", "3601 s")]
    + [("telemetry.interval", v) for v in ("1e400 us", "0", ".inf", "often")]
    + [("dilation", v) for v in ("0", "-1", ".nan", ".inf", "1e400", "1e10", "9" * 400, "soon")]
    + [("seed", v) for v in ("-1", "1.5", str(2**63), "true", "null", ".nan")]
    + [("workload.senders", v) for v in ("-1", "0", "8", "1e9", "some")]
    + [("workload.messages", v) for v in ("-1", "0", "1000000000")]
    + [("topology.leaves", v) for v in ("-1", "0", "65", "1e9")]
    + [("topology.servers_per_leaf", v) for v in ("300", "0", "1e400")]
    + [("faults.loss", v) for v in (".nan", "1", "-0.1", "2")]
    + [("routing.scheme", "e" * 100_000), ("k" * 5000, "1"), ("nic.timeout", "9" * 4000)],
    ids=lambda value: value[:30],
)  # fmt: skip
def test_values_out_of_range(tmp_path, field, value) -> None:
    path = tmp_path / "good.yaml"
    path.write_text(good_text())
    assert field[:8] in refusal(path, f"{field}={value}")


def test_a_dilation_that_leaves_no_rate(tmp_path) -> None:
    path = tmp_path / "good.yaml"
    path.write_text(good_text())
    message = refusal(path, "topology.link_rate=1 Mbps", "dilation=200000")
    assert "dilation: 200000 slows a link of 1e+06 bit/s down to 5 bit/s" in message
    assert "at most 125000" in message
    assert load_scenario(path, ["topology.link_rate=1 Mbps", "dilation=125000"]).dilation == 125000


@pytest.mark.parametrize("name", [
    "../escape", "a/b", "/etc/passwd", ".", "..", "", "a\nb", "a\n", "a;b", "$(id)", "`id`", "a b",
    "-rf", "a\0b", "\x1b[31mred", "\u202eabc", "a" * 65, None, 5, ["a"],
])  # fmt: skip
def test_names_become_paths_so_they_are_plain(refuse, name) -> None:
    assert "name" in refuse({**GOOD, "name": name})
    assert "variants" in refuse({**GOOD, "variants": [{"name": name}]})


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        ([{"name": "a"}, {"name": "a"}], "'a' names two variants"),
        ({"a": 1}, "variants"),
        ([{"name": "a", "set": {"name": "x"}}], "name cannot differ by variant"),
        ([{"name": "a", "set": {"nic.timeout": 99}}], "nic.timeout: 99 must be"),
        ([{"name": "a", "set": {"": 1}}], "is not a dotted path"),
        ([{"name": "a", "set": [1]}], "variants.0.set"),
    ],
)
def test_variants(refuse, variants, message) -> None:
    assert message in refuse({**GOOD, "variants": variants})


@pytest.mark.parametrize("text", [
    "speed > 0", "__import__('os').system('id')", "goodput.__class__ == 1", "9**9**9 > goodput",
    "(" * 200 + "goodput" + ")" * 200 + " > 0", "", "goodput > 0\0", "nobody.goodput > 0",
    "(goodput := 3) > 0", "'a' * 10 == goodput", "9" * 5000 + " > goodput",
])  # fmt: skip
def test_expectations(refuse, text) -> None:
    assert "expect.0" in refuse({**GOOD, "expect": [text]})


@pytest.mark.parametrize("key", ["\x1b[2Jx", "a\nb", "\u202ex"])
def test_what_a_file_holds_does_not_reach_the_terminal_raw(tmp_path, capsys, key) -> None:
    path = tmp_path / "evil.yaml"
    path.write_text(yaml.safe_dump({**GOOD, key: 1}, allow_unicode=True))
    assert cli.invoke(["plan", str(path)]) == 2
    message = capsys.readouterr().err.removesuffix("\n")
    assert message.isprintable()
    assert "unknown field" in message


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_rate, "1 kbps", 1e3),
        (parse_rate, "1000 Tbps", 1e15),
        (parse_duration, "86400 s", 86400.0),
        (parse_size, 2**60, 2**60),
        (parse_size, "1048576 TiB", 2**60),
    ],
)
def test_limits_belong_to_the_range(parse, text, value) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "value"),
    [
        (parse_rate, "0.999 kbps"),
        (parse_rate, "1001 Tbps"),
        (parse_duration, "86401 s"),
        (parse_size, 2**60 + 1),
        (parse_size, 10**400),
        (parse_size, float("nan")),
    ],
)
def test_beyond_the_limits(parse, value) -> None:
    with pytest.raises(ValueError, match=r"allowed|not a size"):
        parse(value)


def test_output_survives_a_reader_that_leaves(tmp_path) -> None:
    """`rocelab plan incast | head -0`: no traceback, nothing at all on standard error."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "testbed.cli", "plan", "incast", "--dilation", "5000"],
            cwd=ROOT,
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
