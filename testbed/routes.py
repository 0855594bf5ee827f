"""Which entries a scenario's switches get, and which way every packet of its plan will go. Pure.

The same prediction is shown by `rocelab plan`, proven by the probes and written into the result.
"""

from __future__ import annotations

from dataclasses import dataclass

from controllers.hashing import FiveTuple
from controllers.schemes import create_scheme
from controllers.schemes.base import Entries
from controllers.table import FabricTables
from testbed.schema import Scenario
from testbed.topology import Topology
from traffic.plan import Connection, Plan


@dataclass(frozen=True, slots=True)
class PlannedRoutes:
    """``paths`` gives for (connection, reverse) the transmitting interfaces in order.

    The reverse way is that of the acknowledgements.
    """

    entries: Entries
    paths: dict[tuple[int, bool], list[str]]


def plan_routes(scenario: Scenario, topology: Topology, plan: Plan) -> PlannedRoutes:
    """Compute entries and paths by the scenario's scheme. Raises controllers.table.RoutingError."""
    flows = {
        (connection.index, reverse): _five_tuple(topology, connection, reverse=reverse)
        for connection in plan.connections
        for reverse in (False, True)
    }
    parameters = scenario.routing.parameters.model_dump()
    scheme = create_scheme(scenario.routing.scheme, parameters, seed=scenario.seed)
    entries = scheme.entries(topology, list(flows.values()))
    tables = FabricTables(topology, entries)
    return PlannedRoutes(entries, {key: tables.path_of(flow) for key, flow in flows.items()})


def _five_tuple(topology: Topology, connection: Connection, *, reverse: bool) -> FiveTuple:
    source, destination = connection.source_rank, connection.destination_rank
    if reverse:
        source, destination = destination, source
    return FiveTuple(
        topology.nic(source).address,
        topology.nic(destination).address,
        connection.reverse_source_port if reverse else connection.source_port,
    )
