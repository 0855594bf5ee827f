"""`rocelab list NAME`: every field is there, as the models that validate a scenario have it."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, create_model

from testbed import cli, registries
from testbed.field_list import COLUMNS, Line, field_lines
from testbed.results import METRICS
from testbed.schema import Faults
from testbed.schema.nic import Nic
from testbed.schema.section import Section
from testbed.schema.values import BufferLimit, Dilation, Integer
from testbed.topology.wiring import Oversubscription
from testbed.units import BitRate, Duration, Size

SECTIONS = ("faults", "nic", "placement", "server", "switch", "telemetry", "variants")
STRATEGIES = {
    **registries.topology_parameters(),
    **registries.scheme_parameters(),
    **registries.workload_parameters(),
}


@pytest.fixture
def listed(capsys):
    def run(name: str) -> str:
        assert cli.invoke(["list", name]) == 0
        return capsys.readouterr().out

    return run


class Entry(Section):
    """One entry of `sample.entries`: a sample."""

    at: Duration
    name: str = Field(default="x", description="its name")


class Inner(Section):
    """`sample.inner`: more of it."""

    flag: bool = False
    share: float = Field(0.25, gt=0, lt=1, description="of the whole")


class Sample(Section):
    """`sample`: every kind of field."""

    count: Integer = Field(default=3, ge=1, le=2**22, description="how many")
    kind: Literal["a", "b", "c"] = "b"
    rate: BitRate | None = Field(None, description="of a link")
    wait: Duration = Field(256e-6, gt=0)
    size: Size = 25 * 2**20
    odd: Size = 1500
    limit: BufferLimit = None
    dilation: Dilation = "auto"
    ratio: Oversubscription = 7.0
    least: Integer | None = Field(default=None, ge=1)
    inner: Inner = Inner()
    entries: tuple[Entry, ...] = ()


def test_fields_by_hand() -> None:
    assert list(field_lines(Sample)) == [
        Line("count", "3", "1 to 2^22; how many"),
        Line("kind", "b", "a, b or c"),
        Line("rate", "null", "a rate; of a link"),
        Line("wait", "256 us", "a duration"),
        Line("size", "25 MiB", "a size"),
        Line("odd", "1500", "a size"),
        Line("limit", "null", "a size"),
        Line("dilation", "auto", "a number or auto"),
        Line("ratio", "7", "above 0.01 to 1000"),
        Line("least", "null", "at least 1"),
        Line("inner.flag", "false", "true or false"),
        Line("inner.share", "0.25", "above 0 to below 1; of the whole"),
        Line("entries", "[]", "a list; a sample"),
        Line("entries.N.at", "required", "a duration"),
        Line("entries.N.name", "x", "its name"),
    ]


@pytest.mark.parametrize("name", [*STRATEGIES, *SECTIONS, "topology", "routing", "workload"])
def test_everything_that_has_fields_fits_80_columns(listed, name: str) -> None:
    out = listed(name)
    assert max(map(len, out.splitlines())) <= COLUMNS
    assert f"`{name}`" in out
    for field in STRATEGIES[name].model_fields if name in STRATEGIES else ():
        assert f"\n{field} " in out or f"\n{field}." in out or f"\n{field}\n" in out


@pytest.mark.parametrize("model", [Nic, Faults, *STRATEGIES.values()])
def test_a_default_is_a_value_that_the_model_accepts(model: type[BaseModel]) -> None:
    """What the list shows may be copied into a file."""
    for line in field_lines(model):
        if line.default in ("required", "null", "[]", "{}", "") or "." in line.name:
            continue
        text = line.default
        value = {"true": True, "false": False}.get(text, text)
        if text.replace(".", "").isdigit():
            value = float(text) if "." in text else int(text)
        field = model.model_fields[line.name]
        alone: Any = create_model("Alone", it=(field.annotation, field))
        default = field.get_default(call_default_factory=True)
        found = alone(it=value).it
        assert found == default or found == pytest.approx(default, rel=1e-3)


def test_what_a_scenario_must_choose_and_what_it_may(listed) -> None:
    assert "\nscheme  ecmp  " in listed("routing")
    assert all("\nkind  required  " in listed(name) for name in ("topology", "workload"))


def test_metrics(listed) -> None:
    out = listed("metrics")
    assert all(f"\n{name} " in out for name in METRICS)


def test_the_list_says_how_to_go_on(capsys) -> None:
    assert cli.invoke(["list"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "`rocelab list NAME` has the fields" in out
    assert f"of a scenario: {', '.join(SECTIONS)};" in out


def test_a_name_without_fields(capsys) -> None:
    assert cli.invoke(["list", "hpm"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("rocelab: 'hpm' has no fields; did you mean 'hpn'? allowed: ")
    assert len(captured.err.splitlines()) == 1
