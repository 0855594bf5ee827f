"""The report: honest sentences, readable numbers, charts that draw, a self-contained page."""

import re
import struct
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from synthetic import run_result

from testbed.fidelity import Verdict
from testbed.report import findings, tables, write_report
from testbed.report.charts import draw_charts
from testbed.report.quantities import MISSING, format_quantity, in_words, plural, scale_for
from testbed.report.terminal import print_summary
from testbed.report.timeaxis import FoldedAxis
from testbed.results import (
    ExpectationResult,
    FlowResult,
    compute_metrics,
    read_result,
    write_result,
)


@pytest.fixture(scope="module")
def result():
    return run_result(senders=4, packets=96, limit=200_000)


def variant_with(variant, **fields):
    metrics = fields.pop("metrics", {})
    changed = variant.model_copy(update=fields)
    return changed.model_copy(update={"metrics": {**compute_metrics(changed), **metrics}})


def result_with(result, *variants, **fields):
    return result.model_copy(update={"variants": list(variants), **fields})


def two(result, metric, first, second):
    return result_with(
        result,
        variant_with(result.variants[0], name="a", metrics={metric: first}),
        variant_with(result.variants[1], name="b", metrics={metric: second}),
    )


# --- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (83.2e-9, "s", "83.2 ns"),
        (1.25e-3, "s", "1.25 ms"),
        (67.1e-3, "s", "67.1 ms"),
        (0, "s", "0 s"),
        (1330.2, "s", "1,330 s"),
        (999.6e-6, "s", "1.00 ms"),
        (400e9, "bit/s", "400 Gb/s"),
        (1.6e12, "bit/s", "1.60 Tb/s"),
        (398_784, "B", "399 KB"),
        (62, "B", "62 B"),
        (0, "B", "0"),
        (1234567, "packets", "1,234,567"),
        (1.5, "ratio", "1.50×"),
        ("faithful", "text", "faithful"),
        (None, "s", MISSING),
    ],
)
def test_quantities_read_well(value, unit, text):
    assert format_quantity(value, unit) == text


@given(st.floats(1e-9, 1e4), st.sampled_from(["s", "bit/s", "B"]))
def test_a_quantity_parses_back_to_three_digits(value, unit):
    if unit != "s":
        value *= 1e9  # nothing below 1 B or 1 bit/s
    scale = scale_for(value, unit)
    number = float(format_quantity(value, unit).split()[0].replace(",", ""))
    assert number * scale.divisor == pytest.approx(value, rel=0.006)


def test_words():
    assert plural(1, "packet") == "1 packet" and plural(2, "leaf") == "2 leaves"
    assert in_words("rnr_naks") == "RNR NAKs"


# --- findings ------------------------------------------------------------------------------------


def test_a_difference_is_named_with_its_factor(result):
    text = findings.completion_finding(two(result, "completion_time_max", 1e-3, 3e-3))
    assert "the slowest takes 1.00 ms with a and 3.00 ms (3.00×) with b" in text


def test_the_winner_follows_the_data_not_the_order(result):
    text = findings.completion_finding(two(result, "completion_time_max", 3e-3, 1e-3))
    assert "the slowest takes 1.00 ms with b and 3.00 ms (3.00×) with a" in text


def test_a_tie_is_called_equal(result):
    text = findings.completion_finding(two(result, "completion_time_max", 1e-3, 1.005e-3))
    assert "the slowest takes 1.00 ms with both" in text and "×) with b" not in text[-20:]


def test_nothing_against_something_has_no_factor(result):
    text = findings.comparison_finding(two(result, "retransmitted_bytes", 0, 4096))
    assert "retransmissions take 0 with a and 4.10 KB with b" in text
    none = findings.comparison_finding(two(result, "retransmitted_bytes", 0, 0))
    assert "retransmissions take 0 with both" in none


def test_a_missing_value_is_said_to_be_missing(result):
    text = findings.completion_finding(two(result, "completion_time_max", None, 1e-3))
    assert "the slowest takes 1.00 ms with b (none with a)" in text
    neither = findings.completion_finding(two(result, "completion_time_max", None, None))
    assert "nothing measurable in any variant" in neither


def test_three_variants_give_the_range(result):
    first, second = result.variants
    names = {"a": 2e-3, "b": 1e-3, "c": 4e-3}
    three = result_with(
        result,
        *(
            variant_with(v, name=n, metrics={"completion_time_max": names[n]})
            for v, n in ((first, "a"), (second, "b"), (first, "c"))
        ),
    )
    assert "between 1.00 ms with b and 4.00 ms (4.00×) with c" in findings.completion_finding(three)


