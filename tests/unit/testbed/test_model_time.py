"""The model's time of a collective: NVLink is where ranks share a server in the fabric."""

from __future__ import annotations

import pytest

from testbed.model_time import model_time
from testbed.scenario import Scenario, build_topology, plan_traffic
from traffic.workloads import create_workload


def modelled(gpus: int, **workload: object) -> float:
    """Seconds of an all-reduce over eight ranks below one leaf, ``gpus`` on each server."""
    scenario = Scenario.from_document(
        {
            "name": "modelled",
            "topology": {
                "kind": "leaf-spine",
                "leaves": 1,
                "spines": 0,
                "servers_per_leaf": 8 // gpus,
                "gpus_per_server": gpus,
            },
            "workload": {"kind": "collective", "algorithm": "ring", "size": "1 MiB", **workload},
        }
    )
    topology = build_topology(scenario)
    plan = plan_traffic(scenario, topology)
    communicators = create_workload("collective").communicators(plan)
    time = model_time(communicators, topology, path_mtu=scenario.nic.path_mtu)
    assert time is not None
    return time


def test_servers_that_the_fabric_does_not_have_bring_no_nvlink() -> None:
    """All messages of a ring cross the network, whatever its order takes for one server."""
    assert modelled(1, gpus_per_server=4) == pytest.approx(modelled(1), rel=1e-9)
    # pairs share a server, but the slowest step of the ring is the one between servers
    assert modelled(2, gpus_per_server=4) == pytest.approx(modelled(2), rel=0.05)


@pytest.mark.parametrize("algorithm", ["hierarchical", "double-binary-tree"])
def test_nvlink_is_quicker_where_it_is(algorithm: str) -> None:
    there = modelled(4, algorithm=algorithm)
    asked_for = modelled(1, algorithm=algorithm, gpus_per_server=4)
    half = modelled(2, algorithm=algorithm, gpus_per_server=4)
    assert there < min(half, asked_for)
