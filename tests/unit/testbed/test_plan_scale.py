"""`rocelab plan --gpus`: tables that fit, figures that agree, one line for every mistake."""

from __future__ import annotations

import pytest

from controllers.planning.catalogue import CATALOGUE
from controllers.planning.schemes import planner_names
from testbed import cli


@pytest.fixture
def invoke(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        status = cli.invoke(arguments)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_all_schemes_on_every_fabric_fit_80_columns(invoke) -> None:
    for topology in CATALOGUE:
        status, out, err = invoke(
            "plan", "--gpus", "128", "--topology", topology, "--routing", ",".join(planner_names())
        )
        assert (status, err) == (0, "")
        assert max(map(len, out.splitlines())) <= 80
        for scheme in planner_names():
            assert sum(line.startswith(f"{scheme} ") for line in out.splitlines()) == 2
        assert out.startswith(f"{topology}: ")


def test_head_says_what_was_planned(invoke) -> None:
    _, out, _ = invoke(
        "plan", "--gpus", "1000", "--topology", "hpn7-pod", "--flows", "ring",
        "--seeds", "3", "--failed-links", "0.01", "--source-ports", "per-qp",
    )  # fmt: skip
    lines = out.splitlines()
    assert lines[0] == "hpn7-pod: 1,024 GPUs, 16 leaves, 120 spines, 960 links of 400 Gb/s"
    assert lines[1] == (
        "ring of 1,000 GPUs, 2 QPs each, a source port per QP, 3 seeds, 1 % of links failed"
    )


def test_parameters_of_a_scheme_show_polarisation(invoke) -> None:
    """One seed in all switches: the spines repeat the leaves' choices, and core links stay idle."""
    status, out, _ = invoke(
        "plan", "--gpus", "6144", "--flows", "shift", "--routing", "ecmp,ecmp:per_switch_seed=false"
    )
    assert status == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "ecmp (1): ecmp:per_switch_seed=false" in out
    idle = [int(line.split()[-2]) for line in out.splitlines() if "spine to core" in line]
    assert len(idle) == 2
    assert idle[0] < 10
    assert idle[1] >= 50


def test_figures_of_a_pattern_that_needs_no_luck(invoke) -> None:
    """Within a rack, where no uplink is used; and D-mod-K on a shift, which it serves evenly."""
    _, out, _ = invoke("plan", "--gpus", "16", "--topology", "meta-ai-zone", "--routing", "static")
    loads, slowdown = (line.split() for line in out.splitlines() if line.startswith("static"))
    assert loads == ["static", "leaf", "to", "spine", "0.00", "0.00", "0.00", "1.00", "1.00",
                     "100", "%"]  # fmt: skip
    assert slowdown == ["static", "1.00", "1.00", "1.00", "1.00", "0", "%"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "plan needs a SCENARIO, or --gpus"),
        (["incast", "--gpus", "64"], "--gpus plans without a scenario"),
        (["--gpus", "64", "--dilation", "5"], "--gpus plans without a scenario"),
        (["incast", "--routing", "ecmp"], "--routing goes with --gpus"),
        (["--failed-links", "0.1"], "--failed-links goes with --gpus"),
        (["--gpus", "1"], "--gpus 1: allowed with meta-dc: 2 to 24576"),
        (["--gpus", "16384", "--topology", "hpn7-pod"],
         "--gpus 16384: allowed with hpn7-pod: 2 to 15360"),
        (["--gpus", "64", "--topology", "torus"], "--topology torus: allowed: meta-dc, "),
        (["--gpus", "64", "--routing", "ecmp,ospf"],
         "--routing ecmp,ospf: routing scheme 'ospf' cannot be planned at this scale; allowed: "),
        (["--gpus", "64", "--routing", "ecmp:seed"],
         "--routing ecmp:seed: routing scheme ecmp:seed: 'seed' is not FIELD=VALUE"),
        (["--gpus", "64", "--routing", "ecmp:hash_seed=-1"],
         "--routing ecmp:hash_seed=-1: routing scheme ecmp:hash_seed=-1: hash_seed: "),
        (["--gpus", "64", "--flows", "ribbon"], "--flows ribbon: allowed: permutation, ring,"),
        (["--gpus", "64", "--qps", "0"], "--qps 0: allowed: 1 to 256"),
        (["--gpus", "64", "--seeds", "-1"], "--seeds -1: allowed: 1 to 10000"),
        (["--gpus", "64", "--source-ports", "any"], "--source-ports any: allowed: per-pair"),
        (["--gpus", "64", "--failed-links", "1"], "--failed-links 1.0: allowed: 0 to below 1"),
    ],
)  # fmt: skip
def test_mistakes(invoke, arguments: list[str], message: str) -> None:
    status, out, err = invoke("plan", *arguments)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith(f"rocelab: {message}")
