"""What an analyser sees on the wire."""

from __future__ import annotations

import pytest

from testbed.results import RunResult
from tests.fabric.scenario_runner import ScenarioRunner, only_variant
from tests.interop import icrc_check
from tests.wireshark import matching, needs_tshark

pytestmark = [
    pytest.mark.fabric,
    needs_tshark,
]

PORT = "leaf1-spine1"


def test_every_frame_of_a_capture_is_sound_roce(run: ScenarioRunner) -> None:
    """A lossy run with data, ACKs, selective NAKs and retransmissions, in both directions."""

    def check(result: RunResult) -> None:
        variant = only_variant(result)
        assert sum(flow.naks for flow in variant.flows) > 0
        assert sum(flow.retransmitted_packets for flow in variant.flows) > 0
        # the capture holds what the port sends, and what the other end of its link sent to it
        carried = {
            port.interface: port.dequeued_packets
            for port in variant.ports
            if port.interface in (PORT, "spine1-leaf1")
        }
        assert min(carried.values()) > 100
        path = run.latest / "pcap" / f"{PORT}.pcap"
        frames = sum(carried.values())
        assert matching(path, "infiniband") == frames
        assert matching(path, "not infiniband") == 0
        assert matching(path, "_ws.malformed") == 0
        assert icrc_check.check(path.read_bytes()) == (frames, [])

    run(
        {
            "name": "captured",
            "topology": {
                "kind": "leaf-spine",
                "leaves": 2,
                "spines": 1,
                "servers_per_leaf": 2,
                "link_rate": "400 Gbps",
                "uplink_rate": "800 Gbps",
            },
            "switch": {"buffer": {"limit": "1 MiB"}},
            "nic": {"recovery": "selective-repeat"},
            "workload": {"kind": "all-to-all", "message_size": "512 KiB"},
            "faults": {"loss": 0.02},
            "capture": [PORT],
        },
        dilation=8000,
        check=check,
    )
