"""Planning at full size: fabrics, patterns, link loads against the balls-in-bins oracle, cost."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest

from controllers.planning import catalogue
from controllers.planning.fabric import ArrayFabric, from_topology
from controllers.planning.flows import PATTERNS, FlowArrays, make_flows
from controllers.planning.placement import RoutedFabric
from controllers.planning.schemes import create_planner
from controllers.planning.study import (
    Question,
    Statistic,
    Summary,
    draw_live_links,
    judge,
    study,
)
from testbed.topology import create_topology

RATE = 400e9

SAME = {
    "leaf-spine": (
        {"leaves": 4, "spines": 3, "servers_per_leaf": 2, "gpus_per_server": 2},
        lambda: catalogue.leaf_spine(
            "leaf-spine", leaves=4, spines=3, gpus_per_leaf=4, gpus_per_server=2
        ),
    ),
    "three-tier": (
        {
            "zones": 3, "leaves": 2, "spines": 2, "cores": 4, "servers_per_leaf": 2,
            "gpus_per_server": 1, "spine_oversubscription": 0.5,
        },
        lambda: catalogue.three_tier(
            "three-tier", zones=3, leaves=2, spines=2, cores=4, gpus_per_leaf=2, gpus_per_server=1
        ),
    ),
    "rail-optimised": (
        {"pods": 3, "servers_per_pod": 2, "gpus_per_server": 4, "spines": 2},
        lambda: catalogue.rail_optimised(
            "rail-optimised", units=3, servers_per_unit=2, spines=2, rails=4
        ),
    ),
    "hpn": (
        {
            "pods": 2, "segments": 2, "servers_per_segment": 4, "gpus_per_server": 2, "spines": 4,
            "cores": 2, "tor_oversubscription": 1.0, "core_oversubscription": 4.0,
        },
        lambda: catalogue.hpn(
            "hpn", pods=2, segments=2, servers_per_segment=4, spines=2, cores=1, rails=2
        ),
    ),
}  # fmt: skip
"""Parameters of a topology, and the arrays that should be the same fabric."""


@pytest.mark.parametrize("name", SAME)
def test_full_size_families_are_the_topologies_in_arrays(name: str) -> None:
    parameters, make = SAME[name]
    expected, built = from_topology(create_topology(name, **parameters)), make()
    for field in dataclasses.fields(ArrayFabric):
        a, b = getattr(expected, field.name), getattr(built, field.name)
        if field.name in ("up_rates", "down_rates"):
            np.testing.assert_allclose(a / a.max(), b / b.max(), err_msg=field.name)
        else:
            assert np.array_equal(a, b), field.name


@pytest.mark.parametrize("name", catalogue.CATALOGUE)
def test_published_sizes(name: str) -> None:
    full = catalogue.CATALOGUE[name]
    fabric = catalogue.create_fabric(name, full.limit)
    assert fabric.nics == full.limit
    assert len(set(fabric.addresses.tolist())) == fabric.nics
    ports = np.bincount(np.concatenate([fabric.lower, fabric.upper, fabric.nic_leaves.ravel()]))
    assert ports.max() <= catalogue.PORT_LIMIT
    leaf = fabric.tiers == 1
    down = np.bincount(fabric.nic_leaves.ravel(), minlength=fabric.switches)
    up = np.bincount(fabric.lower, minlength=fabric.switches)
    ratio = (down * fabric.nic_rates[0])[leaf] / (up * RATE)[leaf]
    expected = {"meta-dc": 16 / 18, "meta-ai-zone": 16 / 18, "hpn7-pod": 16 / 15, "hpn7": 16 / 15}
    np.testing.assert_allclose(ratio, expected.get(name, 1.0))
    with pytest.raises(ValueError, match=f"takes 2 to {full.limit}"):
        catalogue.create_fabric(name, full.limit + 1)


def test_unknown_fabric() -> None:
    with pytest.raises(ValueError, match="'torus' has no full size; allowed: meta-dc,"):
        catalogue.create_fabric("torus", 64)


def question(
    fabric: ArrayFabric, pattern: str, *, qps: int = 1, seeds: Sequence[int] = (0,)
) -> Question:
    gpus = fabric.nics
    return Question(
        fabric, lambda seed: make_flows(fabric, pattern, gpus=gpus, qps=qps, seed=seed), seeds=seeds
    )


def small() -> ArrayFabric:
    return catalogue.leaf_spine(
        "small", leaves=8, spines=4, gpus_per_leaf=8, gpus_per_server=4, rate=RATE
    )


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_gpu_sends_once_and_receives_once(pattern: str) -> None:
    flows = make_flows(small(), pattern, gpus=64, seed=5)
    assert sorted(flows.sources.tolist()) == sorted(flows.destinations.tolist()) == [*range(64)]
    assert (flows.sources != flows.destinations).all()
    assert (flows.rates == RATE).all()


def test_rings_go_round_servers_that_a_job_has_in_part() -> None:
    for seed in range(5):
        flows = make_flows(small(), "scattered-ring", gpus=62, seed=seed)
        assert sorted(flows.destinations.tolist()) == flows.sources.tolist() == [*range(62)]
        assert (flows.sources % 4 == flows.destinations % 4).all()


@pytest.mark.parametrize("pattern", ["ring", "scattered-ring", "all-reduce"])
def test_rings_stay_on_their_rail(pattern: str) -> None:
    flows = make_flows(small(), pattern, gpus=64, seed=5)
    assert (flows.sources % 4 == flows.destinations % 4).all()
    assert (flows.sources // 4 != flows.destinations // 4).all()


def test_a_ring_in_order_reaches_the_next_server() -> None:
    flows = make_flows(small(), "ring", gpus=64)
    assert ((flows.sources + 4) % 64 == flows.destinations).all()


def test_queue_pairs_share_the_rate_and_one_source_port_unless_told_otherwise() -> None:
    one = make_flows(small(), "permutation", gpus=64, qps=4, seed=1)
    each = make_flows(small(), "permutation", gpus=64, qps=4, port_per_qp=True, seed=1)
    for flows in (one, each):
        assert len(flows) == 256
        assert (flows.rates == RATE / 4).all()
        assert len(set(zip(flows.destinations, flows.destination_qps, strict=True))) == 256
        assert (flows.source_ports >= 49152).all()
        assert (flows.source_ports < 65536).all()
    ports = [len(set(f.source_ports[f.connections == 0].tolist())) for f in (one, each)]
    assert ports == [1, 4]


def test_queue_pairs_alternate_between_the_ports_of_a_nic() -> None:
    fabric = catalogue.hpn("hpn", segments=2, servers_per_segment=4, spines=2, rails=2)
    flows = make_flows(fabric, "shift", gpus=fabric.nics, qps=4)
    by_connection = flows.nic_ports.reshape(-1, 4)
    assert (by_connection.sum(axis=1) == 2).all()
    assert (flows.rates == RATE / 4).all()


@pytest.mark.parametrize(
    ("gpus", "pattern", "message"),
    [
        (64, "ribbon", "pattern 'ribbon' is unknown; allowed: permutation, ring,"),
        (1, "ring", "1 GPUs: small has 64"),
        (4, "ring", "ring of 4 GPUs stays within a server of 4: allowed: more GPUs"),
        (65, "ring", "65 GPUs: small has 64"),
    ],
)
def test_flows_that_cannot_be(gpus: int, pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_flows(small(), pattern, gpus=gpus)


def bundle(fabric: ArrayFabric, flows: int, random: np.random.Generator) -> FlowArrays:
    """Equal flows from the NICs of leaf 1 to those of leaf 2, with source ports at random."""
    return FlowArrays(
        sources=np.arange(flows),
        destinations=np.arange(flows, 2 * flows),
        nic_ports=np.zeros(flows, dtype=np.int64),
        source_ports=random.integers(49152, 65536, flows),
        destination_qps=random.integers(2, 1 << 24, flows),
        rates=np.ones(flows),
        connections=np.arange(flows),
    )


@pytest.mark.parametrize("scheme", ["ecmp", "e-ecmp"])
@pytest.mark.parametrize(
    ("flows", "links", "expected"),
    [(64, 16, 1.974), (16, 16, 3.087), (32, 4, 1.371), (8, 4, 1.776)],
)
def test_busiest_over_mean_load_is_that_of_balls_in_bins(
    scheme: str, flows: int, links: int, expected: float
) -> None:
    """Expected maximum over mean of uniform hashing, by Monte Carlo over 2000 trials."""
    fabric = catalogue.leaf_spine("two leaves", leaves=2, spines=links, gpus_per_leaf=flows)
    routed = RoutedFabric.of(fabric)
    ratios = []
    for seed in range(200):
        sent = bundle(fabric, flows, np.random.default_rng(seed))
        loads = create_planner(scheme, seed=seed).place(routed, sent).loads[:links]
        assert loads.sum() == flows
        ratios.append(loads.max() / loads.mean())
    assert np.mean(ratios) == pytest.approx(expected, rel=0.05)


def test_more_queue_pairs_help_e_ecmp_but_not_ecmp_on_one_source_port() -> None:
    fabric = small()
    slowdown = {
        (summary.scheme, qps): summary.slowdown.mean
        for qps in (1, 16)
        for summary in study(
            ["ecmp", "e-ecmp"],
            question(fabric, "shift", qps=qps, seeds=range(10)),
        )
    }
    assert slowdown["ecmp", 16] == slowdown["ecmp", 1]
    assert slowdown["e-ecmp", 16] < 0.7 * slowdown["e-ecmp", 1]


def test_te_is_even_at_full_capacity_and_ecmp_is_not() -> None:
    ecmp, te = study(["ecmp", "te"], question(small_non_blocking(), "shift", seeds=range(5)))
    assert te.slowdown == Statistic(1.0, 1.0)
    assert [layer.ratio.p99 for layer in te.layers] == [1.0, 1.0]
    assert ecmp.slowdown.mean > 2


def small_non_blocking() -> ArrayFabric:
    return catalogue.leaf_spine("1:1", leaves=8, spines=8, gpus_per_leaf=8, gpus_per_server=4)


def test_static_never_collides_on_the_last_hop_of_three_tiers() -> None:
    """The destinations below a leaf come down through different spines."""
    fabric = catalogue.three_tier("3", zones=2, leaves=4, spines=4, cores=4, gpus_per_leaf=4)
    (static,) = study(["static"], question(fabric, "permutation", seeds=range(5)))
    assert static.layers[-1].name == "spine to leaf"
    assert static.layers[-1].most.p99 == 1.0


def test_path_pinning_uses_every_core() -> None:
    """Above the leaves there are no slices: there the destination's leaf decides."""
    fabric = catalogue.three_tier("3", zones=2, leaves=4, spines=4, cores=4, gpus_per_leaf=4)
    (pinned,) = study(["path-pinning"], question(fabric, "shift"))
    assert [layer.name for layer in pinned.layers][1] == "spine to core"
    assert [layer.idle for layer in pinned.layers] == [0.0] * 4
    assert pinned.slowdown.mean == 1.0


