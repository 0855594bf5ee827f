"""What `rocelab plan` writes: drawings by variant, topology files, and one line when it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed import cli
from testbed.plan_files import PlanFileError, draw_plan, write_topology
from testbed.scenario import build_topology, load_scenario, resolve_variants
from testbed.topology import export_topology


@pytest.fixture
def invoke(capsys, monkeypatch, tmp_path):
    """Run a command line in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        status = cli.invoke(arguments)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_variants_that_differ_are_drawn_each(tmp_path: Path) -> None:
    scenario = load_scenario("permutation")
    written = draw_plan(scenario, resolve_variants(scenario), tmp_path / "paths.svg")
    assert [path.name for path in written] == ["paths-ecmp.svg", "paths-static.svg"]
    ecmp, static = (path.read_text() for path in written)
    assert "8 flows use 8 of 8 uplinks; the busiest carries 1" in static
    assert "8 of 8 uplinks" not in ecmp
    assert "permutation, ecmp, leaf-spine" in ecmp


def test_variants_that_look_the_same_are_drawn_once(tmp_path: Path) -> None:
    scenario = load_scenario("incast")
    written = draw_plan(scenario, resolve_variants(scenario), tmp_path / "paths.png")
    assert written == [tmp_path / "paths.png"]


def test_every_queue_pair_of_a_connection_is_a_flow(tmp_path: Path) -> None:
    scenario = load_scenario(
        "permutation", ["nic.qps_per_connection=4", "topology.servers_per_leaf=1",
                        "workload.shift=1", "variants=[]", "expect=[]"],
    )  # fmt: skip
    (path,) = draw_plan(scenario, resolve_variants(scenario), tmp_path / "paths.svg")
    text = path.read_text()
    for pair in ("0 → 1", "1 → 0"):
        for number in range(1, 5):
            assert f">{pair}, QP {number}</text>" in text


def test_command_line(invoke, tmp_path) -> None:
    status, out, err = invoke(
        "plan", "permutation", "--variant", "ecmp", "--dilation", "1000",
        "--draw", "a.svg", "--export-topology", "a.txt", "--topology-format", "simai",
    )  # fmt: skip
    assert (status, err) == (0, "")
    assert out.splitlines()[-2:] == ["a.svg", "a.txt"]
    assert "variant ecmp" in out and "variant static" not in out
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")
    expected = export_topology(build_topology(load_scenario("permutation")), "simai")
    assert (tmp_path / "a.txt").read_text() == expected
    status, out, err = invoke(
        "plan", "permutation", "--dilation", "1000",
        "--set", "topology={kind: file, path: a.txt}",
    )  # fmt: skip
    assert (status, err) == (0, "")
    assert "a: 2 + 4 switches, 8 servers, 8 ranks, 16 links" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--draw", "a.pdf"], "--draw a.pdf: is no picture's name; allowed: .svg or .png"),
        (["--draw", "absent/a.png"], "absent/a-ecmp.png: cannot be written: No such file"),
        (["--export-topology", "absent/a"], "absent/a: cannot be written: No such file"),
        (["--export-topology", "/dev/null"], "/dev/null: is no file"),
        (["--export-topology", "."], ".: is no file"),
        (["--export-topology", "a", "--topology-format", "gml"],
         "--topology-format gml: no such format; allowed: hpcc, simai"),
        (["--export-topology", "a", "--topology-format", "simai",
          "--set", "topology.storage=shared"], "--export-topology: SimAI's format has GPUs only"),
        (["--draw", "a.svg", "--variant", "ecmpp"], "--variant ecmpp: no such variant"),
    ],
)  # fmt: skip
def test_one_line_for_what_cannot_be_written(invoke, arguments, message) -> None:
    status, _, err = invoke("plan", "permutation", "--dilation", "1000", *arguments)
    assert status == 2
    assert err.startswith("rocelab: ") and err.count("\n") == 1
    assert message in err


def test_drawing_goes_with_a_scenario(invoke) -> None:
    status, _, err = invoke("plan", "--gpus", "1024", "--draw", "a.svg")
    assert status == 2 and "--gpus plans without a scenario" in err


def test_files_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    scenario = load_scenario("incast", ["topology.storage=shared"])
    with pytest.raises(PlanFileError):
        write_topology(scenario, tmp_path / "a.txt", "simai")
    assert not list(tmp_path.iterdir())


def test_links_that_fail_are_pointed_out(tmp_path: Path) -> None:
    scenario = load_scenario("central-te")
    written = draw_plan(scenario, resolve_variants(scenario), tmp_path / "te.svg")
    whole, cut = (tmp_path / f"te-{name}.svg" for name in ("te", "te-cut"))
    assert {whole, cut} < set(written)
    assert "link that fails" in cut.read_text()
    assert "link that fails" not in whole.read_text()
    # the flows start when all switches know: two of four share an uplink
    assert "64 flows use 4 of 8 uplinks; the busiest carries 16" in whole.read_text()
    assert "64 flows use 3 of 8 uplinks; the busiest carries 32" in cut.read_text()


def test_slow_links_are_pointed_out(tmp_path: Path) -> None:
    scenario = load_scenario("adaptive-slow-link")
    written = draw_plan(scenario, resolve_variants(scenario), tmp_path / "slow.svg")
    assert all("slow link" in path.read_text() for path in written)


def test_a_wrong_suffix_is_refused_before_anything_is_printed(invoke) -> None:
    status, out, err = invoke("plan", "permutation", "--dilation", "1000", "--draw", "a.pdf")
    assert (status, out) == (2, "")
    assert "--draw a.pdf: is no picture's name" in err
