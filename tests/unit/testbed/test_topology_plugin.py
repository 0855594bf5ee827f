"""A family of topologies from outside the package: one new file, nothing else is touched."""

from __future__ import annotations

from pathlib import Path

import pytest
from plugin import import_file

from testbed.routes import plan_routes
from testbed.scenario import ScenarioError, build_topology, load_scenario, plan_traffic
from testbed.topology import base

FAMILY = '''
"""A star: one switch, and nothing else."""

from pydantic import Field

from testbed.topology import (
    TopologyBuilder, TopologyKind, TopologyParameters, register_topology,
)
from testbed.units import BitRate


class StarParameters(TopologyParameters):
    hosts: int = Field(3, ge=2, le=8)
    link_rate: BitRate = Field(100e9)


@register_topology
class Star(TopologyKind):
    """As in the first clusters."""

    name = "star"
    parameters = StarParameters

    def build(self, parameters):
        builder = TopologyBuilder(self.name, hop_latency=1e-6, nic_latency=1e-6)
        hub = builder.switch("leaf", tier=1, index=0)
        for index in range(parameters.hosts):
            builder.rank(builder.server(index), 0, [hub], rate=parameters.link_rate)
        return builder.build()
'''

SCENARIO = """
name: starry
topology: {kind: star, hosts: 4, link_rate: 200 Gbps}
workload: {kind: incast, message_size: 64 KiB}
"""


@pytest.fixture
def star(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The family, for one test."""
    monkeypatch.setattr(base, "_registry", dict(base.topology_kinds()))
    import_file(tmp_path / "star_topology.py", FAMILY, monkeypatch)


@pytest.mark.usefixtures("star")
def test_a_scenario_can_name_it(tmp_path: Path) -> None:
    path = tmp_path / "starry.yaml"
    path.write_text(SCENARIO)
    scenario = load_scenario(path)
    topology = build_topology(scenario)
    assert topology.name == "star"
    assert [switch.name for switch in topology.switches] == ["leaf1"]
    assert topology.nic(3).rate == 200e9
    plan = plan_traffic(scenario, topology)
    assert len(plan_routes(scenario, topology, plan).paths) == 2 * 3


@pytest.mark.usefixtures("star")
def test_its_parameters_are_checked_like_any_others(tmp_path: Path) -> None:
    path = tmp_path / "starry.yaml"
    path.write_text(SCENARIO)
    with pytest.raises(ScenarioError, match="hosts: 9 must be less than or equal to 8"):
        load_scenario(path, ["topology.hosts=9"])
    with pytest.raises(ScenarioError, match="unknown field; did you mean 'hosts'"):
        load_scenario(path, ["topology.host=2"])


def test_it_is_unknown_unless_its_file_is_imported(tmp_path: Path) -> None:
    path = tmp_path / "starry.yaml"
    path.write_text(SCENARIO)
    with pytest.raises(ScenarioError, match="'star' is not known"):
        load_scenario(path)