def test_figures_of_a_placement_by_hand() -> None:
    """Three flows over the same uplink, one within the leaf."""
    fabric = catalogue.leaf_spine("hand", leaves=2, spines=2, gpus_per_leaf=4, gpus_per_server=1)
    flows = FlowArrays(
        sources=np.array([0, 1, 2, 3]),
        destinations=np.array([4, 6, 5, 0]),
        nic_ports=np.zeros(4, dtype=np.int64),
        source_ports=np.full(4, 50_000),
        destination_qps=np.arange(4),
        rates=np.array([RATE, RATE, RATE / 2, RATE]),
        connections=np.arange(4),
    )
    # D-mod-K: NICs 4 and 6 are even and share spine 1, NIC 5 has spine 2.
    # Nothing leaves the second leaf, and nothing enters the first from above.
    routed = RoutedFabric.of(fabric)
    outcome = judge(create_planner("static").place(routed, flows), routed)
    up, down = outcome.layers
    assert (up.name, up.links, up.mean, up.most, up.idle) == ("leaf to spine", 2, 1.25, 2.0, 0)
    assert (down.name, down.links, down.mean, down.most) == ("spine to leaf", 2, 1.25, 2.0)
    assert up.ratio == 1.6
    assert outcome.slowdown == 2.0
    assert outcome.connection_slowdown == (2 + 2 + 1 + 1) / 4
    assert outcome.even_slowdown == 1.25
    assert outcome.lost == 0


