"""`rocelab plan --gpus`: tables that fit, figures that agree, one line for every mistake."""

from __future__ import annotations

import numpy as np
import pytest

from controllers.planning.catalogue import CATALOGUE
from controllers.planning.fabric import from_topology
from controllers.planning.schemes import planner_names
from testbed import cli
from testbed.plan_scale import flows_of_plan
from testbed.scenario import build_topology, load_scenario, plan_traffic


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
    assert lines[0] == "hpn7-pod: 1,024 NICs, 16 leaves, 120 spines, 960 links of 400 Gb/s"
    assert lines[1] == (
        "ring of 1,000 GPUs, 2 QPs per pair, a source port per QP, 3 seeds, 1 % of links failed"
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
    assert loads == ["static", "leaf", "to", "spine", "–", "–", "–", "–", "–", "–"]
    assert slowdown == ["static", "1.00", "1.00", "1.00", "1.00", "0", "%"]


def test_other_schemes_for_the_traffic_of_a_scenario(invoke) -> None:
    """What the packets of the scenario's run showed is what its schemes are planned to do."""
    status, out, err = invoke("plan", "permutation", "--routing", "ecmp,static")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("leaf-spine: ")
    assert lines[1].startswith("variant ecmp: ")
    assert lines[1].endswith(" queue pairs of permutation, 1 seed")
    ecmp, static = (line.split() for line in lines if "leaf to spine" in line)
    assert float(ecmp[7]) > 1.5
    assert float(static[7]) == 1.0


def test_links_that_are_down_when_the_flows_start_are_not_planned_with(invoke) -> None:
    """Without a fourth uplink two of TE's four demands share one; E-ECMP spreads them all."""
    slowdown = {}
    for variant in ("te", "te-cut"):
        _, out, _ = invoke("plan", "central-te", "--variant", variant, "--routing", "te,e-ecmp")
        head, *lines = out.splitlines()[1:]
        assert head.startswith(f"variant {variant}: 64 queue pairs of flows")
        assert ("leaf1-spine4 down" in head) == (variant == "te-cut")
        at = next(i for i, line in enumerate(lines) if "slowdown" in line)
        for scheme, value in (line.split()[:2] for line in lines[at + 1 : at + 3]):
            slowdown[variant, scheme] = float(value)
    assert slowdown["te", "te"] == 1.0 < slowdown["te", "e-ecmp"]
    assert slowdown["te-cut", "te"] == 2.0 > slowdown["te-cut", "e-ecmp"]


def test_flows_of_a_plan_keep_their_bytes_and_its_busiest_nic_the_line_rate() -> None:
    scenario = load_scenario("incast", ["topology.leaves=2"])
    topology = build_topology(scenario)
    plan = plan_traffic(scenario, topology)
    flows = flows_of_plan(from_topology(topology), plan)
    received = np.bincount(flows.destinations, flows.rates)
    assert received.max() == pytest.approx(topology.nic(0).rate)
    sizes = np.array([flow.payload_bytes for flow in plan.flows])
    np.testing.assert_allclose(flows.rates / flows.rates.sum(), sizes / sizes.sum())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "plan needs a SCENARIO, or --gpus"),
        (["incast", "--gpus", "64"], "--gpus plans without a scenario"),
        (["--gpus", "64", "--dilation", "5"], "--gpus plans without a scenario"),
        (["incast", "--qps", "4", "--routing", "ecmp"], "--qps goes with --gpus"),
        (["incast", "--routing", "ecmp", "--draw", "a.svg"], "--draw goes without --routing"),
        (["incast", "--topology-format", "simai"], "--topology-format goes with --export-topology"),
        (["incast", "--failed-links", "0.1"], "--failed-links goes with --routing or --gpus"),
        (["incast", "--routing", "ecmp", "--seeds", "0"], "--seeds 0: allowed: 1 to 10000"),
        (["--routing", "ecmp"], "plan needs a SCENARIO, or --gpus"),
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
        (["--gpus", "64", "--routing", "ecmp:fields=[x"],
         "--routing ecmp:fields=[x: routing scheme ecmp:fields=[x: '[x' is not a YAML value"),
        (["--gpus", "64", "--routing", "te:interval=3"],
         "--routing te:interval=3: routing scheme te:interval=3: interval: 3 has no unit; write"),
        (["--gpus", "64", "--routing", "spray:gap=1"],
         "--routing spray:gap=1: routing scheme spray:gap=1: 'gap' is no field; allowed: hash"),
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


def test_a_single_switch_leaves_nothing_to_choose(invoke) -> None:
    single = ("topology.leaves=1", "topology.spines=0", "topology.servers_per_leaf=16")
    settings = [argument for value in single for argument in ("--set", value)]
    schemes = ",".join(planner_names())
    status, out, err = invoke("plan", "incast", *settings, "--routing", schemes)
    assert (status, err) == (0, "")
    assert out.startswith("leaf-spine: 16 NICs, 1 leaf\n")
    assert sum("1.00  1.00     1.00            1.00" in line for line in out.splitlines()) == 7
