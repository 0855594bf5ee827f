"""Which entries a scenario's switches get, and which way every packet of its plan will go. Pure.

The same prediction is shown by `rocelab plan`, proven by the probes and written into the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace

from controllers.flows import Flow
from controllers.hashing import FiveTuple
from controllers.labels import LabelSettings
from controllers.routes import LinkState
from controllers.schemes import RoutingScheme, scheme_class
from controllers.schemes.base import Entries
from controllers.table import BlackHoleError, FabricTables
from testbed.schema import Scenario
from testbed.topology import Topology
from traffic.plan import Connection, Plan
from traffic.source_ports import possible_source_ports


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
    acknowledgements. ``labels`` are the settings of the leaves' hash engines, ``plan`` is the plan
    with the source ports that the scheme chose, and ``recompute_interval`` is the time in seconds
    after which the scheme wants to be asked again.
    """

    entries: Entries
    labels: dict[str, LabelSettings]
    paths: dict[tuple[int, bool], tuple[PlannedPath, ...]]
    plan: Plan
    recompute_interval: float | None = None


def plan_routes(
    scenario: Scenario,
    topology: Topology,
    plan: Plan,
    link_state: LinkState | None = None,
    *,
    senders: Container[str] | None = None,
) -> PlannedRoutes:
    """Compute entries and paths by the scenario's scheme.

    ``senders`` are the NIC interfaces whose flows are placed, by a scheme that places flows; by
    default all. Raises controllers.table.RoutingError for a forwarding loop, and for a black hole
    unless links have failed.
    """
    state = link_state or LinkState()
    choice = scenario.routing
    scheme = scheme_class(choice.scheme)(choice.parameters, seed=scenario.seed)
    # Ports are chosen once, before anything fails: a running queue pair keeps its own.
    plan = _with_ports(plan, scheme.choose_source_ports(topology, list(_flows(topology, plan))))
    flows = list(_flows(topology, plan))
    moved = [_from_live_port(topology, flow, state) for flow in flows]
    placed = [
        after
        for before, after in zip(flows, moved, strict=True)
        if senders is None
        or before.source_interface in senders
        or after.source_interface in senders
    ]
    entries = scheme.entries(topology, placed, state)
    tables = FabricTables(topology, entries)
    predictor = _Predictor(topology, plan, scheme, tables, state)
    paths = {(flow.connection, flow.reverse): predictor.paths(flow) for flow in flows}
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
        # Every message strategy gives the queue pairs of a group equal shares in the long run.
        group = plan.group(flow.connection)
        for index in group:
            payload[index] += flow.payload_bytes // len(group)
    for connection in plan.connections:
        for reverse in (False, True):
            size = 0 if reverse else payload[connection.index]
            yield _flow(topology, connection, reverse=reverse, size=size)


def _flow(topology: Topology, connection: Connection, *, reverse: bool, size: int) -> Flow:
    source, destination = connection.source_rank, connection.destination_rank
    nic_port, port = connection.source_nic_port, connection.source_port
    qp = connection.destination_qp_num
    if reverse:
        source, destination = destination, source
        nic_port, port = connection.destination_nic_port, connection.reverse_source_port
        qp = connection.source_qp_num
    nic = topology.nic(source, nic_port)
    five_tuple = FiveTuple(nic.address, topology.nic(destination).address, port)
    return Flow(five_tuple, qp, nic.name, size, connection.index, reverse)


def _live_ports(topology: Topology, flow: Flow, state: LinkState) -> list[str]:
    """The sending NIC's ports that have a link, in the order in which a queue pair tries them."""
    rank = topology.rank_of_address(flow.five_tuple.source_ip)
    live = [port.name for port in topology.nic_ports(rank) if state.up(port)]
    return sorted(live, key=lambda name: name != flow.source_interface)


def _from_live_port(topology: Topology, flow: Flow, state: LinkState) -> Flow:
    """The flow as it is after its NIC has seen its port go down."""
    live = _live_ports(topology, flow, state)
    return replace(flow, source_interface=live[0]) if live else flow


@dataclass(frozen=True, slots=True)
class _Predictor:
    """Asks the tables for the ways of a plan's packets."""

    topology: Topology
    plan: Plan
    scheme: RoutingScheme
    tables: FabricTables
    state: LinkState

    def paths(self, flow: Flow) -> tuple[PlannedPath, ...]:
        """All ways of a flow, from the first NIC port that reaches the destination.

        That is the port it is planned on, unless that has no link or no route to the destination
        any more: then the queue pair migrates to another port of the NIC.
        """
        for name in _live_ports(self.topology, flow, self.state):
            try:
                return self._ways(replace(flow, source_interface=name))
            except BlackHoleError:
                if not self.state.failed:
                    raise
        return ()

    def _ways(self, flow: Flow) -> tuple[PlannedPath, ...]:
        connection = self.plan.connections[flow.connection]
        ports = possible_source_ports(self.plan, connection, reverse=flow.reverse)
        ways: dict[tuple[str, ...], PlannedPath] = {}
        for port in ports:
            own = None if len(ports) == 1 else port
            five_tuple = replace(flow.five_tuple, source_port=port)
            for way in self._ways_of_port(replace(flow, five_tuple=five_tuple)):
                ways.setdefault(way.interfaces, replace(way, source_port=own))
        return tuple(ways.values())

    def _ways_of_port(self, flow: Flow) -> Iterator[PlannedPath]:
        leaf = self.topology.interfaces[flow.source_interface].peer_node
        labels = self.scheme.possible_labels(self.topology, leaf, flow, self.state)
        for label in labels:
            path = tuple(self.tables.path_of(flow, label))
            yield PlannedPath(path, None if len(labels) == 1 else label)
