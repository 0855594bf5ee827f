"""Faults in a report: what failed in one line, and when."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console
from synthetic import run_result

from testbed.durations import traffic_span
from testbed.report import tables
from testbed.report.charts import queue_chart
from testbed.report.findings import completion_finding, failure_finding
from testbed.report.html import render
from testbed.report.terminal import print_summary
from testbed.results import FaultRecord, FlowResult, RunResult

CUT = FaultRecord(
    time=10e-6, what="switch down", subject="leaf1", links=["leaf1-spine1"], flushed_packets=7
)
DETECTED = FaultRecord(
    time=20e-6, what="entries in force", subject="switch down of leaf1 detected", reaction=True
)


def failing(statuses: list[str], faults: list[FaultRecord], *, variants: int = 1) -> RunResult:
    """A run whose last variant has flows of these statuses besides a good one."""
    result = run_result()
    flow = result.variants[0].flows[0]
    flows: list[FlowResult] = [
        flow.model_copy(update={"index": i, "status": status, "finish": None})
        for i, status in enumerate(statuses, 1)
    ]
    broken = result.variants[0].model_copy(
        update={"name": "broken", "flows": [flow, *flows], "faults": faults}
    )
    sound = [v.model_copy(update={"flows": [flow]}) for v in result.variants[: variants - 1]]
    return result.model_copy(update={"variants": [*sound, broken]})


@pytest.mark.parametrize(
    ("statuses", "faults", "variants", "sentence"),
    [
        ([], [CUT], 1, ""),
        (
            ["IBV_WC_RETRY_EXC_ERR", "unfinished", "IBV_WC_RETRY_EXC_ERR"],
            [CUT, DETECTED],
            1,
            "3 of 4 flows failed (2 IBV_WC_RETRY_EXC_ERR, 1 unfinished) after switch down leaf1",
        ),
        (
            ["IBV_WC_RETRY_EXC_ERR"],
            [CUT, CUT, CUT],
            2,
            "1 of 2 flows failed with broken (1 IBV_WC_RETRY_EXC_ERR) after switch down leaf1 and "
            "2 more faults",
        ),
        (["unfinished"], [], 1, "1 of 2 flows failed (1 unfinished)"),
    ],
)
def test_failed_flows_in_one_line(statuses, faults, variants, sentence) -> None:
    assert failure_finding(failing(statuses, faults, variants=variants)) == sentence


def test_the_terminal_says_which_flows_failed() -> None:
    out = io.StringIO()
    result = failing(["IBV_WC_RETRY_EXC_ERR"], [CUT])
    print_summary(result, None, Console(file=out, width=200, force_terminal=False))
    said = " ".join(out.getvalue().split())
    assert "1 of 2 flows failed (1 IBV_WC_RETRY_EXC_ERR) after switch down leaf1." in said


def test_the_table_of_faults() -> None:
    table = tables.faults(failing([], [CUT, DETECTED]).variants[0])
    assert [row[1:3] for row in table.rows] == [
        ["switch down", "leaf1"],
        ["entries in force", "switch down of leaf1 detected"],
    ]
    # links come last: there may be so many that the cell has several lines
    assert [row[3:] for row in table.rows] == [["7", "leaf1-spine1"], ["–", "–"]]


def test_faults_are_marked_in_the_queue_chart_and_reactions_are_not() -> None:
    figure = queue_chart(failing([], [CUT, DETECTED]))
    assert figure is not None
    texts = [text.get_text().strip() for ax in figure.axes for text in ax.texts]
    assert texts.count("switch down leaf1") == 1
    assert not any("entries in force" in text for text in texts)


def test_a_run_whose_flows_fail_lasts_to_its_end() -> None:
    """A flow that gave up after seconds is not fast because another was complete before."""
    good, bad = failing(["IBV_WC_RETRY_EXC_ERR"], [CUT]).variants[0].flows
    good = good.model_copy(update={"start": 1e-6, "finish": 5e-6})
    bad = bad.model_copy(update={"start": 2e-6})
    nothing_else = SimpleNamespace(end_time=2e-3, reports=[])
    assert traffic_span(nothing_else, [good]) == pytest.approx(4e-6)
    assert traffic_span(nothing_else, [good, bad]) == pytest.approx(2e-3 - 1e-6)


def test_whose_fabric_it_is_where_variants_have_different_ones() -> None:
    result = run_result()
    assert "<p>leaf-spine with" in render(result, {})
    first, second = result.variants
    for what in ("topology.dual_tor", "server.preset", "faults"):  # the last may have slow links
        other = second.model_copy(update={"overrides": {what: False}})
        page = render(result.model_copy(update={"variants": [first, other]}), {})
        assert f"<p>{first.name}: leaf-spine with" in page


def test_failures_are_the_first_finding_and_no_flow_is_said_to_be_the_last() -> None:
    result = failing(["IBV_WC_RETRY_EXC_ERR"], [CUT])
    page = render(result, {})
    failed, others = page.index("1 of 2 flows failed"), page.index("Goodput is")
    assert page.index("Findings") < failed < others
    assert "the last" not in completion_finding(result)
    assert "Of the flows that complete, half take" in completion_finding(result)
