"""Schemes with labels in runs: what captures show, and which packets overtake each other."""

from __future__ import annotations

import os

import pytest

from controllers.flows import Flow
from controllers.hashing import FiveTuple
from controllers.schemes import create_scheme
from testbed.results import RunResult
from tests.fabric.plain_fabric import leaf_spine
from tests.fabric.scenario_runner import ScenarioRunner, only_variant
from tests.wireshark import fields, needs_tshark

pytestmark = [
    pytest.mark.fabric,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: builds a fabric"),
]


@needs_tshark
def test_labels_are_seen_inside_the_fabric_only(run: ScenarioRunner) -> None:
    """On a link between switches every frame has the label that planning predicts, with sound RoCE
    behind it; on a NIC's link, at either end, none has one."""
    size = {"leaves": 2, "spines": 1, "servers_per_leaf": 2}
    ports = ("leaf1-spine1", "rank0-leaf1", "leaf1-rank0")
    topology = leaf_spine(**size)
    scheme = create_scheme("e-ecmp", {}, seed=3)

    def check(result: RunResult) -> None:
        variant = only_variant(result)
        assert variant.ledger.open == 0
        captures = run.latest / "pcap"
        names = (
            "vlan.id", "ip.src", "ip.dst", "udp.srcport", "infiniband.bth.destqp",
            "infiniband.bth.opcode", "_ws.malformed",
        )  # fmt: skip
        found = {port: fields(captures / f"{port}.pcap", *names) for port in ports}
        carried = {port.interface: port.dequeued_packets for port in variant.ports}
        inside = found["leaf1-spine1"]
        assert len(inside) == carried["leaf1-spine1"] + carried["spine1-leaf1"] > 100
        labels = set()
        for label, source, destination, port, qp, opcode, malformed in inside:
            assert opcode and not malformed
            flow = Flow(FiveTuple(source, destination, int(port)), int(qp, 16))
            leaf = topology.leaf_of(topology.rank_of_address(source))
            assert int(label) == scheme.label(topology, leaf, flow)
            labels.add(label)
        assert len(labels) >= 8  # two NICs, two others, both ways, requests and answers
        for port in ("rank0-leaf1", "leaf1-rank0"):
            assert len(found[port]) > 100
            assert all(not frame[0] and frame[5] and not frame[6] for frame in found[port])
        assert sorted(found["rank0-leaf1"]) == sorted(found["leaf1-rank0"])

    run(
        {
            "name": "labels",
            "seed": 3,
            "topology": {"kind": "leaf-spine", **size},
            "routing": {"scheme": "e-ecmp"},
            "capture": list(ports),
            "workload": {"kind": "all-to-all", "message_size": "64 KB"},
        },
        dilation=20_000,
        check=check,
    )


def test_spray_deals_evenly_and_needs_a_recovery_that_waits(run: ScenarioRunner) -> None:
    """Uplinks differ by one packet at most. Of what arrives early, go-back-N takes every packet for
    a loss; selective repeat that waits for as many packets as are in flight sends nothing again.

    One uplink is slow, so that packets do overtake each other; spraying does not look at that.
    Three senders share four uplinks: of four in step, each would have one to itself."""
    packets = 64
    scenario = {
        "name": "spray",
        "topology": {"kind": "leaf-spine", "leaves": 2, "spines": 4, "servers_per_leaf": 4},
        "switch": {"buffer": {"limit": "infinite"}},
        "faults": {"slow": [{"link": "leaf1-spine1", "rate": "100 Gbps"}]},
        "nic": {"reordering_threshold": 2 * packets, "reordering_timeout": "10 ms"},
        "workload": {
            "kind": "flows",
            "flows": [
                {"source": rank, "destination": 4 + rank, "size": packets * 4096}
                for rank in range(3)
            ],
        },
        "variants": [
            {"name": f"{scheme}-{recovery}",
             "set": {"routing.scheme": scheme, "nic.recovery": recovery}}
            for scheme in ("e-ecmp", "spray")
            for recovery in ("go-back-n", "selective-repeat")
        ],
    }  # fmt: skip

    def check(result: RunResult) -> None:
        by_name = {variant.name: variant for variant in result.variants}
        again = {}
        for name, variant in by_name.items():
            assert variant.ledger.open == 0
            again[name] = sum(flow.retransmitted_packets for flow in variant.flows)
            early = sum(flow.out_of_order_packets for flow in variant.flows)
            assert (early > 0) == name.startswith("spray"), name
        for recovery in ("go-back-n", "selective-repeat"):
            ports = by_name[f"spray-{recovery}"].ports
            for leaf in ("leaf1", "leaf2"):
                # one sends requests only, the other answers only
                sent = [
                    p.dequeued_packets for p in ports if p.interface.startswith(f"{leaf}-spine")
                ]
                assert sum(sent) > 0
                assert max(sent) - min(sent) <= 1
        assert again["e-ecmp-go-back-n"] == again["e-ecmp-selective-repeat"] == 0
        assert again["spray-selective-repeat"] == 0
        assert again["spray-go-back-n"] > packets

    run(scenario, dilation=30_000, check=check)


def test_a_flowlet_gap_shorter_than_the_spread_of_delays_reorders(run: ScenarioRunner) -> None:
    """Messages of 5 us at line rate every 40 us; one of two uplinks takes 52 us for one.

    A gap of 256 us, as published, never sees a pause; a tenth of it sends a message over the fast
    uplink while the one before it still waits at the slow one.
    """
    size = 64 * 4096
    scenario = {
        "name": "flowlets",
        "topology": {"kind": "leaf-spine", "leaves": 2, "spines": 2, "servers_per_leaf": 1},
        "switch": {"buffer": {"limit": "infinite"}},
        "nic": {"recovery": "selective-repeat", "reordering_threshold": 128},
        "faults": {"slow": [{"link": "leaf1-spine1", "rate": "40 Gbps"}]},
        "workload": {
            "kind": "flows",
            "flows": [
                {"source": 0, "destination": 1, "size": size, "messages": 6, "period": "40 us"}
            ],
        },
        "routing": {"scheme": "flowlet"},
        "variants": [
            {"name": "published", "set": {"routing.gap": "256 us"}},
            {"name": "tenth", "set": {"routing.gap": "25.6 us"}},
        ],
    }

    def check(result: RunResult) -> None:
        early, used = {}, {}
        for variant in result.variants:
            assert variant.ledger.open == 0
            (flow,) = variant.flows
            assert flow.received_packets == 6 * 64
            early[variant.name] = flow.out_of_order_packets
            used[variant.name] = sorted(
                port.dequeued_packets // 64
                for port in variant.ports
                if port.interface in ("leaf1-spine1", "leaf1-spine2")
            )
        assert used == {"published": [0, 6], "tenth": [3, 3]}
        assert early["published"] == 0
        assert early["tenth"] > 0

    run(scenario, dilation=20_000, check=check)
