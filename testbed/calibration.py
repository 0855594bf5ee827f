"""How fast is this machine, and which dilation does a plan need on it?

A short measurement times the hottest work of the run, building and checking one 4 KiB packet. The
other costs per packet are known multiples of it: they were measured side by side on one machine,
and all of them scale with the speed of a core. The verdict on the run checks the choice.
"""

from __future__ import annotations

import math
import os
import time
import zlib

from testbed.topology import Topology
from traffic.bounds import lower_bound, wire_bytes
from traffic.plan import OpKind, Plan

MEASUREMENT_TIME = 0.05
"""Wall seconds."""

REFERENCE_SECONDS = 1.28e-6
"""The measured unit, a copy and a CRC-32 of 4 KiB, on the machine of the costs below."""

SEND_COST, RECEIVE_COST, HOP_COST = 51e-6, 38e-6, 14e-6
"""Seconds of CPU per packet on that machine: NIC send, NIC receive with its share of the ACKs, one
switch. Measured by tests.bench.costs in whole runs of eight servers over three hops at about the
dilation chosen here, system time included, on two cores that had other work beside. They depend on
the load: a process that wakes up for a single packet finds cold caches, and needs for it six times
what it needs in a batch (14 us for sending and receiving, tests.bench.endpoint)."""

UTILISATION = 0.66
"""Share of all cores that the traffic may need on average, at those costs; it needs less for each
packet when it comes to more, so this is no saturation yet."""

SHARED_MARGIN = 1.25
"""What the dilation is multiplied by, for the load's sake, where many variants have one in common:
the worst of them decides on the verdict. A single long one is as slow as it needs to be on
average."""

WAKEUP_LATENCY = 0.005
"""Wall seconds by which a process may be late on a loaded machine."""

WALL_BUDGET = 2.0
"""Wall seconds that a variant may take at its best. A short one is slowed down more than it must
be, which makes every delay of this machine smaller in emulated time."""

MOST_EXTRA = 4.0
"""By how much at most."""

RTT_SHARE = 0.1
"""The share of the base RTT that such a delay may be (testbed.fidelity judges by it)."""


def measure_unit() -> float:
    """Seconds of the unit of work on this machine, the best of many."""
    data = bytes(4096)
    buffer = bytearray(4160)
    best = math.inf
    end = time.perf_counter() + MEASUREMENT_TIME
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(50):
            buffer[54:4150] = data
            zlib.crc32(buffer)
        best = min(best, (time.perf_counter() - start) / 50)
    return best


def nic_rate(topology: Topology, rank: int) -> float:
    """Bit/s of all ports of a rank's NIC together."""
    return sum(port.rate for port in topology.nic_ports(rank))


def cpu_per_emulated_second(plan: Plan, topology: Topology, path_mtu: int) -> float:
    """CPU seconds on the reference machine for one emulated second at full rate.

    Every rank that sends is taken to send at line rate all the time.
    """
    total = 0.0
    for rank in range(plan.world_size):
        sends = [op for op in plan.ops[rank] if op.kind is OpKind.SEND]
        if not sends:
            continue
        packets = sum(max(1, math.ceil(op.length / path_mtu)) for op in sends)
        wire = sum(wire_bytes(op, path_mtu) for op in sends)
        rate = nic_rate(topology, rank) / 8 / (wire / packets)
        hops = [
            topology.switch_hops(rank, plan.connections[op.connection].destination_rank)
            for op in sends
        ]
        mean_hops = sum(hops) / len(hops)
        total += rate * (SEND_COST + RECEIVE_COST + HOP_COST * mean_hops)
    return total


def base_rtt(topology: Topology, plan: Plan) -> float:
    """Round trip of the empty fabric over the longest path that the plan uses, in seconds."""
    hops = max(
        (topology.switch_hops(c.source_rank, c.destination_rank) for c in plan.connections),
        default=1,
    )
    return 2 * topology.one_way_latency(hops)


def fastest_time(plan: Plan, topology: Topology, *, path_mtu: int) -> float:
    """Emulated seconds that the plan takes at least and that are not skipped."""
    # time in which the GPUs compute and nothing is under way is skipped
    return lower_bound(plan, link_rate=nic_rate(topology, 0), path_mtu=path_mtu, compute=False)


def choose_dilation(
    plan: Plan,
    topology: Topology,
    *,
    path_mtu: int,
    unit: float,
    cores: int | None = None,
    others: float = 0.0,
    margin: float = 1.0,
) -> float:
    """The dilation for a machine whose unit takes ``unit`` seconds; two digits, rounded up.

    ``others`` is the ``fastest_time`` of what shares the wall time with this plan. The load may
    be ``margin`` times as much as it is thought to be.
    """
    cores = cores or len(os.sched_getaffinity(0))
    slowness = unit / REFERENCE_SECONDS
    load = margin * cpu_per_emulated_second(plan, topology, path_mtu)
    by_load = load * slowness / (cores * UTILISATION)
    by_latency = WAKEUP_LATENCY * slowness / (RTT_SHARE * base_rtt(topology, plan))
    k = max(by_load, by_latency, 1.0)
    fastest = fastest_time(plan, topology, path_mtu=path_mtu) + others
    if fastest > 0:
        k = max(k, min(MOST_EXTRA * k, WALL_BUDGET / fastest))
    step: float = 10.0 ** (math.floor(math.log10(k)) - 1)
    return math.ceil(round(k / step, 9)) * step
