"""Faults in a scenario file: what is wrong is one line with field, value and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.scenario import ScenarioError, build_topology, load_scenario

TEXT = """
name: faults
topology: {kind: leaf-spine, leaves: 2, spines: 2, servers_per_leaf: 2}
workload: {kind: permutation, message_size: 64 KiB}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "faults.yaml"
    path.write_text(TEXT)
    return path


def test_times_and_rates_are_si_units(scenario: Path) -> None:
    faults = load_scenario(
        scenario,
        [
            "faults.links=[{link: leaf1-spine1, down: 200 us, up: 2 ms}]",
            "faults.switches=[{switch: leaf1, down: 1 ms}]",
            "faults.flaps=[{link: rank0-leaf1, at: 1 us, period: 2 us, count: 3}]",
            "faults.slow=[{link: leaf1-spine1, rate: 100 Gbps}]",
            "faults.controller=[{restart: 300 us}]",
            "faults.detection=20 us",
        ],
    ).faults
    assert (faults.links[0].down, faults.links[0].up) == pytest.approx((2e-4, 2e-3))
    assert faults.switches[0].up is None
    assert (faults.slow[0].rate, faults.slow[0].at) == (100e9, 0)
    assert faults.controller[0].restart == pytest.approx(3e-4)
    assert (faults.detection, faults.convergence) == pytest.approx((2e-5, 1e-4))


def test_what_is_slow_from_the_start_is_built_so(scenario: Path) -> None:
    slow = ["faults.slow=[{link: leaf1-spine1, rate: 100 Gbps}]"]
    topology = build_topology(load_scenario(scenario, slow))
    assert topology.interfaces["leaf1-spine1"].rate == 100e9
    assert topology.interfaces["spine1-leaf1"].rate == 100e9
    assert topology.interfaces["leaf1-spine2"].rate == 400e9


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "faults.links=[{link: leaf1-spine9, down: 1 us}]",
            "faults.links.0.link: 'leaf1-spine9' is no link; did you mean 'leaf1-spine",
        ),
        ("faults.links=[{link: leaf1-spine1}]", "faults.links.0.down: this field is required"),
        (
            "faults.links=[{link: leaf1-spine1, down: 2 us, up: 1 us}]",
            "faults.links.0.up: 1 us is not after down (2 us); allowed: any later time",
        ),
        ("faults.links=[{link: leaf1-spine1, down: 5}]", "faults.links.0.down: 5 has no unit"),
        (
            "faults.switches=[{switch: leaf3, down: 1 us}]",
            "faults.switches.0.switch: 'leaf3' is no switch; did you mean 'leaf",
        ),
        (
            "faults.flaps=[{link: leaf1-spine1, at: 1 us, period: 0}]",
            "faults.flaps.0.period: 0.0 must be greater than 0",
        ),
        (
            "faults.flaps=[{link: leaf1-spine1, at: 1 us, period: 1 us, count: 1001}]",
            "faults.flaps.0.count: 1001 must be less than or equal to 1000",
        ),
        (
            "faults.slow=[{link: leaf1-spine1, rate: 900 Gbps}]",
            "faults.slow.0.rate: 900 Gb/s is above what the link was built to; allowed: at most",
        ),
        (
            "faults.slow=[{link: leaf1-spine1, rat: 1 Gbps}]",
            "faults.slow.0.rat: unknown field; did",
        ),
        ("faults.controller=[{restart: soon}]", "faults.controller.0.restart: 'soon' is not a dur"),
        (
            "faults.detection=200 us",
            "faults.convergence: 100 us is shorter than detection (200 us); allowed: that or",
        ),
        ("faults.link=[]", "faults.link: unknown field; did you mean 'links'?"),
    ],
)
def test_a_mistake_is_one_line(scenario: Path, override: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(scenario, [override])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_slow_link_must_leave_the_kernel_a_rate(scenario: Path) -> None:
    slow = ["faults.slow=[{link: leaf1-spine1, rate: 1 kbps, at: 1 us}]", "dilation=1000"]
    with pytest.raises(
        ScenarioError, match="dilation: 1000 slows a link of 1000 bit/s down to 1 b"
    ):
        load_scenario(scenario, slow)