def test_a_leaf_cut_off_loses_its_flows_and_nothing_else() -> None:
    fabric = small()
    live = fabric.lower != 0
    flows = make_flows(fabric, "shift", gpus=64)
    routed = RoutedFabric.of(fabric).with_live(live)
    placement = create_planner("ecmp").place(routed, flows)
    cut_off = (flows.sources < 8) | (flows.destinations < 8)
    assert (placement.lost == cut_off).all()
    outcome = judge(placement, routed)
    assert outcome.lost == 16 / 64
    assert placement.loads[: fabric.links][~live].sum() == 0
    assert outcome.layers[0].mean == 48 / (6 * 4)  # the leaf's partner has nothing to send up


@pytest.mark.parametrize("scheme", ["ecmp", "e-ecmp", "te", "spray"])
def test_a_job_on_a_part_of_a_fabric_has_the_figures_of_that_part(scheme: str) -> None:
    """Links that none of its flows may take say nothing about how evenly it is spread."""
    whole, part = (
        catalogue.leaf_spine("any", leaves=leaves, spines=4, gpus_per_leaf=8, rate=RATE)
        for leaves in (8, 2)
    )
    figures = []
    for fabric in (whole, part):
        flows = make_flows(fabric, "shift", gpus=16, qps=4, seed=3)
        routed = RoutedFabric.of(fabric)
        figures.append(judge(create_planner(scheme, seed=3).place(routed, flows), routed))
    assert figures[0] == figures[1]
    assert [layer.links for layer in figures[0].layers] == [8, 8]


