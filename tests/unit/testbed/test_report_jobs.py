"""Jobs in reports: shares of an iteration, linearity, and what was scaled down."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from synthetic import run_result

from testbed.report.charts import compared_metrics
from testbed.report.findings import comparison_finding
from testbed.report.html import render
from testbed.report.jobs import job_notes, job_table, sizes_differ
from testbed.report.terminal import print_summary
from testbed.results import JobRankTimes, JobResult


@pytest.fixture(scope="module")
def plain():
    return run_result()


def job(ranks, iteration_time, *, notes=("half of it",), **fields):
    times = JobRankTimes(
        rank=0,
        compute=iteration_time * 0.5,
        exposed_communication=iteration_time * 0.3,
        waiting=iteration_time * 0.2,
    )
    return JobResult(
        iterations=1,
        iteration_time=iteration_time,
        tokens=fields.pop("tokens", 1000 * ranks),
        notes=list(notes),
        ranks=[times.model_copy(update={"rank": rank}) for rank in range(ranks)],
        **fields,
    )


def with_jobs(result, *jobs):
    variants = [
        result.variants[0].model_copy(update={"name": f"v{i}", "job": one})
        for i, one in enumerate(jobs)
    ]
    return result.model_copy(update={"variants": variants, "expectations": []})


def test_linearity_is_throughput_per_rank_against_the_fewest_ranks(plain):
    result = with_jobs(plain, job(16, 5e-3), job(8, 4e-3), job(32, 8e-3))
    rows = {row[0]: row for row in job_table(result).rows}
    assert sizes_differ(result)
    assert [rows[f"v{i}"][-1] for i in range(3)] == ["80.0 %", "100 %", "50.0 %"]
    assert rows["v1"][1:6] == ["8", "4.00 ms", "50.0 %", "30.0 %", "20.0 %"]
    assert rows["v1"][6] == "250,000"  # 1000 tokens of a rank in 4 ms


def test_a_trace_that_is_no_training_has_no_linearity(plain):
    result = with_jobs(plain, job(8, 4e-3, tokens=None), job(16, 4e-3, tokens=None))
    assert not sizes_differ(result)
    assert {row[-1] for row in job_table(result).rows} == {"–"}


def test_variants_of_equal_size_have_no_linearity(plain):
    """Another routing on as many ranks is faster or slower; that is no loss by size."""
    result = with_jobs(plain, job(8, 4e-3), job(8, 5e-3))
    assert {row[-1] for row in job_table(result).rows} == {"–"}


def test_jobs_are_compared_by_their_iterations_not_by_what_they_send(plain):
    """A job that sends four times as much has more goodput, and is slower all the same."""
    result = with_jobs(plain, job(8, 2e-3), job(8, 4e-3))
    variants = [
        variant.model_copy(
            update={
                "metrics": {
                    **variant.metrics, "goodput": goodput, "tokens_per_second": 1000,
                    "iteration_time": variant.job.iteration_time,
                }
            }
        )
        for variant, goodput in zip(result.variants, (50e9, 200e9), strict=True)
    ]  # fmt: skip
    result = result.model_copy(update={"variants": variants})
    finding = comparison_finding(result)
    assert finding.startswith("An iteration takes 2.00 ms with v0 and 4.00 ms (2.00×) with v1; ")
    assert "iteration_time" in compared_metrics(result)
    assert "goodput" not in compared_metrics(result)


def test_notes_say_which_variants_they_are_of(plain):
    result = with_jobs(
        plain, job(8, 1e-3, notes=("all", "eight")), job(8, 1e-3, notes=("all",))
    )  # fmt: skip
    assert job_notes(result) == ["all", "v0: eight"]


def test_the_page_and_the_terminal_show_jobs(plain):
    result = with_jobs(plain, job(16, 5e-3), job(8, 4e-3))
    page = render(result, {})
    assert "half of it" in page
    assert "80.0 %" in page
    assert 'id="jobs"' not in render(plain, {})
    console = Console(file=io.StringIO(), width=80)
    print_summary(result, None, console)
    printed = console.file.getvalue()
    assert "linearity" in printed
    assert "half of it" in printed
    assert "80.0 %" in printed
    assert max(map(len, printed.splitlines())) <= 80
