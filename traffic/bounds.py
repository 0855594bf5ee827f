"""Completion times that no network can beat, to hold measured ones against. Pure arithmetic."""

from __future__ import annotations

import math

from traffic.codec import FRAME_OVERHEAD
from traffic.plan import Op, OpKind, Plan
from traffic.schedule import execution_order, match_messages

ETHERNET_OVERHEAD = FRAME_OVERHEAD
"""Preamble and start 8, frame check sequence 4, gap 12 bytes (IEEE 802.3)."""

PACKET_HEADERS = 14 + 20 + 8 + 12 + 4
"""Ethernet, IPv4, UDP, BTH and ICRC, in bytes."""

_RETH = 16
_IMMEDIATE = 4


def wire_bytes(op: Op, path_mtu: int) -> int:
    """Bytes that a SEND's message occupies on a link, all headers, pad and gaps included."""
    packets = max(1, math.ceil(op.length / path_mtu))
    total = op.length + (-op.length) % 4 + packets * (PACKET_HEADERS + ETHERNET_OVERHEAD)
    if op.operation is not None:
        total += _RETH * op.operation.is_write + _IMMEDIATE * op.operation.has_immediate
    return total


def payload_rate(link_rate: float, path_mtu: int) -> float:
    """Payload in bit/s of a link of ``link_rate`` bit/s that carries full middle packets only."""
    return link_rate * path_mtu / (path_mtu + PACKET_HEADERS + ETHERNET_OVERHEAD)


def lower_bound(
    plan: Plan, *, link_rate: float, path_mtu: int = 4096, latency: float = 0.0
) -> float:
    """Seconds of emulated time before which the last byte cannot have arrived.

    The larger of two bounds: the busiest direction of any NIC, at ``link_rate`` bit/s, and the
    longest chain of dependent messages, each delayed by ``latency`` seconds. Acknowledgements,
    the fabric's own bottlenecks and the time of reductions are left out.
    """
    per_byte = 8 / link_rate
    return max(
        _busiest_nic(plan, per_byte, path_mtu, latency),
        _longest_chain(plan, per_byte, path_mtu, latency),
    )


def _busiest_nic(plan: Plan, per_byte: float, path_mtu: int, latency: float) -> float:
    busy: dict[tuple[str, int], float] = {}
    begin: dict[tuple[str, int], float] = {}
    for op in (op for ops in plan.ops for op in ops if op.kind is OpKind.SEND):
        connection = plan.connections[op.connection]
        sides = ("transmit", connection.source_rank), ("receive", connection.destination_rank)
        for side in sides:
            busy[side] = busy.get(side, 0.0) + wire_bytes(op, path_mtu) * per_byte
            begin[side] = min(begin.get(side, math.inf), op.start)
    return max((begin[side] + busy[side] + latency for side in busy), default=0.0)


def _longest_chain(plan: Plan, per_byte: float, path_mtu: int, latency: float) -> float:
    partner = match_messages(plan)
    arrival: dict[tuple[int, int], float] = {}
    for key in execution_order(plan):
        op = plan.ops[key[0]][key[1]]
        needed = [arrival[op.rank, other] for other in op.depends_on]
        if key in partner:
            needed.append(arrival[partner[key]])
        finish = max(needed, default=0.0)
        if op.kind is OpKind.SEND:
            finish = max(finish, op.start) + wire_bytes(op, path_mtu) * per_byte + latency
        arrival[key] = finish
    return max(arrival.values(), default=0.0)
