"""The table of `rocelab coll`, the crossover line and the chart of a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic import run_result

from testbed.coll.crossover import Stretch, crossover_sentence, stretches
from testbed.coll.table import TablePrinter, footer, rows, whole_table
from testbed.fidelity import Verdict
from testbed.report import write_report
from testbed.report.bandwidth_chart import bandwidth_chart, bandwidth_finding, is_sweep
from testbed.results import CollectiveResult, RunResult, VariantResult, merge_iterations

K = 1024


def variant(
    algorithm: str,
    size: int,
    time: float,
    *,
    wrong: int = 0,
    operation: str = "all-reduce",
    model_ratio: float = 1.03,
    losses: tuple[int, int] = (0, 0),
) -> VariantResult:
    """A size's result; ``losses`` are packets dropped and timeouts."""
    collective = CollectiveResult(
        operation=operation,
        ranks=8,
        bytes=size,
        time=time,
        bus_factor=1.75,
        model_time=time / model_ratio,
        algorithm=algorithm,
        elements=size // 4,
        dtype="float32",
        reduction="sum" if operation == "all-reduce" else None,
        gpus_per_server=4,
    )
    template = run_result().variants[0]
    return template.model_copy(
        update={
            "name": f"{algorithm}-{size}",
            "overrides": {"workload.algorithm": algorithm, "workload.size": size},
            "collective": collective,
            "metrics": {
                **template.metrics,
                "wrong_elements": wrong,
                "busbw": collective.busbw,
                "dropped_packets": losses[0],
                "timeouts": losses[1],
            },
        }
    )


def sweep(**times: dict[int, float]) -> RunResult:
    variants = [
        variant(name.replace("_", "-"), size, time)
        for name, by_size in times.items()
        for size, time in by_size.items()
    ]
    scenario = {"workload": {"kind": "collective", "channels": 2}}
    return run_result().model_copy(update={"variants": variants, "scenario": scenario})


TIMES = {
    "ring": {8 * K: 40e-6, 64 * K: 42e-6, 512 * K: 60e-6, 4096 * K: 180e-6},
    "double_binary_tree": {8 * K: 25e-6, 64 * K: 28e-6, 512 * K: 60.2e-6, 4096 * K: 230e-6},
}


def test_a_row_in_nccl_tests_terms() -> None:
    (line,) = rows(variant("ring", 2**20, 70e-6))
    size, count, kind, redop, root, time, algbw, busbw, wrong, model, ratio = line.split()
    assert (int(size), int(count)) == (2**20, 2**18)
    assert (kind, redop, root, wrong) == ("float", "sum", "-1", "0")
    assert float(time) == 70.0
    assert float(algbw) == pytest.approx(2**20 / 70e-6 / 1e9, abs=0.005)
    assert float(busbw) == pytest.approx(1.75 * 2**20 / 70e-6 / 1e9, abs=0.005)
    assert float(model) == pytest.approx(70 / 1.03, abs=0.005)
    assert float(ratio) == 1.03


