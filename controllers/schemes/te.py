"""Central traffic engineering: a controller places the traffic matrix on paths, link by link.

Meta's TE (SIGCOMM 2024, section 5.3): every 30 s, and when a link changes, constrained shortest
path first (CSPF) over the traffic matrix; the switches get exact matches of <source port,
destination prefix> that override ECMP, which stays as the fallback. That granularity is also its
limit: all flows of one source NIC to one destination prefix share a path. While the fabric can
carry every NIC at line rate, every demand finds a path of its own and nothing collides. When
failures push the capacity below that, a demand that no single path can carry is not split, whereas
E-ECMP spreads the QPs of a source over several paths.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import Field

from controllers.entries import Entry
from controllers.flows import Flow
from controllers.schemes.base import RoutingView, override, register_scheme, route, to_switch
from controllers.schemes.ecmp import Ecmp, EcmpParameters
from testbed.topology import Interface, Topology
from testbed.units import Duration


class Granularity(StrEnum):
    """What shares a path: flows of one source NIC to one prefix, or to one NIC."""

    PREFIX = "prefix"
    NIC = "nic"


class TeParameters(EcmpParameters):
    """How often and how finely the controller places traffic; the rest is for the fallback."""

    interval: Duration = Field(30.0, gt=0, description="time between computations (Meta: 30 s)")
    granularity: Granularity = Field(
        Granularity.PREFIX, description="flows of a source NIC to one prefix or NIC share a path"
    )


@dataclass(slots=True)
class Placement:
    """Where the controller has put what.

    ``chosen`` gives by switch, for (ingress port, prefix), the port to send to; ``load`` is by
    interface, in bit/s.
    """

    chosen: dict[str, dict[tuple[int, str], Interface]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    load: dict[str, float] = field(default_factory=lambda: defaultdict(float))


@register_scheme
class TrafficEngineering(Ecmp):
    """Demands in order of size, each on the path whose busiest link is then least loaded."""

    name = "te"
    parameters_type = TeParameters

    _placed: tuple[RoutingView, Placement] | None = None

    @property
    def recompute_interval(self) -> float | None:
        """The ``interval`` parameter."""
        return float(self.parameters.interval)

    def remote_entries(self, view: RoutingView, switch: str) -> Iterable[Entry]:
        """ECMP's entries and, above them, those of the placed demands."""
        single = view.single_nics
        for entry in super().remote_entries(view, switch):
            yield entry
            if entry.match.get("ipv4_dst") in single:
                # a NIC with a way of its own is not where a demand towards its prefix goes
                yield override(entry)
        if self._placed is None or self._placed[0] is not view:
            self._placed = view, self.place(view)
        chosen = self._placed[1].chosen[switch]
        for in_port, prefix in sorted(chosen):
            towards = to_switch(view.topology, chosen[in_port, prefix])
            yield route(view.topology, switch, prefix, towards, in_port=in_port)

    def place(self, view: RoutingView) -> Placement:
        """CSPF over the view's flows."""
        demands: dict[tuple[str, str, str], float] = defaultdict(float)
        for flow, demand in zip(view.flows, demands_of(view.topology, view.flows), strict=True):
            rank = view.topology.rank_of_address(flow.five_tuple.destination_ip)
            nic = view.topology.nic(rank)
            destination = view.destination_of(nic).prefix
            whole = self.parameters.granularity is Granularity.PREFIX
            prefix = destination if whole else f"{nic.address}/32"
            demands[_sender(view.topology, flow), destination, prefix] += demand
        placement = Placement()
        # Largest first, and in the flows' order among equals.
        for key, demand in sorted(demands.items(), key=lambda item: -item[1]):
            _place_demand(view, placement, *key, demand)
        return placement


def demands_of(topology: Topology, flows: Sequence[Flow]) -> list[float]:
    """What every flow would send in bit/s if only the NICs limited it.

    A NIC sends at line rate, shared among its flows in proportion to their bytes (equally if none
    says any); where a receiving NIC would get more than its own line rate, its flows are scaled
    down to that.
    """
    known = any(flow.bytes for flow in flows)
    weights = [float(flow.bytes) if known else 1.0 for flow in flows]
    senders = [_sender(topology, flow) for flow in flows]
    sent: dict[str, float] = defaultdict(float)
    for sender, weight in zip(senders, weights, strict=True):
        sent[sender] += weight
    offered = [
        topology.interfaces[sender].rate * weight / sent[sender] if weight else 0.0
        for sender, weight in zip(senders, weights, strict=True)
    ]
    received: dict[str, float] = defaultdict(float)
    for flow, demand in zip(flows, offered, strict=True):
        received[flow.five_tuple.destination_ip] += demand
    return [
        demand * min(1.0, _line_rate(topology, flow) / received[flow.five_tuple.destination_ip])
        if demand
        else 0.0
        for flow, demand in zip(flows, offered, strict=True)
    ]


def _sender(topology: Topology, flow: Flow) -> str:
    if flow.source_interface:
        return flow.source_interface
    return topology.nic(topology.rank_of_address(flow.five_tuple.source_ip)).name


def _line_rate(topology: Topology, flow: Flow) -> float:
    rank = topology.rank_of_address(flow.five_tuple.destination_ip)
    return sum(nic.rate for nic in topology.nic_ports(rank))


def _place_demand(
    view: RoutingView,
    placement: Placement,
    sender: str,
    destination: str,
    prefix: str,
    demand: float,
) -> None:
    """Put a demand on the path whose busiest link is then least loaded.

    That is a feasible path if there is any, all of them being equally long.
    """
    interfaces = view.topology.interfaces
    ingress = interfaces[interfaces[sender].peer]

    def cost(path: Sequence[Interface]) -> tuple[float, float]:
        use = [(placement.load[port.name] + demand) / port.rate for port in path]
        return max(use, default=0.0), sum(use)

    paths = _paths(view, placement, ingress, destination, prefix)
    best = min(paths, key=cost, default=())
    for port in best:
        placement.load[port.name] += demand
        if len(view.hops[port.node][destination]) > 1:
            placement.chosen[ingress.node][ingress.port, prefix] = port
        ingress = interfaces[port.peer]


def _paths(
    view: RoutingView,
    placement: Placement,
    ingress: Interface,
    destination: str,
    prefix: str,
) -> Iterator[tuple[Interface, ...]]:
    """All shortest paths from a switch's port that agree with what is already placed."""
    ports = view.hops[ingress.node].get(destination, ())
    if not ports:
        yield ()
        return
    fixed = placement.chosen[ingress.node].get((ingress.port, prefix))
    for port in ports if fixed is None else (fixed,):
        beyond = view.topology.interfaces[port.peer]
        for rest in _paths(view, placement, beyond, destination, prefix):
            yield (port, *rest)
