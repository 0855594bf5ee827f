"""Flows as a drawing shows them, and what its title says of them. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testbed.report.quantities import three_digits
from testbed.topology import Topology
from testbed.topology.layout import networks_without_gpus
from testbed.topology.wiring import uplinks


@dataclass(frozen=True, slots=True)
class DrawnFlow:
    """A flow and the ways it may take, each a sequence of transmitting interfaces."""

    label: str
    ways: tuple[tuple[str, ...], ...]


def link_loads(flows: Sequence[DrawnFlow]) -> dict[str, float]:
    """Transmitting interface -> flows that it carries; a flow of n ways counts 1/n on each."""
    loads: dict[str, float] = defaultdict(float)
    for flow in flows:
        for way in flow.ways:
            for name in way:
                loads[name] += 1 / len(flow.ways)
    return dict(loads)


def finding(topology: Topology, flows: Sequence[DrawnFlow]) -> str:
    """One sentence: how evenly the flows use the links between the tiers."""
    loads = link_loads(flows)
    crossed = {topology.interfaces[name].node for name in loads}
    idle = networks_without_gpus(topology)
    if idle & crossed:
        idle = frozenset()
    ups = [name for name in uplinks(topology, 1) if topology.interfaces[name].node not in idle]
    one = len(flows) == 1
    count = f"{len(flows)} flow{'' if one else 's'}"
    if not flows:
        return summary(topology)
    if not ups:
        return f"{count} through switches that have no uplinks{_busiest_receiver(topology, loads)}"
    used = [loads[name] for name in ups if name in loads]
    if not used:
        where = "stays below its leaf" if one else "stay below their leaves"
        return f"{count} {where}; none of {len(ups)} uplinks is used"
    spread = any(len(flow.ways) > 1 for flow in flows)
    verb = "may take" if spread else "uses" if one else "use"
    text = f"{count} {verb} {len(used)} of {len(ups)} uplinks"
    if not one:
        text += f"; the busiest carries {number_of(max(used))}"
        down = max(loads.get(topology.interfaces[name].peer, 0.0) for name in ups)
        if down > max(used) + 1e-6:
            text += f", the busiest downlink to a leaf {number_of(down)}"
        text += " on average" if spread else ""
        text += _busiest_receiver(topology, loads, above=max(down, *used))
    cores = uplinks(topology, 2)
    if cores:
        text += f"; {sum(name in loads for name in cores)} of {len(cores)} links to the cores"
        text += " can be used" if spread else " are used"
    return text


def _busiest_receiver(topology: Topology, loads: Mapping[str, float], *, above: float = 1.0) -> str:
    """Says so where more flows meet at one NIC than on any link between switches."""
    last = {
        rank.rank: sum(loads.get(port.peer, 0.0) for port in topology.nic_ports(rank.rank))
        for rank in topology.ranks
    }
    rank = max(last, key=last.__getitem__)
    return f"; {number_of(last[rank])} end at rank {rank}" if last[rank] > above + 1e-6 else ""


def number_of(load: float) -> str:
    """A number of flows as people read it; parts of flows have three digits."""
    nearest = round(load)
    return str(nearest) if math.isclose(load, nearest, abs_tol=1e-6) else three_digits(load)


def summary(topology: Topology) -> str:
    """The topology's name, and how much of everything it has."""
    counts = (
        (len(topology.gpu_ranks), "GPU", "GPUs"),
        (len(topology.servers), "server", "servers"),
        (len(topology.switches), "switch", "switches"),
        (len(topology.interfaces) // 2, "link", "links"),
    )
    words = (f"{count} {one if count == 1 else many}" for count, one, many in counts)
    return f"{topology.name}: {', '.join(words)}"
