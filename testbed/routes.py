"""Which entries a scenario's switches get, and which way every packet of its plan will go. Pure.

The same prediction is shown by `rocelab plan`, proven by the probes and written into the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from controllers.flows import Flow
from controllers.hashing import FiveTuple
from controllers.labels import LabelSettings
from controllers.routes import LinkState
from controllers.schemes import RoutingScheme, create_scheme
from controllers.schemes.base import Entries
from controllers.table import FabricTables, RoutingError
from testbed.schema import Scenario
from testbed.topology import Topology
from traffic.plan import Connection, Plan


@dataclass(frozen=True, slots=True)
class PlannedPath:
    """One way through the fabric.

    ``interfaces`` transmit in this order, the NIC's first. ``label`` is the VLAN id of a tag that
    forces the path; None means that packets without a tag take it by themselves. ``source_port`` is
    the UDP source port that a packet must have, None for the connection's own.
    """

    interfaces: tuple[str, ...]
    label: int | None = None
    source_port: int | None = None


@dataclass(frozen=True, slots=True)
class PlannedRoutes:
    """``paths`` gives for (connection, reverse) the ways that packets may take.

    It is one way for schemes and source ports that do not vary from packet to packet, and none
    where link failures have cut the destination off. The reverse way is that of the
    acknowledgements. ``plan`` is the plan with the source ports that the scheme chose.
    """

    entries: Entries
    labels: dict[str, LabelSettings]
    paths: dict[tuple[int, bool], tuple[PlannedPath, ...]]
    plan: Plan
    recompute_interval: float | None = None


def plan_routes(
    scenario: Scenario, topology: Topology, plan: Plan, link_state: LinkState | None = None
) -> PlannedRoutes:
    """Compute entries and paths by the scenario's scheme.

    Raises controllers.table.RoutingError for a forwarding loop, and for a black hole unless links
    have failed.
    """
    state = link_state or LinkState()
    parameters = scenario.routing.parameters.model_dump()
    scheme = create_scheme(scenario.routing.scheme, parameters, seed=scenario.seed)
    # Ports are chosen once, before anything fails: a running queue pair keeps its own.
    plan = _with_ports(plan, scheme.choose_source_ports(topology, list(_flows(topology, plan))))
    flows = list(_flows(topology, plan))
    entries = scheme.entries(topology, flows, state)
    tables = FabricTables(topology, entries)
    paths = {
        (flow.connection, flow.reverse): _paths(topology, scheme, tables, flow, state)
        for flow in flows
    }
    labels = scheme.label_settings(topology, state)
    return PlannedRoutes(entries, labels, paths, plan, scheme.recompute_interval)


def _with_ports(plan: Plan, ports: dict[tuple[int, bool], int]) -> Plan:
    if not ports:
        return plan
    connections = tuple(
        replace(
            connection,
            source_port=ports.get((connection.index, False), connection.source_port),
            reverse_source_port=ports.get((connection.index, True), connection.reverse_source_port),
        )
        for connection in plan.connections
    )
    return replace(plan, connections=connections)


def _flows(topology: Topology, plan: Plan) -> Iterator[Flow]:
    """Both directions of every connection, in order."""
    payload: Counter[int] = Counter()
    for flow in plan.flows:
        payload[flow.connection] += flow.payload_bytes
    for connection in plan.connections:
        for reverse in (False, True):
            size = 0 if reverse else payload[connection.index]
            yield _flow(topology, connection, reverse=reverse, size=size)


def _flow(topology: Topology, connection: Connection, *, reverse: bool, size: int) -> Flow:
    source, destination = connection.source_rank, connection.destination_rank
    port, qp = connection.source_port, connection.destination_qp_num
    if reverse:
        source, destination = destination, source
        port, qp = connection.reverse_source_port, connection.source_qp_num
    nic = topology.nic(source)
    five_tuple = FiveTuple(nic.address, topology.nic(destination).address, port)
    return Flow(five_tuple, qp, nic.name, size, connection.index, reverse)


def _paths(
    topology: Topology, scheme: RoutingScheme, tables: FabricTables, flow: Flow, state: LinkState
) -> tuple[PlannedPath, ...]:
    """All ways of a flow, from the first NIC port that reaches the destination.

    That is the port it is planned on, unless that has no link or no route to the destination any
    more: then the queue pair migrates to another port of the NIC.
    """
    rank = topology.ranks[topology.rank_of_address(flow.five_tuple.source_ip)]
    own = flow.source_interface
    for name in (own, *(other for other in rank.interfaces if other != own)):
        if state.up(topology.interfaces[name]):
            try:
                return _ways(topology, scheme, tables, replace(flow, source_interface=name), state)
            except RoutingError:
                if not state.failed:
                    raise
    return ()


def _ways(
    topology: Topology, scheme: RoutingScheme, tables: FabricTables, flow: Flow, state: LinkState
) -> tuple[PlannedPath, ...]:
    leaf = topology.interfaces[flow.source_interface].peer_node
    labels: Sequence[int | None] = scheme.possible_labels(topology, leaf, flow, state)
    if len(labels) == 1:
        return (PlannedPath(tuple(tables.path_of(flow, labels[0]))),)
    ways: dict[tuple[str, ...], PlannedPath] = {}
    for label in labels:
        interfaces = tuple(tables.path_of(flow, label))
        ways.setdefault(interfaces, PlannedPath(interfaces, label))
    return tuple(ways.values())
