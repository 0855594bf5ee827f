"""The parameters of a scenario in its report: names, values and the units of the schema."""

from __future__ import annotations

import json

from testbed.report.parameters import parameters
from testbed.scenario import scenario_from_document

DOCUMENT = {
    "name": "units",
    "time_limit": "20 ms",
    "topology": {"kind": "leaf-spine", "storage": "shared", "storage_rate": "100 Gbps"},
    "switch": {"buffer": {"limit": "300 KB"}},
    "routing": {"scheme": "flowlet", "gap": "25.6 us"},
    "nic": {"ack_interval": 8, "flowlet_gap": "256 us"},
    "workload": {
        "kind": "flows",
        "flows": [
            {"source": 0, "destination": 2, "size": "64 KiB", "start": "5 us"},
            {"source": 1, "destination": 3, "size": "1 MB"},
        ],
    },
    "faults": {
        "loss": 0.25,
        "links": [{"link": "leaf1-spine1", "down": "10 us"}],
        "slow": [{"link": "leaf2-spine1", "rate": "10 Gbps"}],
    },
}


def shown(**changes: object) -> dict[str, str]:
    scenario = scenario_from_document({**DOCUMENT, **changes}, origin="test")
    return dict(parameters(json.loads(scenario.model_dump_json())))


def test_units_are_those_of_the_schema() -> None:
    found = shown()
    expected = {
        "time_limit": "20.0 ms",
        "topology.kind": "leaf-spine",
        "topology.storage_rate": "100 Gb/s",
        "switch.buffer.limit": "300 KB",
        "routing.gap": "25.6 us",
        "nic.ack_interval": "8",
        "nic.flowlet_gap": "256 us",
        "workload.flows.0.size": "65.5 KB",
        "workload.flows.1.start": "0 s",
        "faults.loss": "0.25",
        "faults.links.0.link": "leaf1-spine1",
        "faults.links.0.down": "10.0 us",
        "faults.slow.0.rate": "10.0 Gb/s",
        "faults.detection": "10.0 us",
        "telemetry.interval": "auto",
    }
    assert expected.items() <= found.items()


def test_what_is_not_set_is_left_out() -> None:
    assert not {"faults.flaps", "faults.links.0.up", "server"} & shown().keys()
    assert shown(faults={}, capture=["leaf1-spine1"])["capture"] == "['leaf1-spine1']"


def test_long_lists_are_counted() -> None:
    flow = {"source": 0, "destination": 2, "size": "1 KB"}
    assert shown(workload={"kind": "flows", "flows": [flow] * 30})["workload.flows"] == "30 entries"


def test_what_the_schema_does_not_know_has_no_unit() -> None:
    scenario = {"topology": {"kind": "torus", "link_rate": 4e11}, "flavour": {"latency": 2}}
    assert dict(parameters(scenario)) == {
        "topology.kind": "torus",
        "topology.link_rate": "400000000000.0",
        "flavour.latency": "2",
    }
