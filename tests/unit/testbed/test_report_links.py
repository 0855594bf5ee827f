"""Reports of routing: link loads, variants as a grid, faults."""

import re

import pytest
from rich.console import Console
from synthetic import routed_result, run_result

from controllers.planning import catalogue
from testbed.report import findings, tables, write_report
from testbed.report.charts import compared_metrics, draw_charts
from testbed.report.grid import grid_lines, grid_of
from testbed.report.link_chart import link_chart, shows_links, switch_of
from testbed.report.terminal import print_summary
from testbed.results import CollectiveResult, FaultRecord, PathChange, PortResult, compute_metrics


@pytest.fixture(scope="module")
def two():
    return routed_result({"ecmp": "ecmp", "static": "static"})


@pytest.fixture(scope="module")
def grid_result():
    schemes = {"ecmp": "ecmp", "spray": "spray", "e-ecmp": "e-ecmp"}
    return routed_result(schemes, recoveries=("go-back-n", "selective-repeat"))


@pytest.fixture(scope="module")
def three_tiers():
    fabric = catalogue.three_tier(
        "three-tier", zones=3, leaves=2, spines=2, cores=2, gpus_per_leaf=4, gpus_per_server=4
    )
    return routed_result({"ecmp": "ecmp", "te": "te"}, fabric=fabric)


def printed(result) -> str:
    console = Console(width=80, force_terminal=False)
    with console.capture() as capture:
        print_summary(result, None, console)
    return capture.get()


def test_link_finding_names_the_worst_and_the_best(two):
    ratio = two.variant("ecmp").metrics["link_load_ratio"]
    idle = round(two.variant("ecmp").metrics["links_idle"] * 16)
    assert ratio > 2 and idle > 0
    assert findings.link_finding(two) == (
        f"The busiest up link carries {ratio:.2f} times the mean with ecmp "
        f"({idle} of 16 up links stay idle), 1.00 times with static"
    )


def test_link_finding_of_one_variant(two):
    ecmp = two.model_copy(update={"variants": two.variants[:1]})
    assert re.fullmatch(
        r"\d+ of 16 up links stay idle and the busiest up link carries [\d.]+ times the mean",
        findings.link_finding(ecmp),
    )
    static = two.model_copy(update={"variants": two.variants[1:]})
    assert findings.link_finding(static) == "The busiest up link carries 1.00 times the mean"


def test_link_finding_of_a_tie(two):
    static = two.variants[1]
    twice = two.model_copy(update={"variants": [static, static]})
    assert findings.link_finding(twice).endswith("carries 1.00 times the mean with both")


def test_link_finding_says_who_needs_no_link(two):
    ecmp, static = two.variants
    below = static.model_copy(
        update={"name": "rail", "metrics": {**static.metrics, "link_load_ratio": None}}
    )
    text = findings.link_finding(two.model_copy(update={"variants": [below, ecmp]}))
    assert re.fullmatch(
        r"The busiest up link carries [\d.]+ times the mean with ecmp "
        r"\(\d+ of 16 up links stay idle\); no byte takes one with rail",
        text,
    )
    three = two.model_copy(update={"variants": [below, ecmp, static]})
    assert findings.link_finding(three).endswith(
        " 1.00 times with static; no byte takes one with rail"
    )


def test_link_finding_goes_through_the_tiers(three_tiers):
    up, core = findings.link_finding(three_tiers).split("; ")
    assert up.startswith("The busiest up link carries ")
    assert core.startswith("the busiest core link carries ")


def test_no_choice_of_links_no_chart():
    result = run_result(senders=3, packets=64, limit=200_000)
    assert not shows_links(result)
    assert link_chart(result) is None
    assert findings.link_finding(result) == ""
    single = routed_result(
        {"ecmp": "ecmp"}, fabric=catalogue.leaf_spine("x", leaves=3, spines=1, gpus_per_leaf=8)
    )
    assert not shows_links(single)


