"""Completion times that no network can beat, to hold measured ones against. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass

from traffic.codec import FRAME_OVERHEAD, PACKET_HEADERS
from traffic.nvlink import NvlinkSettings
from traffic.opcodes import IMMEDIATE_LENGTH, RETH_LENGTH
from traffic.plan import Op, OpKind, Plan
from traffic.schedule import execution_order, match_messages


def message_bytes(length: int, path_mtu: int, extensions: int) -> int:
    """Bytes that a message occupies on a link: pad, and headers and gap of every packet, included.

    ``extensions`` are the bytes of headers that it has once, RETH and immediate data.
    """
    packets = max(1, math.ceil(length / path_mtu))
    return length + -length % 4 + packets * (PACKET_HEADERS + FRAME_OVERHEAD) + extensions


def wire_bytes(op: Op, path_mtu: int) -> int:
    """Bytes that a SEND's message occupies on a link."""
    extensions = 0
    if op.operation is not None:
        extensions += RETH_LENGTH * op.operation.is_write
        extensions += IMMEDIATE_LENGTH * op.operation.has_immediate
    return message_bytes(op.length, path_mtu, extensions)


def payload_rate(link_rate: float, path_mtu: int) -> float:
    """Payload in bit/s of a link of ``link_rate`` bit/s that carries full middle packets only."""
    return link_rate * path_mtu / (path_mtu + PACKET_HEADERS + FRAME_OVERHEAD)


def lower_bound(
    plan: Plan,
    *,
    link_rate: float,
    path_mtu: int = 4096,
    latency: float = 0.0,
    nvlink: NvlinkSettings | None = None,
    compute: bool = True,
) -> float:
    """Seconds of emulated time before which the last operation cannot be complete.

    The larger of two bounds: the busiest direction of any NIC, at ``link_rate`` bit/s, and the
    longest chain of dependent operations: messages, each delayed by ``latency`` seconds, those on
    NVLink (``nvlink``, by default the usual one) and computations, unless ``compute`` says that
    they take no time. Acknowledgements, the fabric's own bottlenecks and the time of reductions
    are left out.
    """
    per_byte = 8 / link_rate
    chain = _Chain(plan, per_byte, path_mtu, latency, nvlink or NvlinkSettings(), compute)
    return max(_busiest_nic(plan, per_byte, path_mtu, latency), chain.longest())


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


@dataclass(frozen=True, slots=True)
class _Chain:
    """Operations that wait for each other."""

    plan: Plan
    per_byte: float
    path_mtu: int
    latency: float
    nvlink: NvlinkSettings
    compute: bool

    def longest(self) -> float:
        """When the last operation is complete if nothing competes for anything."""
        partner = match_messages(self.plan)
        finished = [[0.0] * len(ops) for ops in self.plan.ops]
        latest = 0.0
        for key in execution_order(self.plan):
            rank, op_id = key
            op, own = self.plan.ops[rank][op_id], finished[rank]
            finish = 0.0
            for other in op.depends_on:
                finish = max(finish, own[other])
            if (sender := partner.get(key)) is not None:
                finish = max(finish, finished[sender[0]][sender[1]])
            else:
                finish = max(finish, op.start) + self._duration(op)
            own[op_id] = finish
            latest = max(latest, finish)
        return latest

    def _duration(self, op: Op) -> float:
        match op.kind:
            case OpKind.SEND:
                return wire_bytes(op, self.path_mtu) * self.per_byte + self.latency
            case OpKind.LOCAL_SEND:
                return op.length * 8 / self.nvlink.rate + self.nvlink.latency
            case OpKind.COMPUTE if self.compute:
                return op.duration
        return 0.0