def test_counts_are_per_rank_where_nccl_tests_has_them_so() -> None:
    (line,) = rows(variant("ring", 2**20, 70e-6, operation="all-gather"))
    assert line.split()[1:4] == [str(2**18 // 8), "float", "none"]


@pytest.mark.parametrize(
    ("size", "time"), [(8, 1e-7), (8, 0.5), (2**20, 3.3e-5), (2**30, 0.021), (2**30, 0.5)]
)
def test_every_line_fits_80_columns_and_cells_do_not_touch(size: int, time: float) -> None:
    result = run_result().model_copy(
        update={"variants": [variant("recursive-halving-doubling", size, time)], "scenario": {}}
    )
    lines = whole_table(result)
    assert max(map(len, lines)) <= 80
    row = next(line for line in lines if not line.startswith("#"))
    assert len(row.split()) == 11
    assert lines[0].startswith("# 8 ranks (4 per server), 1 channel, ")
    titles = next(line for line in lines if "algbw" in line)
    assert len(titles.removeprefix("#").split()) == 11
    units = lines[lines.index(titles) + 1]
    assert units.removeprefix("#").split() == ["(B)", "(elements)", "(us)", *2 * ["(GB/s)"], "(us)"]


@pytest.mark.parametrize("ratio", [9.996, 99.96, 2233.68, 99999.6, 3e8])
def test_a_ratio_of_many_digits_does_not_touch_the_models_time(ratio: float) -> None:
    (line,) = rows(variant("direct", 2**20, 67e-3, model_ratio=ratio))
    assert len(line.split()) == 11
    assert float(line.split()[-1]) == pytest.approx(ratio, rel=0.06)


def test_what_was_lost_is_told_below_its_row() -> None:
    assert rows(variant("direct", 2**20, 67e-3, losses=(1, 2)))[1:] == [
        "# 1 dropped packet, 2 timeouts"
    ]
    assert rows(variant("direct", 2**20, 67e-3, losses=(3, 0)))[1:] == ["# 3 dropped packets"]


def test_that_the_best_of_several_attempts_is_shown_is_told_below_its_row() -> None:
    repeated = variant("direct", 2**20, 67e-3).model_copy(update={"attempts": 2})
    assert rows(repeated)[1:] == ["# the best of 2 attempts"]


def test_a_line_tells_each_change_of_the_algorithm() -> None:
    lines: list[str] = []
    printer = TablePrinter(lines.append, channels=1, iterations=1)
    for algorithm in ("ring", "ring", "pxn"):
        printer.add(variant(algorithm, 8 * K, 1e-5))
    told = [line for line in lines if line.startswith("# algorithm")]
    assert told == ["# algorithm: ring", "# algorithm: pxn"]
    assert lines[-2:] == ["# algorithm: pxn", *rows(variant("pxn", 8 * K, 1e-5))]


def test_doubts_and_missing_times_are_told() -> None:
    good = variant("ring", 8 * K, 1e-5)
    doubtful = good.fidelity.model_copy(
        update={"verdict": Verdict.DEGRADED, "reasons": ["CPU steal 5.0% (up to 2.0%): advice"]}
    )
    lines = rows(good.model_copy(update={"fidelity": doubtful}))
    assert lines[1:] == ["# degraded: CPU steal 5.0% (up to 2.0%)"]
    (missing,) = rows(good.model_copy(update={"collective": None}))
    assert missing == "# ring-8192: did not come to its end"


def test_the_footer_sums_wrong_values_and_averages_bandwidth() -> None:
    result = sweep(**TIMES)
    wrong = variant("ring", 8 * K, 1e-5, wrong=3)
    assert "# Out of bounds values : 0 OK" in footer(result)
    lines = footer(result.model_copy(update={"variants": [*result.variants, wrong]}))
    assert "# Out of bounds values : 3 FAILED" in lines
    mean = sum(v.collective.busbw for v in result.variants if v.collective) / 8 / 8e9
    (average,) = [line for line in footer(result) if "Avg bus bandwidth" in line]
    assert float(average.split(":")[1]) == pytest.approx(mean, rel=1e-4)


def test_crossover_of_two_algorithms() -> None:
    result = sweep(**TIMES)
    (line,) = [line for line in footer(result) if "Crossover" in line]
    assert line.endswith(": double-binary-tree wins up to 64 KiB, none at 512 KiB, ring from 4 MiB")
    assert bandwidth_finding(result).startswith("all-reduce: double-binary-tree wins up to")


def test_stretches_need_sizes_that_all_have() -> None:
    assert stretches({}) == []
    assert stretches({"a": {1: 1.0}, "b": {2: 1.0}}) == []
    found = stretches({"a": {1: 1.0, 2: 1.0, 4: 9.0}, "b": {1: 2.0, 2: 2.0, 4: 3.0}})
    assert found == [Stretch("a", 1, 2), Stretch("b", 4, 4)]


def test_sentences() -> None:
    assert crossover_sentence([]) == ""
    assert crossover_sentence([Stretch("ring", 1, 9)]) == "ring wins at all sizes"
    assert crossover_sentence([Stretch(None, 1, 9)]) == "No algorithm wins at all sizes"


def test_the_mean_of_several_iterations() -> None:
    results = [variant("ring", 8 * K, 1e-5, wrong=0), variant("ring", 8 * K, 3e-5)]
    results = [
        r.model_copy(
            update={"ranks": [rank.model_copy(update={"wrong_elements": 2}) for rank in r.ranks]}
        )
        for r in results
    ]
    merged = merge_iterations(results)
    assert merged.collective is not None
    assert merged.collective.time == pytest.approx(2e-5)
    assert merged.collective.times == [1e-5, 3e-5]
    assert merged.metrics["wrong_elements"] == 4 * len(merged.ranks)
    assert merged.metrics["busbw"] == merged.collective.busbw
    assert merge_iterations(results[:1]) is results[0]
    unfinished = results[1].model_copy(update={"collective": None})
    assert merge_iterations([results[0], unfinished]).collective is None


def test_the_report_of_a_sweep_has_its_table_and_chart(tmp_path: Path) -> None:
    result = sweep(**TIMES)
    assert is_sweep(result)
    assert not is_sweep(run_result())
    assert bandwidth_chart(run_result()) is None
    page = write_report(result, tmp_path).read_text(encoding="utf-8")
    assert "# Avg bus bandwidth" in page
    assert (tmp_path / "bandwidth.png").stat().st_size > 10_000
    assert not (tmp_path / "comparison.png").exists()


def test_a_single_algorithms_finding() -> None:
    finding = bandwidth_finding(sweep(ring=TIMES["ring"]))
    assert finding.startswith("all-reduce (ring) reaches a bus bandwidth of 40.8 GB/s at 4 MiB")