def test_a_panel_per_variant_and_layer_with_a_bar_per_link(three_tiers):
    figure = link_chart(three_tiers)
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles == [
        "ecmp, leaf to spine", "ecmp, spine to core", "te, leaf to spine", "te, spine to core",
    ]  # fmt: skip
    assert [len(ax.patches) for ax in figure.axes] == [12, 12, 12, 12]
    heights = sorted(patch.get_height() for patch in figure.axes[0].patches)
    ecmp = three_tiers.variant("ecmp").ports
    assert heights == sorted(p.data_bytes for p in ecmp if p.tiers == (1, 2))
    names = [label.get_text() for label in figure.axes[2].get_xticklabels()]
    assert names == [f"leaf{i}" for i in range(1, 7)]


def test_the_right_of_a_panel_says_mean_and_ratio(two):
    text = link_chart(two).axes[1].get_title(loc="right")
    assert text == "mean 16.8 MB, max 1.00×"


def test_switches_are_told_by_their_ports():
    assert switch_of(PortResult(interface="spine12-core3", rate=1.0)) == "spine12"


@pytest.mark.parametrize("leaves", [2, 48])
def test_any_number_of_switches_draws(leaves, tmp_path):
    fabric = catalogue.leaf_spine("x", leaves=leaves, spines=4, gpus_per_leaf=8)
    result = routed_result({"ecmp": "ecmp"}, fabric=fabric)
    assert draw_charts(result, tmp_path)["links"].stat().st_size < 200_000
    shown = [label.get_text() for label in link_chart(result).axes[0].get_xticklabels()]
    assert len(shown) <= 20


def test_collectives_are_compared_by_bus_bandwidth(two):
    assert compared_metrics(two)[2] == "goodput"
    assert compared_metrics(two)[-1] == "link_load_ratio"
    collective = CollectiveResult(
        operation="all-reduce", ranks=8, bytes=1 << 20, time=1e-4, bus_factor=1.75
    )
    variants = [v.model_copy(update={"collective": collective}) for v in two.variants]
    variants = [v.model_copy(update={"metrics": compute_metrics(v)}) for v in variants]
    result = two.model_copy(update={"variants": variants})
    assert compared_metrics(result)[2] == "busbw"
    assert findings.comparison_finding(result).startswith("Bus bandwidth is 147 Gb/s with both")


def test_variants_that_are_combinations_form_a_grid(grid_result):
    grid = grid_of(grid_result)
    assert (grid.row_name, grid.column_name) == ("scheme", "recovery")
    assert grid.rows == ["ecmp", "spray", "e-ecmp"]
    assert grid.columns == ["go-back-n", "selective-repeat"]
    for (row, column), index in grid.variant.items():
        name = f"{grid.rows[row]}-{grid.columns[column]}"
        assert grid_result.variants[index].name == name


def overrides(result, *each):
    variants = [
        v.model_copy(update={"overrides": o}) for v, o in zip(result.variants, each, strict=False)
    ]
    return result.model_copy(update={"variants": variants})


def test_a_scheme_may_bring_its_parameters_along(grid_result):
    result = overrides(
        grid_result,
        {"routing.scheme": "flowlet", "routing.gap": "1 us", "nic.recovery": "go-back-n"},
        {"routing.scheme": "flowlet", "routing.gap": "1 us", "nic.recovery": "selective-repeat"},
        {"routing.scheme": "flowlet", "routing.gap": "9 us", "nic.recovery": "go-back-n"},
        {"routing.scheme": "flowlet", "routing.gap": "9 us", "nic.recovery": "selective-repeat"},
        {"routing.scheme": "spray", "nic.recovery": "go-back-n"},
        {"routing.scheme": "spray", "nic.recovery": "selective-repeat"},
    )
    assert grid_of(result).row_name == "routing"
    assert grid_of(result).rows == ["flowlet, 1 us", "flowlet, 9 us", "spray"]
    two = overrides(
        grid_result,
        {"routing.scheme": "ecmp", "routing.seed": 1},
        {"routing.scheme": "ecmp", "routing.seed": 1, "nic.recovery": "selective-repeat"},
        {"routing.scheme": "te", "routing.seed": 2},
        {"routing.scheme": "te", "routing.seed": 2, "nic.recovery": "selective-repeat"},
    )
    assert grid_of(two).rows == ["ecmp", "te"]


