"""Fabrics other than leaf-spine, made real: what their servers reach, and by which NIC."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from testbed.experiment import Experiment
from testbed.fabric_keeper import create_experiment
from testbed.progress import QuietProgress
from testbed.scenario import Scenario, build_topology
from tests.isolated import isolated

pytestmark = [
    pytest.mark.fabric,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: builds a fabric"),
]

DILATION = 8000

FABRICS = {
    "front end": {
        "kind": "leaf-spine", "servers_per_leaf": 1, "storage": "separate", "storage_servers": 1,
    },
    "dual-ToR": {
        "kind": "hpn", "servers_per_segment": 1, "gpus_per_server": 2, "spines": 2,
    },
    "rails alone": {
        "kind": "rail-optimised", "pods": 1, "gpus_per_server": 2, "spines": 0,
    },
}  # fmt: skip


def answered(experiment: Experiment) -> list[tuple[str, int]]:
    """Servers and ranks of other servers that answer their pings."""
    topology, net = experiment.fabric.topology, experiment.fabric.net
    pings = []
    for server in topology.servers:
        for rank in topology.ranks:
            if rank.server != server.name:
                command = ["ping", "-n", "-c", "1", "-W", "2", topology.nic(rank.rank).address]
                pings.append((server.name, rank.rank, net.nameToNode[server.name].popen(command)))
    found = []
    for name, number, process in pings:
        if " 0% packet loss" in process.communicate()[0].decode():
            found.append((name, number))
    return found


@pytest.fixture(params=FABRICS)
def experiment_result(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Any]:
    """The topology, and which ranks reached which on the fabric that was built from it."""
    shift = 2 if request.param == "rails alone" else 1
    scenario = Scenario.from_document(
        {
            "name": "kinds",
            "dilation": DILATION,
            "topology": FABRICS[request.param],
            "switch": {"buffer": {"limit": "1 MiB"}},
            "workload": {"kind": "permutation", "shift": shift, "message_size": "4 KiB"},
        }
    )
    topology = build_topology(scenario)

    def body() -> list[tuple[str, int]]:
        experiment = create_experiment(scenario, DILATION, tmp_path, QuietProgress())
        try:
            experiment.build()
            return answered(experiment)
        finally:
            experiment.stop()

    return topology, set(isolated(body))


def test_pings_reach_whatever_a_path_leads_to(experiment_result: tuple[Any, Any]) -> None:
    topology, reached = experiment_result
    expected = {
        (first.server, second.rank)
        for first in topology.ranks
        for second in topology.ranks
        if first.server != second.server and topology.connected(first.rank, second.rank)
    }
    assert expected and reached == expected