def test_queue_finding_tells_full_from_peak(result):
    assert findings.queue_finding(result) == (
        "The queue of leaf1-rank0 fills to its limit of 200 KB in both variants"
    )
    ports = [p.model_copy(update={"max_depth": p.max_depth // 4}) for p in result.variants[1].ports]
    calm = variant_with(result.variants[1], ports=ports)
    text = findings.queue_finding(result_with(result, result.variants[0], calm))
    assert "fills to its limit of 200 KB (go-back-n)" in text
    assert re.search(r"peaks at \d+\.\d KB of 200 KB \(selective-repeat\)", text)
    idle = variant_with(calm, ports=[])
    assert findings.queue_finding(result_with(result, idle)) == "No packet waited in any port"


def test_psn_finding_counts_what_the_trace_shows(result):
    trace = result.variants[0].psn_trace
    text = findings.psn_finding(result)
    resent, lost = trace.events.count("resend"), trace.events.count("drop")
    assert f"go-back-n sends {resent} again for {lost} lost" in text
    untraced = result_with(result, variant_with(result.variants[0], psn_trace=None))
    assert findings.psn_finding(untraced) == "No queue pair was traced"


def test_psn_finding_of_a_queue_pair_without_losses(result):
    first, second = result.variants
    kept = [i for i, e in enumerate(second.psn_trace.events) if e in ("send", "receive")]
    columns = ("times", "psns", "events")
    calm = {name: [getattr(second.psn_trace, name)[i] for i in kept] for name in columns}
    calm = variant_with(second, psn_trace=second.psn_trace.model_copy(update=calm))
    text = findings.psn_finding(result_with(result, calm))
    assert text == "Of one QP's packets none is lost or sent again"
    text = findings.psn_finding(result_with(result, first, calm))
    assert text.startswith("Of one QP's packets, go-back-n sends ")
    assert text.endswith("; with selective-repeat none is lost or sent again")


def test_waiting_finding_compares_timeouts_with_the_time_of_the_slowest_flow(result):
    def waits(timeouts, finish, queue_pairs=1, **other):
        flow = FlowResult(index=0, source_rank=1, destination_rank=0, bytes=10, messages=1,
                          start=0.0, finish=finish, timeouts=timeouts,
                          queue_pairs=queue_pairs)  # fmt: skip
        return variant_with(result.variants[0], flows=[flow], **other)

    assert result.scenario["nic"]["timeout"] == 14
    text = findings.waiting_finding(result_with(result, waits(3, 0.21)))
    assert text == "The slowest flow mostly waits, for 3 timeouts (201 ms of 210 ms) with go-back-n"
    assert findings.waiting_finding(result_with(result, waits(1, 0.21))) == ""
    assert findings.waiting_finding(result_with(result, waits(3, None))) == ""
    several = findings.waiting_finding(result_with(result, waits(3, 0.21, queue_pairs=2)))
    assert "for 2 timeouts (134 ms of 210 ms)" in several  # they may wait at the same time
    shorter = waits(3, 0.21, overrides={"nic.timeout": 10})
    assert findings.waiting_finding(result_with(result, shorter)) == ""


def test_reordering_finding_tells_packets_that_overtook_others(result):
    assert findings.reordering_finding(two(result, "out_of_order_share", 0.0, 0.0)) == ""
    lossless = [
        variant_with(
            variant,
            name=name,
            metrics={"out_of_order_share": share, "dropped_packets": 0},
        )
        for variant, name, share in zip(result.variants, "ab", (0.0, 0.186), strict=True)
    ]
    subject = "Of all packets that arrive, those ahead of their turn are"
    text = findings.reordering_finding(result_with(result, *lossless))
    assert text == f"{subject} 0 % with a and 18.6 % with b"
    assert findings.reordering_finding(result_with(result, lossless[1])) == f"{subject} 18.6 %"
    lossy = [lossless[0], variant_with(lossless[1], metrics={"dropped_packets": 1})]
    assert findings.reordering_finding(result_with(result, *lossy)) == ""


# --- time axis -----------------------------------------------------------------------------------


def test_idle_spans_are_folded_and_busy_ones_keep_their_width():
    burst = np.linspace(0, 100e-6, 50)
    axis = FoldedAxis.of(np.concatenate([burst, burst + 67e-3, burst + 134e-3]))
    assert len(axis.segments) == 3
    assert axis.width < 350e-6
    positions = axis.position(np.array([10e-6, 20e-6, 67.01e-3, 67.02e-3]))
    assert positions[1] - positions[0] == pytest.approx(positions[3] - positions[2])
    assert [fold[2] for fold in axis.folds()] == pytest.approx([66.9e-3] * 2, rel=1e-3)


def test_the_unit_is_named_once_per_tick_or_once_per_axis():
    burst = np.linspace(0, 100e-6, 50)
    many = FoldedAxis.of(np.concatenate([burst + i * 67e-3 for i in range(8)]))
    _, labels, unit = many.ticks()
    assert unit == "" and all(label == "0" or label.endswith(" ms") for label in labels)
    assert FoldedAxis.of(burst).ticks()[2] == "us"
    assert many.scale_bar() == pytest.approx(100e-6)


def test_steady_traffic_is_not_folded():
    assert len(FoldedAxis.of(np.linspace(0, 1, 100)).segments) == 1
    assert len(FoldedAxis.of(np.array([])).segments) == 1
    assert FoldedAxis.of(np.array([5e-6])).width > 0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60))
def test_positions_keep_the_order_of_time(times):
    axis = FoldedAxis.of(np.array(times))
    positions = axis.position(np.sort(np.array(times)))
    assert np.all(np.diff(positions) >= 0)
    assert positions[0] >= 0 and positions[-1] <= axis.width * (1 + 1e-9)
    places, labels, unit = axis.ticks()
    assert len(places) == len(labels) == len(set(places)) and unit in ("s", "ms", "us", "ns", "")
    assert all(0 <= place <= axis.width * (1 + 1e-9) for place in places)


# --- tables --------------------------------------------------------------------------------------


def test_comparison_marks_the_better_value_only_where_there_is_one(result):
    rows = {r.metric: r for r in tables.comparison(two(result, "goodput", 100e9, 200e9))}
    assert rows["goodput"].cells == ["100 Gb/s", "200 Gb/s"] and rows["goodput"].best == 1
    assert rows["ledger_open"].best is None and rows["verdict"].best is None
    tie = {r.metric: r for r in tables.comparison(two(result, "goodput", 100e9, 100.5e9))}
    assert tie["goodput"].best is None
    assert "busbw" not in rows and "timeouts" in rows


def test_flow_table_puts_unfinished_and_slow_flows_first(result):
    flows = [
        FlowResult(index=i, source_rank=i, destination_rank=0, bytes=10, messages=1, start=0.0,
                   finish=finish)
        for i, finish in enumerate([1e-6, None, 3e-6, 2e-6])
    ]  # fmt: skip
    table = tables.flows(variant_with(result.variants[0], flows=flows), limit=3)
    assert [row[0] for row in table.rows] == ["1", "2", "3"] and table.left_out == 1


def test_parameters_are_flattened_with_units(result):
    rows = dict(tables.what_was_run(result).rows)
    assert rows["topology.link_rate"] == "400 Gb/s"
    assert rows["workload.message_size"] == "393 KB"
    assert rows["nic.timeout"] == "14"
    assert "name" not in rows


# --- charts and page -----------------------------------------------------------------------------


def png_size(path):
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


def test_report_is_complete_self_contained_and_quick(result, tmp_path):
    write_result(tmp_path, result)
    started = time.process_time()
    path = write_report(read_result(tmp_path), tmp_path)
    assert time.process_time() - started < 4.0
    charts = {p.name for p in tmp_path.glob("*.png")}
    assert charts == {"comparison.png", "psn.png", "queues.png", "completion.png"}
    page = path.read_text()
    assert page.count("data:image/png;base64,") == 4
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", page)
    assert "@import" not in page and "url(" not in page
    for sentence in (findings.comparison_finding(result), findings.queue_finding(result)):
        assert sentence in page
    for section in ("findings", "charts", "expectations", "run", "trust", "flows", "ports",
                    "environment"):  # fmt: skip
        assert f'id="{section}"' in page
    assert result.variants[0].ledger.summary in page
    assert not list(tmp_path.glob(".*"))


def test_charts_have_a_readable_size(result, tmp_path):
    for path in draw_charts(result, tmp_path).values():
        width, height = png_size(path)
        assert width == 990 and 200 < height < 1200


def test_one_variant_without_series_still_makes_a_report(result, tmp_path):
    bare = variant_with(result.variants[0], queue_series=None, psn_trace=None, drops=[])
    page = write_report(result_with(result, bare, expectations=[], topology=None), tmp_path)
    assert {p.name for p in tmp_path.glob("*.png")} == {"completion.png"}
    assert "Goodput is" in page.read_text()


def test_a_run_where_no_flow_completed_still_makes_a_report(result, tmp_path):
    flows = [f.model_copy(update={"finish": None}) for f in result.variants[0].flows]
    broken = variant_with(result.variants[0], flows=flows, queue_series=None, psn_trace=None)
    page = write_report(result_with(result, broken, result.variants[1]), tmp_path).read_text()
    assert "none with go-back-n" in page


def test_many_variants_draw(result, tmp_path):
    many = [variant_with(v, name=f"{v.name}-{i}") for i in range(4) for v in result.variants]
    assert set(draw_charts(result_with(result, *many), tmp_path)) == {
        "comparison", "psn", "queues", "completion",
    }  # fmt: skip


def test_text_of_a_scenario_cannot_become_markup(result, tmp_path):
    evil = "<script>alert(1)</script>"
    named = variant_with(result.variants[0], name=evil, overrides={evil: evil})
    page = write_report(
        result_with(result, named, name=evil, description=evil, scenario={evil: evil}), tmp_path
    ).read_text()
    assert "<script" not in page and "&lt;script&gt;" in page


def test_an_invalid_run_warns_before_its_figures(result, tmp_path):
    fidelity = result.variants[0].fidelity.model_copy(
        update={"verdict": Verdict.INVALID, "reasons": ["too slow"], "dilation_enough": 24_000.0}
    )
    bad = variant_with(result.variants[0], fidelity=fidelity)
    page = write_report(result_with(result, bad), tmp_path).read_text()
    assert page.index("Do not rely") < page.index('id="findings"')
    assert "too slow" in page and "--dilation 24000" in page


def test_what_was_measured_several_times_says_so(result, tmp_path):
    first, second = result.variants
    again = result_with(result, variant_with(first, attempts=3), second)
    page = write_report(again, tmp_path).read_text()
    assert page.count("Measured 3 times") == page.count("Measured ") == 1
    assert f"{first.name}: the best of 3 attempts" in printed(again, terminal=False)
    assert "attempts" not in printed(result, terminal=False)


# --- terminal ------------------------------------------------------------------------------------


def printed(result, *, terminal):
    console = Console(force_terminal=terminal, width=80, record=True, color_system=None)
    with console.capture() as capture:
        print_summary(result, "runs/x/report.html", console)
    return re.sub(r"\x1b\[[0-9;]*m", "", capture.get())


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 9])
def test_summary_fits_80_columns_whole(result, terminal, count):
    names = [f"selective-repeat-{i}" for i in range(count)]
    variants = [variant_with(result.variants[i % 2], name=n) for i, n in enumerate(names)]
    text = printed(result_with(result, *variants), terminal=terminal)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert "…" not in text
    for name in names:
        assert name in text
    for row in tables.comparison(result_with(result, *variants)):
        line = next(line for line in text.splitlines() if line.strip().startswith(row.label + " "))
        assert row.cells[0] in line
    assert "report   runs/x/report.html" in text


