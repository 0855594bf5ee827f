"""Links that may carry a flow, against what the schemes use."""

import pytest

from testbed.equal_cost import equal_cost_interfaces
from testbed.topology import create_topology


def test_one_pair_in_a_leaf_spine_fabric():
    topology = create_topology("leaf-spine", leaves=3, spines=2, servers_per_leaf=2)
    assert equal_cost_interfaces(topology, [(0, 2)]) == {
        "leaf1-spine1", "leaf1-spine2", "spine1-leaf2", "spine2-leaf2", "leaf2-rank2",
    }  # fmt: skip
    assert equal_cost_interfaces(topology, [(0, 1)]) == {"leaf1-rank1"}


def test_cores_only_between_zones():
    topology = create_topology(
        "three-tier", zones=2, leaves=2, spines=2, cores=2, servers_per_leaf=1
    )
    within = equal_cost_interfaces(topology, [(0, 2)])
    across = equal_cost_interfaces(topology, [(0, 4)])
    assert not any("core" in name for name in within)
    assert sum(name.startswith("core") for name in across) == 4
    assert sum(name.startswith("leaf1-spine") for name in across) == 2


@pytest.mark.parametrize("dual_plane", [True, False])
def test_both_ports_of_a_nic(dual_plane):
    topology = create_topology(
        "hpn", segments=2, servers_per_segment=1, gpus_per_server=1, spines=2, dual_plane=dual_plane
    )
    found = equal_cost_interfaces(topology, [(0, 1)])
    up = {name for name in found if name.startswith(("leaf1-spine", "leaf2-spine"))}
    both = {"leaf1-spine1", "leaf2-spine2"}
    assert up == (both if dual_plane else both | {"leaf1-spine2", "leaf2-spine1"})
    assert {"leaf3-rank1", "leaf4-rank1"} <= found
