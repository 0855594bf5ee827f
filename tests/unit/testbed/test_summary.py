"""The outcome of a run in one line and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from synthetic import run_result

from testbed.fidelity import Verdict
from testbed.results import RunResult
from testbed.summary import as_json, one_line


def spoilt(result: RunResult) -> RunResult:
    first = result.variants[0]
    fidelity = first.fidelity.model_copy(
        update={"verdict": Verdict.INVALID, "reasons": ["the machine was too slow"]}
    )
    return result.model_copy(
        update={"variants": [first.model_copy(update={"fidelity": fidelity}), *result.variants[1:]]}
    )


def test_one_line_counts_what_was_met() -> None:
    result = run_result(packets=32)
    met = [expectation for expectation in result.expectations if expectation.met]
    line = one_line(result.model_copy(update={"expectations": met}), Path("runs/x"))
    assert line == f"incast: {result.verdict}, {len(met)} expectations met; results: runs/x"


def test_one_line_says_why_a_result_is_invalid() -> None:
    line = one_line(spoilt(run_result(packets=32)), Path("runs/x"))
    assert line.startswith(
        "incast: invalid, go-back-n: the machine was too slow, expectation failed"
    )


def test_one_line_stays_short_however_many_reasons_there_are() -> None:
    result = spoilt(run_result(packets=32))
    variants = [v.model_copy(update={"name": f"v{n}"}) for n in range(9) for v in result.variants]
    line = one_line(result.model_copy(update={"variants": variants}), Path("runs/x"))
    assert "invalid, v0: the machine was too slow (and 8 more), " in line


def test_a_result_of_nothing_says_so(tmp_path) -> None:
    result = run_result(packets=32)
    first = result.variants[0]
    flows = [flow.model_copy(update={"delivered_bytes": 0}) for flow in first.flows]
    variants = [first.model_copy(update={"flows": flows}), *result.variants[1:]]
    empty = result.model_copy(update={"variants": variants})
    reason = "nothing was measured: variant go-back-n: no byte was delivered"
    assert reason in one_line(empty, tmp_path)
    assert reason in json.loads(as_json(empty, tmp_path, 3))["reasons"]


def test_json_has_metrics_reasons_and_expectations(tmp_path) -> None:
    result = spoilt(run_result(packets=32))
    document = json.loads(as_json(result, tmp_path, 3))
    assert (document["status"], document["verdict"]) == (3, "invalid")
    assert document["reasons"] == ["go-back-n: the machine was too slow"]
    assert [e["met"] for e in document["expectations"]] == [True, False]
    for variant in result.variants:
        assert document["variants"][variant.name] == variant.metrics
