"""The expectation language: what it means, what it refuses."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.expect import Expectation, ExpectationError

METRICS = ["goodput", "drops", "completion_time", "bytes", "verdict"]
RUN = {
    "go-back-n": {
        "goodput": 100e9, "drops": 40, "completion_time": 2e-3, "bytes": 3 * 2**20,
        "verdict": "faithful",
    },
    "selective-repeat": {
        "goodput": 200e9, "drops": 10, "completion_time": 1e-3, "bytes": 2**20,
        "verdict": "degraded",
    },
}  # fmt: skip


def judge(text: str, metrics=RUN):
    return Expectation.parse(text, metrics=METRICS, variants=list(RUN)).evaluate(metrics)


@pytest.mark.parametrize(
    "text",
    [
        "go-back-n.drops > selective-repeat.drops",
        "go-back-n.drops - selective-repeat.drops == 30",
        "drops >= 10",
        "all.drops >= 10",
        "all.drops >= 10 and verdict != invalid",
        "selective-repeat.goodput >= 1.9 * go-back-n.goodput",
        "abs(selective-repeat.goodput / go-back-n.goodput - 2) < 0.03",
        "completion_time < 5 ms",
        "completion_time<5ms",
        "go-back-n.completion_time == 2000 us",
        "go-back-n.bytes == 3 MiB and selective-repeat.bytes == 1048576",
        "goodput >= 100 Gbps and goodput <= 0.2 Tb/s",
        "go-back-n.verdict == faithful",
        "faithful != selective-repeat.verdict",
        "not drops < 10",
        "not not drops >= 10",
        "drops == 40 or drops == 10",
        "max(go-back-n.drops, selective-repeat.drops) == 40",
        "min(go-back-n.drops, selective-repeat.drops, 5) == 5",
        "-drops < 0",
        "1 + 2 * 3 == 7 and (1 + 2) * 3 == 9 and 8 / 4 / 2 == 1 and 8 - 4 - 2 == 2",
        "2 - -1 == 3",
        "1e-3 == .001",
        "drops > 5 or drops < 1 / 2 and drops > 100",
    ],
)
def test_holds(text: str) -> None:
    outcome = judge(text)
    assert outcome.passed is True
    assert outcome.text == text
    assert outcome.reason == ""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("go-back-n.drops < selective-repeat.drops", ""),
        ("drops > 20", "not so in selective-repeat"),
        ("verdict == faithful", "not so in selective-repeat"),
        ("goodput / (drops - drops) > 1", "division by zero"),
        ("not 1e300 * 1e300 - 1e300 * 1e300 > 0", "not a number"),
        ("1e300 * 1e300 - 1e300 * 1e300 != 0", "not a number"),
        ("(drops > 1) and (drops / (drops - drops) > 1)", "division by zero"),
    ],
)
def test_fails(text: str, reason: str) -> None:
    outcome = judge(text)
    assert outcome.passed is False
    assert reason in outcome.reason


@pytest.mark.parametrize("value", [math.nan, None])
@pytest.mark.parametrize(
    "text", ["drops == 0", "drops != 0", "not drops == 0", "drops < 1 or 1 > 0"]
)
def test_a_value_that_is_none_never_passes(text: str, value: float | None) -> None:
    metrics = {name: {**RUN[name], "drops": value} for name in RUN}
    outcome = judge(text, metrics)
    assert outcome.passed is False
    assert "go-back-n.drops" in outcome.reason


def test_values_name_what_was_read() -> None:
    outcome = judge("go-back-n.drops > completion_time")
    assert outcome.values == {
        "go-back-n.drops": 40,
        "go-back-n.completion_time": 2e-3,
        "selective-repeat.completion_time": 1e-3,
    }
    assert outcome.actual.startswith("go-back-n.drops = 40, go-back-n.completion_time = 0.002")


def test_a_variant_that_did_not_run_decides_nothing() -> None:
    only = {"go-back-n": RUN["go-back-n"]}
    outcome = judge("go-back-n.drops > selective-repeat.drops", only)
    assert outcome.passed is None
    assert outcome.reason == "selective-repeat did not run"
    assert judge("drops == 40", only).passed is True


def test_no_variant_at_all_decides_nothing() -> None:
    assert judge("drops == 40", {}).passed is None
    assert judge("1 < 2", {}).passed is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "ends too early"),
        ("drops", "not a comparison"),
        ("1 + 2", "not a comparison"),
        ("drops >", "ends too early"),
        ("drops > 1 2", "unexpected '2'"),
        ("drop > 1", "unknown metric 'drop'; did you mean 'drops'"),
        ("go-back.drops > 1", "unknown variant 'go-back'; did you mean 'go-back-n'"),
        ("go-back-n.drops-selective-repeat.drops > 0", "unexpected '.'"),
        ("drops-1 > 0", "unknown metric 'drops-1'"),
        ("drops > 5 parsecs", "unknown unit 'parsecs'"),
        ("drops = 5", "unexpected '='"),
        ("1 < drops < 5", "unexpected '<'"),
        ("drops > 1 and 5", "'and' works on comparisons"),
        ("not drops", "'not' works on comparisons"),
        ("(drops > 1) + 1 > 0", r"'\+' works on numbers"),
        ("verdict > faithful", "compared with == or !="),
        ("verdict == 1", "compares two numbers, or a verdict with a word"),
        ("drops == faithful", "compares two numbers, or a verdict with a word"),
        ("verdict + 1 > 2", r"'\+' works on numbers"),
        ("abs(1, 2) > 0", "abs takes 1"),
        ("min() > 0", "unexpected"),
        ("abs 1 > 0", r"expected '\('"),
        ("(drops > 1", r"expected '\)' before 'the end'"),
        ("__import__(1) > 0", "unknown metric '__import__'"),
        ("drops.__class__ == 1", "unknown variant 'drops'"),
        ("drops > 1; drops > 2", "unexpected ';'"),
        ("2 ** 3 > 1", r"unexpected '\*'"),
        ("1 > 0 " * 200, "at most 500 characters"),
        ("(" * 240 + "1" + ")" * 240 + " > 0", "more than 50 parentheses"),
    ],
)
def test_refuses(text: str, reason: str) -> None:
    with pytest.raises(ExpectationError, match=reason):
        judge(text)


numbers = st.floats(min_value=-1e6, max_value=1e6).map(lambda x: round(x, 3))


@given(
    numbers, numbers, numbers, st.sampled_from(["+", "-", "*"]), st.sampled_from(["+", "-", "*"])
)
def test_arithmetic_is_pythons(a: float, b: float, c: float, first: str, second: str) -> None:
    expression = f"{a!r} {first} {b!r} {second} {c!r}"
    value = eval(expression)
    outcome = judge(f"abs({expression} - ({value!r})) <= 0.000001 * (1 + abs({value!r}))")
    assert outcome.passed is True


@given(st.text(max_size=40))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        outcome = judge(text)
    except ExpectationError:
        return
    assert outcome.passed in (True, False)


@given(
    st.lists(st.sampled_from(["drops", "1", "(", ")", "-", ">", "and", "not", "abs", ",", "5 ms"]))
)
def test_any_sequence_of_tokens_is_parsed_or_refused(words: list[str]) -> None:
    try:
        outcome = judge(" ".join(words))
    except ExpectationError:
        return
    assert outcome.passed in (True, False)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("e-ecmp.busbw > 1.2 * ecmp.busbw", True),
        ("e-ecmp.busbw>1.2*ecmp.busbw", True),
        ("e-ecmp.busbw > 1.5 * ecmp.busbw", False),
        ("e-ecmp-16-qps.busbw / ecmp.busbw > 1.39", True),
        ("ecmp.busbw < 0.7 * max(e-ecmp.busbw, e-ecmp-16-qps.busbw)", False),
        ("ecmp.link_load_ratio > 3 and ecmp.links_idle >= 0.4", True),
        ("e-ecmp.busbw - ecmp.busbw > 60 Gbps", True),
    ],
)
def test_ratios_between_routing_variants(text: str, holds: bool) -> None:
    run = {
        "ecmp": {"busbw": 200e9, "link_load_ratio": 3.1, "links_idle": 0.4375},
        "e-ecmp": {"busbw": 265e9, "link_load_ratio": 2.0, "links_idle": 0.1},
        "e-ecmp-16-qps": {"busbw": 280e9, "link_load_ratio": 1.3, "links_idle": 0.0},
    }
    expectation = Expectation.parse(text, metrics=list(run["ecmp"]), variants=list(run))
    assert expectation.evaluate(run).passed is holds