def test_summary_shows_expectations_and_verdict(result):
    text = printed(result, terminal=False)
    assert "✓ retransmitted_bytes of go-back-n > selective-repeat: 17 MB > 2 MB" in text
    assert "✗ max_queue_depth <= 300 KB (go-back-n): 398 KB" in text
    assert "verdict  faithful" in text


def test_summary_takes_brackets_literally_and_explains_a_bad_verdict(result):
    fidelity = result.variants[0].fidelity.model_copy(
        update={"verdict": Verdict.DEGRADED, "reasons": ["late [red]"], "dilation_enough": 2e4}
    )
    bad = variant_with(result.variants[0], name="[bold]x", fidelity=fidelity)
    expectation = ExpectationResult(text="a[0] > 1", actual="0", met=False)
    text = printed(result_with(result, bad, expectations=[expectation]), terminal=False)
    assert "[bold]x: late [red]" in text and "✗ a[0] > 1: 0" in text
    assert "verdict  degraded" in text and "enough would be --dilation 20000" in text


def test_summary_without_unicode_uses_words(result):
    class Ascii(Console):
        encoding = "ascii"

    console = Ascii(width=80, force_terminal=False)
    with console.capture() as capture:
        print_summary(result, None, console)
    assert "NOT met max_queue_depth" in capture.get() and "✗" not in capture.get()
