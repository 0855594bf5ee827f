"""Schemes with labels: a label fixes the path, failures move only what they must, tiers agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from controllers.flows import Flow
from controllers.hashing import FiveTuple
from controllers.labels import SLOTS, LabelMode, make_label
from controllers.routes import LinkState
from controllers.schemes import create_scheme
from controllers.table import BlackHoleError, FabricTables
from testbed.topology import Topology

Build = Callable[..., Topology]

VARYING = ["adaptive", "flowlet", "spray"]


def flow_between(topology: Topology, source: int, destination: int, qp: int = 0) -> Flow:
    nic = topology.nic(source)
    five_tuple = FiveTuple(nic.address, topology.nic(destination).address, 50000)
    return Flow(five_tuple, qp, nic.name)


FABRICS: list[tuple[str, dict[str, object], frozenset[str]]] = [
    ("leaf-spine", {"leaves": 3, "spines": 3}, frozenset()),
    ("leaf-spine", {"leaves": 3, "spines": 3}, frozenset({"leaf1-spine2"})),
    ("three-tier", {"spines": 2, "cores": 4}, frozenset()),
    ("three-tier", {"spines": 2, "cores": 4}, frozenset({"spine1-core1"})),
    ("three-tier", {"spines": 2, "cores": 4}, frozenset({"leaf1-spine1", "spine4-core4"})),
    ("hpn", {"dual_plane": False}, frozenset()),
    ("hpn", {"dual_plane": False}, frozenset({"leaf5-spine1", "rank0-leaf1"})),
    ("hpn7-pod", {}, frozenset({"leaf1-spine1"})),
]


@pytest.mark.parametrize(("kind", "parameters", "failed"), FABRICS)
def test_possible_labels_are_one_for_each_path(
    family: Build, kind: str, parameters: dict[str, object], failed: frozenset[str]
) -> None:
    """Against the paths of all 4096 labels."""
    topology, state = family(kind, **parameters), LinkState(failed)
    schemes = [create_scheme(name, seed=3) for name in VARYING]
    tables = FabricTables(topology, schemes[0].entries(topology, link_state=state))
    sender = next(port for port in topology.nic_ports(0) if state.up(port))
    for destination in (1, len(topology.ranks) - 1):
        flow = flow_between(topology, 0, destination)
        flow = replace(flow, source_interface=sender.name)
        labels, *others = [
            scheme.possible_labels(topology, sender.peer_node, flow, state) for scheme in schemes
        ]
        assert others == [labels, labels]
        paths = [tuple(tables.path_of(flow, label)) for label in labels]
        assert len(set(paths)) == len(paths)
        step = 1 if len(paths) > 1 else 97
        every = {tuple(tables.path_of(flow, label)) for label in range(0, SLOTS**2, step)}
        assert set(paths) == every


def test_a_hash_has_one_label(family: Build) -> None:
    topology = family("three-tier")
    scheme = create_scheme("e-ecmp", seed=3)
    flow = flow_between(topology, 0, len(topology.ranks) - 1, qp=77)
    assert scheme.possible_labels(topology, "leaf1", flow) == (
        scheme.label(topology, "leaf1", flow),
    )
    assert create_scheme("spray").label(topology, "leaf1", flow) is None


@pytest.mark.parametrize("label", [None, 0, 0xFFF, make_label(5, 9)])
def test_labels_never_leave_the_fabric(family: Build, label: int | None) -> None:
    """Whatever the label, on any path, down to the neighbour below the same leaf."""
    for kind in ("three-tier", "hpn7-pod"):
        topology = family(kind)
        tables = FabricTables(topology, create_scheme("e-ecmp").entries(topology))
        for destination in range(1, len(topology.ranks)):
            path = tables.path_of(flow_between(topology, 0, destination), label)
            assert topology.interfaces[path[-1]].peer in topology.ranks[destination].interfaces


def test_a_scheme_without_labels_would_let_one_out(family: Build) -> None:
    topology = family("leaf-spine")
    tables = FabricTables(topology, create_scheme("ecmp").entries(topology))
    with pytest.raises(BlackHoleError, match="with its tag"):
        tables.path_of(flow_between(topology, 0, 4), 9)


def test_a_failed_uplink_moves_only_its_own_slots(family: Build) -> None:
    topology = family("leaf-spine", leaves=3, spines=4, servers_per_leaf=2)
    scheme = create_scheme("e-ecmp")

    def by_slot(state: LinkState) -> list[str]:
        tables = FabricTables(topology, scheme.entries(topology, link_state=state))
        flow = flow_between(topology, 0, 4)
        return [tables.path_of(flow, make_label(slot, 0))[1] for slot in range(SLOTS)]

    before = by_slot(LinkState())
    after = by_slot(LinkState(frozenset({"spine2-leaf3"})))
    moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert {old for old, _ in moved} == {"leaf1-spine2"}
    assert len(moved) == SLOTS // 4
    counts = Counter(new for _, new in moved)
    assert set(counts) == {"leaf1-spine1", "leaf1-spine3", "leaf1-spine4"}
    assert max(counts.values()) - min(counts.values()) <= 1


def test_settings_name_the_live_uplinks_and_their_slots(family: Build) -> None:
    topology = family("leaf-spine", leaves=2, spines=3)
    state = LinkState(frozenset({"leaf1-spine2"}))
    scheme = create_scheme("flowlet", {"gap": "300us", "load_aware": False}, seed=5)
    settings = scheme.label_settings(topology, state)
    assert set(settings) == {"leaf1", "leaf2"}
    leaf = settings["leaf1"]
    assert (leaf.mode, leaf.flowlet_gap, leaf.load_aware) == (LabelMode.FLOWLET, 300e-6, False)
    assert [member.interface for member in leaf.members] == ["leaf1-spine1", "leaf1-spine3"]
    assert leaf.members[1].slots == tuple(range(2, SLOTS, 3))
    # the member table agrees
    tables = FabricTables(topology, scheme.entries(topology, link_state=state))
    for member in leaf.members:
        for slot in member.slots:
            path = tables.path_of(flow_between(topology, 0, 4), make_label(slot, 0))
            assert path[1] == member.interface


def test_modes_and_gaps() -> None:
    assert create_scheme("flowlet").flowlet_gap == 256e-6  # type: ignore[attr-defined]
    assert create_scheme("flowlet").load_aware  # type: ignore[attr-defined]
    assert create_scheme("adaptive").flowlet_gap == 0  # type: ignore[attr-defined]
    assert create_scheme("adaptive").load_aware  # type: ignore[attr-defined]
    assert not create_scheme("spray").load_aware  # type: ignore[attr-defined]


def test_a_single_leaf_needs_no_engine(family: Build) -> None:
    topology = family("leaf-spine", leaves=1, spines=0)
    assert create_scheme("spray").label_settings(topology) == {}
    assert create_scheme("ecmp").label_settings(family("leaf-spine")) == {}


def test_leaves_have_seeds_of_their_own_unless_told_otherwise(family: Build) -> None:
    topology = family("leaf-spine", leaves=4, spines=2)
    own = create_scheme("e-ecmp", seed=1).label_settings(topology).values()
    assert len({seed for leaf in own for seed in (leaf.seed, leaf.upper_seed)}) == 8
    shared = create_scheme("e-ecmp", {"per_switch_seed": False}, seed=1).label_settings(topology)
    assert len({seed for leaf in shared.values() for seed in (leaf.seed, leaf.upper_seed)}) == 1
    other = create_scheme("e-ecmp", {"hash_seed": 2}, seed=1).label_settings(topology)
    same = create_scheme("e-ecmp", seed=2).label_settings(topology)
    assert other == same


def test_equal_seeds_polarise_and_own_seeds_do_not(three_tier: Build) -> None:
    topology = three_tier(pods=2, leaves=1, aggregations=4, cores=4, nics=1)

    def cores(**parameters: object) -> Counter[str]:
        scheme = create_scheme("e-ecmp", parameters, seed=1)
        tables = FabricTables(topology, scheme.entries(topology))
        used: Counter[str] = Counter()
        for qp in range(512):
            flow = flow_between(topology, 0, 1, qp)
            path = tables.path_of(flow, scheme.label(topology, "leaf1", flow))
            used[topology.interfaces[path[2]].peer_node] += 1
        return used

    spread = cores()
    assert len(spread) == 16
    assert max(spread.values()) < 32 + 5 * 5.5  # binomial(512, 1/16): mean 32, deviation 5.5
    assert len(cores(per_switch_seed=False)) == 4
