"""The UDP source ports of a queue pair's requests: which there are, and whose turn it is.

A fabric hashes the source port, so a NIC that changes it moves packets to other paths. RoCEv2
gives it no other meaning (IBTA annex A17). All ports follow from the plan's seed, so that every
path that a packet may take can be predicted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from traffic.plan import Connection, Plan, SourcePortPolicy
from traffic.plan_builder import draw, source_port_of


def possible_source_ports(
    plan: Plan, connection: Connection, *, reverse: bool = False
) -> tuple[int, ...]:
    """Every UDP source port of a connection's requests, in the order in which they are used.

    The first is ``connection.source_port``. Acknowledgements (``reverse``) have one port only.
    """
    if reverse:
        return (connection.reverse_source_port,)
    scaling = plan.qp_scaling
    ports = [connection.source_port]
    if not scaling.source_port_policy.cycles:
        return tuple(ports)
    attempt = 0
    while len(ports) < scaling.source_ports:
        labels = connection.source_rank, connection.source_qp_num, attempt
        port = source_port_of(draw(plan.seed, "port", "cycle", *labels))
        if port not in ports:
            ports.append(port)
        attempt += 1
    return tuple(ports)


class SourcePortCycle:
    """Takes the ports in turn: the next one for every packet, or after an idle gap.

    ``gap`` is in seconds of emulated time, 0 for every packet.
    """

    __slots__ = ("_gap", "_last", "_ports", "_turn")

    def __init__(self, ports: Sequence[int], gap: float) -> None:
        self._ports = tuple(ports)
        self._gap = gap
        self._last = -math.inf
        self._turn = -1

    def next(self, now: float) -> int:
        """The port of the packet that is sent now."""
        if now - self._last >= self._gap:
            self._turn = (self._turn + 1) % len(self._ports)
        self._last = now
        return self._ports[self._turn]


def source_port_cycle(plan: Plan, connection: Connection) -> SourcePortCycle | None:
    """The cycle of a connection's requests; None if they have one port only."""
    scaling = plan.qp_scaling
    if not scaling.source_port_policy.cycles:
        return None
    per_packet = scaling.source_port_policy is SourcePortPolicy.PER_PACKET
    gap = 0.0 if per_packet else scaling.flowlet_gap
    return SourcePortCycle(possible_source_ports(plan, connection), gap)