def test_a_layer_that_no_flow_may_take_has_no_load() -> None:
    fabric = catalogue.three_tier("3", zones=2, leaves=2, spines=2, cores=2, gpus_per_leaf=8)
    routed = RoutedFabric.of(fabric)
    flows = make_flows(fabric, "shift", gpus=16)
    layers = judge(create_planner("ecmp").place(routed, flows), routed).layers
    assert [(layer.name, layer.links) for layer in layers] == [
        ("leaf to spine", 4), ("spine to core", 0), ("core to spine", 0), ("spine to leaf", 4),
    ]  # fmt: skip
    assert [layer.mean > 0 for layer in layers] == [True, False, False, True]


def test_failed_links_are_drawn_by_seed() -> None:
    fabric = small()
    draws = [draw_live_links(fabric, 0.25, seed) for seed in (1, 1, 2)]
    assert [int((~live).sum()) for live in draws] == [8, 8, 8]
    assert (draws[0] == draws[1]).all()
    assert (draws[0] != draws[2]).any()
    assert draw_live_links(fabric, 0.0, 1).all()


def test_progress_reaches_the_end_once() -> None:
    told: list[float] = []
    found = study(
        ["ecmp", "static"], question(small(), "ring", seeds=range(3)), progress=told.append
    )
    assert told == [pytest.approx(step / 6) for step in range(1, 7)]
    assert [summary.scheme for summary in found] == ["ecmp", "static"]
    assert all(isinstance(summary, Summary) for summary in found)


def test_a_scheme_that_cannot_be_planned() -> None:
    with pytest.raises(ValueError, match="'flowlet' cannot be planned at this scale; allowed: "):
        create_planner("flowlet")


def test_16384_gpus_fit_into_4_gigabytes() -> None:
    """Every scheme on the largest kind of fabric, one flow each; in a process of its own."""
    program = (
        "import resource\n"
        "from controllers.planning.catalogue import create_fabric\n"
        "from controllers.planning.flows import make_flows\n"
        "from controllers.planning.study import Question, study\n"
        "found = []\n"
        "for topology, schemes in [\n"
        "    ('meta-dc', ['ecmp', 'e-ecmp', 'path-pinning', 'spray', 'static']),\n"
        "    ('spectrum-x-like', ['te']),\n"
        "]:\n"
        "    fabric = create_fabric(topology, 16384)\n"
        "    flows = make_flows(fabric, 'permutation', gpus=16384)\n"
        "    found += study(schemes, Question(fabric, lambda seed: flows))\n"
        "assert all(summary.layers[0].mean > 0.4 for summary in found)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout
    assert int(output) < 4e9
