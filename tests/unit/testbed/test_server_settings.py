"""What servers are told: ports by rank, losses at the sender, latencies of all path lengths."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.scenario import Scenario, build_topology, plan_traffic
from testbed.server_settings import server_settings
from testbed.topology import Topology
from traffic.faults import PacketDrop
from traffic.plan import Plan
from traffic.settings import ServerSettings

LEAD = 1e-5


def told(lead: float = LEAD, **sections: Any) -> tuple[Topology, Plan, list[ServerSettings]]:
    """Topology, plan and settings of a scenario with dual-port NICs, two GPUs to a server."""
    scenario = Scenario.from_document(
        {
            "name": "told",
            "topology": {"kind": "hpn", "servers_per_segment": 1, "gpus_per_server": 2},
            "workload": {"kind": "permutation", "message_size": "64 KiB"},
            **sections,
        }
    )
    topology = build_topology(scenario)
    plan = plan_traffic(scenario, topology)
    settings = server_settings(scenario, topology, plan, lead=lead, namespace_of="ns/{}".format)
    return topology, plan, settings


def test_every_rank_has_its_ports_and_every_port_its_row() -> None:
    topology, _, settings = told()
    assert [s.name for s in settings] == [node.name for node in topology.servers]
    assert [s.network_namespace for s in settings] == [f"ns/{s.name}" for s in settings]
    ports = [port for s in settings for rank in s.ranks for port in rank]
    assert [port.rank for port in ports] == [0, 0, 1, 1, 2, 2, 3, 3]
    names = list(topology.interfaces)
    for port in ports:
        nic = topology.interfaces[port.interface]
        assert names[port.row] == nic.name
        assert port.gateway_mac == topology.nodes[nic.peer_node].router_mac
        assert (port.mac, port.address, port.rate) == (nic.mac, nic.address, nic.rate)


def test_a_packet_is_lost_where_it_is_sent() -> None:
    drop = {"connection": 1, "psn_offset": 5, "times": 2}
    _, plan, settings = told(seed=7, faults={"loss": 0.01, "drop": [drop]})
    connection = plan.connections[1]
    expected = PacketDrop(connection.destination_qp_num, connection.source_psn + 5, 2)
    for server in settings:
        assert (server.losses.seed, server.losses.probability) == (7, 0.01)
        assert server.losses.drops == {connection.source_rank: (expected,)}


def test_the_lead_is_no_less_than_the_longest_frame() -> None:
    *_, settings = told()
    assert {s.lead for s in settings} == {LEAD}
    *_, settings = told(lead=0.0)
    # a WRITE with immediate in one packet, and 24 bytes around it, on a port of 200 Gb/s
    frame = 4096 + 14 + 20 + 8 + 12 + 16 + 4 + 4 + 24
    assert [s.lead for s in settings] == [pytest.approx(frame * 8 / 200e9)] * len(settings)


def test_latencies_reach_as_far_as_the_longest_path() -> None:
    topology, _, settings = told()
    farthest = max(topology.switch_hops(0, rank.rank) for rank in topology.ranks)
    assert settings[0].latencies[farthest] == topology.one_way_latency(farthest)
    assert len(settings[0].latencies) > farthest > 1
