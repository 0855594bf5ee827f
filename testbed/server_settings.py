"""What every server process of a run is told, from scenario, topology and plan. Pure."""

from __future__ import annotations

from collections.abc import Callable

from testbed.gpu_servers import local_links
from testbed.schema import Scenario
from testbed.topology import Topology
from traffic.codec import FRAME_OVERHEAD, PACKET_HEADERS
from traffic.faults import PacketDrop
from traffic.opcodes import IMMEDIATE_LENGTH, RETH_LENGTH
from traffic.plan import Plan
from traffic.qp.attributes import Reordering
from traffic.settings import LossSettings, PortSettings, ServerSettings, TransportSettings

TRACED_CONNECTIONS = 16
"""Connections whose packets are traced, so that the most telling one can be shown."""


def server_settings(
    scenario: Scenario,
    topology: Topology,
    plan: Plan,
    *,
    lead: float,
    namespace_of: Callable[[str], str],
) -> list[ServerSettings]:
    """The settings of all servers, in the topology's order.

    NICs run ahead of the wire by ``lead`` seconds of emulated time, at least by the longest frame.
    ``namespace_of`` gives the path of a server's network namespace.
    """
    rate = max(interface.rate for interface in topology.interfaces.values())
    frame = scenario.nic.path_mtu + PACKET_HEADERS + RETH_LENGTH + IMMEDIATE_LENGTH
    longest = 2 * max(node.tier for node in topology.nodes.values()) + 1
    return [
        ServerSettings(
            name=server.name,
            index=index,
            network_namespace=namespace_of(server.name),
            ranks=_ports_of(topology, server.name),
            transport=_transport(scenario),
            losses=_losses(scenario, plan),
            lead=max(lead, (frame + FRAME_OVERHEAD) * 8 / rate),
            latencies=tuple(topology.one_way_latency(hops) for hops in range(longest)),
            traced_connections=_traced_connections(plan),
            nvlink=local_links(scenario.server),
        )
        for index, server in enumerate(topology.servers)
    ]


def _transport(scenario: Scenario) -> TransportSettings:
    nic = scenario.nic
    return TransportSettings(
        unreliable=nic.transport == "uc",
        recovery=nic.recovery or "none",
        path_mtu=nic.path_mtu,
        timeout=nic.timeout,
        retry_cnt=nic.retry_cnt,
        rnr_retry=nic.rnr_retry,
        min_rnr_timer=nic.min_rnr_timer,
        ack_interval=nic.ack_interval,
        send_window=nic.send_window,
        reordering=Reordering(nic.reordering_threshold, nic.reordering_timeout),
    )


def _traced_connections(plan: Plan) -> frozenset[int]:
    """The first queue pair of each of the first flows' connections."""
    firsts = dict.fromkeys(flow.connection for flow in plan.flows)
    return frozenset(list(firsts)[:TRACED_CONNECTIONS])


def _ports_of(topology: Topology, server: str) -> tuple[tuple[PortSettings, ...], ...]:
    """For each rank of a server the ports of its NIC."""
    rows = {name: row for row, name in enumerate(topology.interfaces)}
    return tuple(
        tuple(
            PortSettings(
                rank=rank.rank,
                interface=nic.name,
                mac=nic.mac,
                address=nic.address,
                gateway_mac=topology.nodes[nic.peer_node].router_mac,
                rate=nic.rate,
                row=rows[nic.name],
            )
            for nic in topology.nic_ports(rank.rank)
        )
        for rank in topology.ranks
        if rank.server == server
    )


def _losses(scenario: Scenario, plan: Plan) -> LossSettings:
    drops: dict[int, list[PacketDrop]] = {}
    for fault in scenario.faults.drop:
        connection = plan.connections[fault.connection]
        drops.setdefault(connection.source_rank, []).append(
            PacketDrop(
                connection.destination_qp_num,
                connection.source_psn + fault.psn_offset,
                fault.times,
            )
        )
    return LossSettings(
        seed=scenario.seed,
        probability=scenario.faults.loss,
        drops={rank: tuple(found) for rank, found in drops.items()},
    )
