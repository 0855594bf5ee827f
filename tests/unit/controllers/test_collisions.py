"""Flows on equal links: what hashing costs, against balls thrown into bins.

The expected max/mean ratios are those of a uniform hash (Monte Carlo over 2000 trials); 1000 flows
on 16 links give 1.228, which agrees with Meta's "> 1.2" (SIGCOMM'24).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from statistics import mean

import pytest

from controllers.flows import Flow
from controllers.hashing import FiveTuple
from controllers.schemes import RoutingScheme, create_scheme
from controllers.table import FabricTables
from testbed.topology import Topology

Build = Callable[..., Topology]

BALLS_IN_BINS = {(64, 16): 1.974, (16, 16): 3.087, (32, 4): 1.371, (8, 4): 1.776}
"""(flows, links) -> expected max/mean load."""

SEEDS = 200
"""One standard error of the mean ratio is then below 1.9 % of it."""


def uplink(tables: FabricTables, scheme: RoutingScheme, topology: Topology, flow: Flow) -> str:
    leaf = topology.interfaces[flow.source_interface].peer_node
    return tables.path_of(flow, scheme.label(topology, leaf, flow))[1]


def flow(topology: Topology, pair: int, *, port: int, qp: int) -> Flow:
    """A flow of the pair-th NIC of the first leaf to its counterpart below the second."""
    below = len(topology.ranks) // 2
    nic, peer = topology.nic(pair % below), topology.nic(below + pair % below)
    return Flow(FiveTuple(nic.address, peer.address, port), qp, nic.name)


@pytest.mark.parametrize("scheme_name", ["ecmp", "e-ecmp"])
@pytest.mark.parametrize(("flows", "links"), BALLS_IN_BINS)
def test_busiest_link_is_that_of_balls_in_bins(
    family: Build, scheme_name: str, flows: int, links: int
) -> None:
    """ECMP by source ports, E-ECMP by queue pair numbers with one source port for all."""
    topology = family("leaf-spine", leaves=2, spines=links, servers_per_leaf=min(flows, 16))
    generator = random.Random(flows)
    ratios = []
    for seed in range(SEEDS):
        scheme = create_scheme(scheme_name, seed=seed)
        tables = FabricTables(topology, scheme.entries(topology))
        loads: Counter[str] = Counter()
        for number in range(flows):
            drawn = generator.randrange(1 << 14)
            port, qp = (49152 + drawn, 17) if scheme_name == "ecmp" else (50000, drawn)
            each = flow(topology, number, port=port, qp=qp)
            loads[uplink(tables, scheme, topology, each)] += 1
        ratios.append(max(loads.values()) * links / flows)
    assert mean(ratios) == pytest.approx(BALLS_IN_BINS[flows, links], rel=0.05)


def test_ecmp_sees_xor_of_addresses_and_of_ports_only(family: Build) -> None:
    """Open vSwitch's symmetric hash: pairs whose addresses differ alike need different ports.

    NICs of one slot below two leaves have addresses with the same XOR, so with one source port all
    flows between the leaves, slot to slot, collide. E-ECMP's hash tells them apart.
    """
    topology = family("leaf-spine", leaves=2, spines=4, servers_per_leaf=16)

    def uplinks(scheme_name: str) -> int:
        scheme = create_scheme(scheme_name, seed=1)
        tables = FabricTables(topology, scheme.entries(topology))
        flows = [flow(topology, pair, port=50000, qp=17) for pair in range(16)]
        return len({uplink(tables, scheme, topology, each) for each in flows})

    assert uplinks("ecmp") == 1
    assert uplinks("e-ecmp") == 4


PAIRS, QPS, LINKS = 400, 8, 4


def qps_by_uplink(topology: Topology, scheme_name: str) -> list[Counter[str]]:
    """For each of many pairs, over as many seeds, how many of its 8 QPs take which uplink.

    All QPs of a pair have one source port, and consecutive numbers as a NIC gives them.
    """
    generator = random.Random(8)
    counts = []
    for pair in range(PAIRS):
        scheme = create_scheme(scheme_name, seed=pair)
        tables = FabricTables(topology, scheme.entries(topology))
        port, first = 49152 + generator.randrange(1 << 14), generator.randrange(1 << 23)
        qps = [flow(topology, pair, port=port, qp=first + number) for number in range(QPS)]
        counts.append(Counter(uplink(tables, scheme, topology, each) for each in qps))
    return counts


def test_queue_pairs_of_one_source_port_share_a_path_under_ecmp(family: Build) -> None:
    topology = family("leaf-spine", leaves=2, spines=LINKS, servers_per_leaf=4)
    assert all(len(count) == 1 for count in qps_by_uplink(topology, "ecmp"))


def test_queue_pairs_spread_binomially_under_e_ecmp(family: Build) -> None:
    """Each QP takes an uplink of 4 with probability 1/4, independently of the others.

    Over 400 pairs of 8 QPs an uplink carries binomial(3200, 1/4): 800, deviation 24.5; the bound is
    four deviations. A pair uses 4 (1 - (3/4)^8) = 3.60 uplinks on average, and the share of its
    pairs with k QPs on a given uplink is binomial(8, 1/4) at k.
    """
    topology = family("leaf-spine", leaves=2, spines=LINKS, servers_per_leaf=4)
    counts = qps_by_uplink(topology, "e-ecmp")
    total: Counter[str] = sum(counts, Counter())
    expected = PAIRS * QPS / LINKS
    bound = 4 * math.sqrt(PAIRS * QPS * (1 / LINKS) * (1 - 1 / LINKS))
    assert len(total) == LINKS
    assert all(abs(carried - expected) < bound for carried in total.values())

    used = [len(count) for count in counts]
    assert mean(used) == pytest.approx(LINKS * (1 - (1 - 1 / LINKS) ** QPS), abs=0.11)

    for qps in range(6):
        probability = math.comb(QPS, qps) * 0.25**qps * 0.75 ** (QPS - qps)
        seen = sum(count[link] == qps for count in counts for link in total)
        trials = PAIRS * LINKS
        deviation = math.sqrt(trials * probability * (1 - probability))
        assert abs(seen - trials * probability) < 4 * deviation