def test_the_values_of_a_grid_may_be_lists(two):
    cut = [{"link": "leaf1-spine4", "down": "0 us"}]
    faults = dict(two.scenario.get("faults", {}), links=[])
    four = [
        variant.model_copy(update={"name": f"{variant.name}{i}", "overrides": overrides})
        for variant in two.variants
        for i, links in enumerate(({}, {"faults.links": cut}))
        for overrides in [{**variant.overrides, **links}]
    ]
    grid = grid_of(
        two.model_copy(update={"variants": four, "scenario": {**two.scenario, "faults": faults}})
    )
    assert grid.columns == ["none", "link leaf1-spine4 down 0 us"]


def test_what_is_no_grid(grid_result, two):
    assert grid_of(two) is None
    missing = grid_result.model_copy(update={"variants": grid_result.variants[:5]})
    assert grid_of(missing) is None
    twice = overrides(grid_result, *[{"routing.scheme": "ecmp", "nic.recovery": "go-back-n"}] * 6)
    assert grid_of(twice) is None


def test_a_grid_shows_the_metrics_that_differ(grid_result):
    grid = grid_of(grid_result)
    lines = grid_lines(grid, tables.comparison(grid_result), grid_result)
    labels = [line.label for line in lines if line.label]
    assert "goodput" in labels
    assert "link load ratio" in labels
    assert "timeouts" not in labels  # none in any variant
    ratio = next(i for i, line in enumerate(lines) if line.label == "link load ratio")
    assert [line.row for line in lines[ratio : ratio + 3]] == ["ecmp", "spray", "e-ecmp"]
    assert list(lines[ratio + 1].cells) == ["1.00×", "1.00×"]


def test_a_grid_fits_80_columns_and_is_short(grid_result):
    text = printed(grid_result)
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("goodput") == 1
    assert "scheme   go-back-n   selective-repeat" in text
    # the same on a wide terminal's page, where all variants fit beside each other
    assert "The busiest up link carries" in text


def test_report_with_links_and_grid(grid_result, tmp_path):
    page = write_report(grid_result, tmp_path).read_text()
    assert "All metrics by variant" in page
    assert page.count('alt="The busiest up link carries') == 1
    assert (tmp_path / "links.png").exists()


def test_faults_are_told(two, tmp_path):
    fault = FaultRecord(
        time=2e-4, what="down", subject="leaf1-spine1", links=["leaf1-spine1"], flushed_packets=7
    )
    change = PathChange(time=3e-4, paths={0: [["rank0-leaf1"]], 1: []})
    first = two.variants[0].model_copy(update={"faults": [fault], "path_changes": [change]})
    result = two.model_copy(update={"variants": [first, two.variants[1]]})
    assert list(tables.faults(first).rows) == [
        ["200 us", "down", "leaf1-spine1", "7", "leaf1-spine1"]
    ]
    page = write_report(result, tmp_path).read_text()
    assert "From 300 us on, 2 connections took other paths." in page
    assert page.count("<h2>Faults</h2>") == 1
    assert "<h2>Faults</h2>" not in write_report(two, tmp_path).read_text()


def test_flows_of_many_ways_say_so(two):
    flow = two.variants[0].flows[0]
    ways = [flow.path, [*flow.path[:1], "leaf2-spine2"]]
    variant = two.variants[0].model_copy(
        update={"flows": [flow.model_copy(update={"paths": ways})]}
    )
    assert tables.flows(variant, limit=1).rows[0][-1] == " ".join(flow.path) + ", and 1 more"


def test_switches_are_named_below_every_panel_that_has_others(two):
    def names(result) -> list[list[str]]:
        figure = link_chart(result)
        return [[tick.get_text() for tick in ax.get_xticklabels()] for ax in figure.axes]

    ecmp, static = two.variants
    assert [bool(any(found)) for found in names(two)] == [False, True]
    small = static.model_copy(
        update={"ports": [port for port in static.ports if switch_of(port) != "leaf1"]}
    )
    other = two.model_copy(update={"variants": [small, ecmp]})
    assert "leaf1" not in names(other)[0] and "leaf1" in names(other)[1]
    assert all(any(found) for found in names(other))
