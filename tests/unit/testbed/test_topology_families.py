"""Families of topologies and their presets: counts, ratios, planes, roles, limits."""

from __future__ import annotations

import ipaddress
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from testbed.topology import NodeKind, RankRole, Topology, TopologyError, create_topology
from testbed.topology.base import INTERFACE_NAME_LIMIT, SWITCH_PORT_LIMIT
from testbed.topology.wiring import oversubscription, uplinks

PRESETS = ("meta-ai-zone", "hpn7-pod", "rail-optimised", "spectrum-x-like")
FAMILIES = ("leaf-spine", "three-tier", "rail-optimised", "hpn")


def check_invariants(topology: Topology) -> None:
    """What holds in every fabric that any family builds."""
    for interface in topology.interfaces.values():
        assert len(interface.name) <= INTERFACE_NAME_LIMIT
        assert interface.rate > 0
        peer = topology.interfaces[interface.peer]
        assert (peer.peer, peer.node) == (interface.name, interface.peer_node)
        tiers = [topology.nodes[node].tier for node in (interface.node, interface.peer_node)]
        assert abs(tiers[0] - tiers[1]) == 1
    for switch in topology.switches:
        ports = [i.port for i in topology.interfaces_of(switch.name)]
        assert sorted(ports) == list(range(1, len(ports) + 1))
        assert len(ports) <= SWITCH_PORT_LIMIT
    addresses = [topology.nic(rank.rank).address for rank in topology.ranks]
    assert len(set(addresses)) == len(addresses)
    for rank in topology.ranks:
        ports = topology.nic_ports(rank.rank)
        assert len({(port.address, port.mac) for port in ports}) == 1
        assert len({port.peer_node for port in ports}) == len(ports)
        for port in ports:
            prefix = ipaddress.ip_network(topology.prefixes[port.peer_node])
            assert ipaddress.ip_address(port.address) in prefix
    roles = [rank.role for rank in topology.ranks]
    gpus = roles.count(RankRole.GPU)
    assert RankRole.GPU not in roles[gpus:]
    macs = {i.mac for i in topology.interfaces.values()}
    shared = sum(len(rank.interfaces) - 1 for rank in topology.ranks)
    assert len(macs) == len(topology.interfaces) - shared


sizes = st.fixed_dictionaries
small = st.integers(1, 4)


@given(
    sizes({"leaves": small, "spines": small, "servers_per_leaf": small, "gpus_per_server": small}),
    st.sampled_from(["none", "shared", "separate"]),
    small,
)
@settings(max_examples=25)
def test_leaf_spine_invariants(size, storage, count):
    topology = create_topology(
        "leaf-spine", **size, storage=storage, storage_servers=count, front_end_leaves=count
    )
    check_invariants(topology)
    gpus = size["leaves"] * size["servers_per_leaf"] * size["gpus_per_server"]
    assert len(topology.gpu_ranks) == gpus
    assert len(topology.ranks_of(RankRole.STORAGE)) == (0 if storage == "none" else count)
    front_ends = size["leaves"] * size["servers_per_leaf"] if storage == "separate" else 0
    assert len(topology.ranks_of(RankRole.FRONT_END)) == front_ends


@given(
    sizes(
        {
            "zones": small,
            "leaves": small,
            "spines": small,
            "cores": small,
            "servers_per_leaf": small,
            "gpus_per_server": small,
        }
    ),
    st.sampled_from([1.0, 1.125, 7.0, 16 / 18]),
    st.sampled_from([1.0, 2.8, 7.0]),
)
@settings(max_examples=25)
def test_three_tier_invariants(size, leaf_ratio, spine_ratio):
    topology = create_topology(
        "three-tier",
        **size,
        leaf_oversubscription=leaf_ratio,
        spine_oversubscription=spine_ratio,
    )
    check_invariants(topology)
    assert oversubscription(topology, 1) == pytest.approx(leaf_ratio)
    assert oversubscription(topology, 2) == pytest.approx(spine_ratio)
    last = len(topology.ranks) - 1
    across = size["zones"] > 1
    beyond = size["leaves"] > 1
    assert topology.switch_hops(0, last) == (5 if across else 3 if beyond else 1)


@given(
    sizes(
        {
            "pods": small,
            "servers_per_pod": small,
            "gpus_per_server": small,
            "spines": small,
        }
    )
)
@settings(max_examples=25)
def test_rail_optimised_invariants(size):
    topology = create_topology("rail-optimised", **size)
    check_invariants(topology)
    assert oversubscription(topology, 1) == pytest.approx(1)
    for first, second in combinations(topology.gpu_ranks[:12], 2):
        nodes = [topology.nodes[rank.server].group for rank in (first, second)]
        same_rail = first.local_rank == second.local_rank and nodes[0] == nodes[1]
        assert topology.switch_hops(first.rank, second.rank) == (1 if same_rail else 3)


@given(
    sizes(
        {
            "pods": st.integers(1, 2),
            "segments": st.integers(1, 3),
            "servers_per_segment": st.integers(1, 3),
            "gpus_per_server": st.integers(1, 3),
            "spines": st.sampled_from([2, 4]),
            "cores": st.sampled_from([2, 4]),
        }
    ),
    st.sampled_from([(True, True), (True, False), (False, False), (True, None), (False, None)]),
)
@settings(max_examples=30)
def test_hpn_invariants(size, variant):
    dual_tor, dual_plane = variant
    topology = create_topology("hpn", **size, dual_tor=dual_tor, dual_plane=dual_plane)
    check_invariants(topology)
    planes = {switch.plane for switch in topology.switches}
    assert planes == ({0, 1} if (dual_tor if dual_plane is None else dual_plane) else {0})
    for interface in topology.interfaces.values():
        ends = [topology.nodes[node] for node in (interface.node, interface.peer_node)]
        if all(end.kind is NodeKind.SWITCH for end in ends):
            assert ends[0].plane == ends[1].plane
    for rank in topology.gpu_ranks:
        ports = topology.nic_ports(rank.rank)
        assert len(ports) == (2 if dual_tor else 1)
        assert sum(port.rate for port in ports) == pytest.approx(400e9)
    assert oversubscription(topology, 1) == pytest.approx(16 / 15)
    assert oversubscription(topology, 2) == pytest.approx(15)


def test_hpn_variants_have_equal_capacity():
    capacities = set()
    for dual_tor, dual_plane in ((True, True), (True, False), (False, False)):
        topology = create_topology("hpn", dual_tor=dual_tor, dual_plane=dual_plane)
        rates = [topology.interfaces[name].rate for name in uplinks(topology, 1)]
        capacities.add(round(sum(rates)))
    assert len(capacities) == 1


def test_ports_of_an_hpn_nic_reach_tors_of_one_set():
    topology = create_topology("hpn7-pod")
    assert topology.ranks[0].interfaces == ("rank0-leaf1", "rank0-leaf2")
    assert topology.ranks[5].interfaces == ("rank5-leaf3", "rank5-leaf4")
    assert topology.prefixes["leaf1"] == topology.prefixes["leaf2"] == "10.1.0.0/16"
    assert len(set(topology.prefixes.values())) == len(topology.prefixes) // 2
    assert topology.nodes["leaf1"].plane == 0 and topology.nodes["leaf2"].plane == 1
    assert topology.nodes["leaf9"].group == "pod1-segment2"


@pytest.mark.parametrize(
    ("parameters", "ratio"),
    [
        ({"leaves": 2, "spines": 16, "servers_per_leaf": 2, "gpus_per_server": 8}, 1),
        ({"leaves": 2, "spines": 18, "servers_per_leaf": 2, "gpus_per_server": 8}, 1 / 1.125),
        ({"leaves": 2, "spines": 4, "servers_per_leaf": 14, "oversubscription": 7}, 7),
        ({"leaves": 2, "spines": 3, "servers_per_leaf": 5, "oversubscription": 1.125}, 1.125),
        ({"leaves": 1, "spines": 0}, None),
    ],
)
def test_leaf_spine_ratios(parameters, ratio):
    built = oversubscription(create_topology("leaf-spine", **parameters), 1)
    assert built == (None if ratio is None else pytest.approx(ratio))


def test_meta_ai_zone_as_deployed():
    """An RTSW of 25.6T: 16 x 400G down, 18 x 400G up."""
    topology = create_topology("meta-ai-zone", gpus_per_server=8, racks=4)
    ports = topology.interfaces_of("leaf1")
    assert len(ports) == 16 + 18 and {port.rate for port in ports} == {400e9}
    assert oversubscription(topology, 1) == pytest.approx(1 / 1.125)
    joined = create_topology("meta-ai-zone", zones=2)
    assert oversubscription(joined, 2) == pytest.approx(7)


def test_hpn7_tor_as_deployed():
    """A ToR of 51.2T: 128 x 200G down, 60 x 400G up."""
    topology = create_topology(
        "hpn7-pod", segments=1, servers_per_segment=128, gpus_per_server=1, spines=120
    )
    ports = topology.interfaces_of("leaf1")
    assert sorted({port.rate for port in ports}) == pytest.approx([200e9, 400e9])
    assert [port.rate for port in ports].count(200e9) == 128
    assert len(ports) == 128 + 60


def test_spectrum_x_links_have_one_rate():
    topology = create_topology("spectrum-x-like", servers_per_pod=4)
    assert {interface.rate for interface in topology.interfaces.values()} == {400e9}
    assert oversubscription(topology, 1) == 1


@pytest.mark.parametrize("kind", sorted({*PRESETS, *FAMILIES}))
def test_defaults_are_small_enough_to_emulate(kind):
    topology = create_topology(kind)
    check_invariants(topology)
    assert topology.name == kind
    assert len(topology.gpu_ranks) <= 32
    assert len(topology.interfaces) <= 200
    last = topology.gpu_ranks[-1].rank
    assert topology.connected(0, last)


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("leaf-spine", {"leaves": 64, "spines": 64, "servers_per_leaf": 2, "gpus_per_server": 8}),
        ("three-tier", {"zones": 8, "leaves": 8, "spines": 8, "cores": 64}),
        ("rail-optimised", {"pods": 8, "servers_per_pod": 16, "gpus_per_server": 8, "spines": 64}),
        ("hpn", {"segments": 4, "servers_per_segment": 32, "gpus_per_server": 8, "spines": 64}),
    ],
)
def test_fabrics_of_64_leaves(kind, size):
    topology = create_topology(kind, **size)
    check_invariants(topology)
    assert len([switch for switch in topology.switches if switch.tier == 1]) == 64


@pytest.mark.parametrize("kind", ["leaf-spine", "rail-optimised"])
def test_a_separate_front_end_shares_nothing(kind):
    topology = create_topology(kind, storage="separate", storage_servers=3, front_end_leaves=2)
    back_end = {rank.rank for rank in topology.gpu_ranks}
    front_end = [rank.rank for rank in topology.ranks if rank.rank not in back_end]
    storage = topology.ranks_of(RankRole.STORAGE)
    assert len(front_end) > len(storage) == 3
    for rank in topology.ranks_of(RankRole.FRONT_END):
        assert all(topology.connected(rank.rank, other.rank) for other in storage)
        assert topology.nodes[rank.server].name in {r.server for r in topology.gpu_ranks}
    for first in front_end:
        assert not any(topology.connected(first, second) for second in back_end)
    groups = {topology.nodes[topology.leaf_of(rank)].group for rank in front_end}
    assert groups == {"front-end"}


@pytest.mark.parametrize("kind", ["leaf-spine", "rail-optimised"])
def test_shared_storage_hangs_on_the_gpus_leaves(kind):
    topology = create_topology(kind, storage="shared", storage_servers=2, storage_rate="100 Gbps")
    storage = topology.ranks_of(RankRole.STORAGE)
    assert [rank.server for rank in storage] == ["storage1", "storage2"]
    assert [topology.leaf_of(rank.rank) for rank in storage] == ["leaf1", "leaf2"]
    assert {topology.nic(rank.rank).rate for rank in storage} == {100e9}
    assert all(topology.connected(0, rank.rank) for rank in storage)
    assert not topology.ranks_of(RankRole.FRONT_END)


def test_rail_only_rails_are_networks_of_their_own():
    topology = create_topology("rail-optimised", pods=1, spines=0, gpus_per_server=2)
    assert topology.switch_hops(0, 2) == 1
    assert not topology.connected(0, 1)


@pytest.mark.parametrize(
    ("kind", "parameters", "words"),
    [
        ("leaf-spine", {"uplink_rate": "1 Gbps", "oversubscription": 7}, r"oversubscription: not"),
        ("leaf-spine", {"storage": "separate", "servers_per_leaf": 100, "leaves": 3},
         r"front_end_leaves: 300 servers and 2 storage servers on 1 need 303 ports"),
        ("leaf-spine", {"leaves": 2, "servers_per_leaf": 254, "storage": "shared"},
         r"leaf1 would need 257 ports; a switch has at most 256"),
        ("three-tier", {"cores": 0}, r"cores: 0 leaves 2 zones unconnected; at least 1"),
        ("three-tier", {"servers_per_leaf": 256}, r"servers_per_leaf: .* need 514 ports"),
        ("three-tier", {"leaves": 200, "cores": 64}, r"leaves: .* need 264 ports"),
        ("three-tier", {"zones": 8, "spines": 40}, r"spines: 8 zones of 40 spines need 320 ports"),
        ("three-tier", {"zones": 8, "leaves": 40}, r"leaves: .* 320 leaves; .* at most 255"),
        ("rail-optimised", {"spines": 0}, r"spines: 0 leaves 2 pods unconnected"),
        ("rail-optimised", {"pods": 64}, r"pods: 64 pods of 4 rails need 256 leaves"),
        ("rail-optimised", {"servers_per_pod": 255}, r"servers_per_pod: .* need 257 ports"),
        ("hpn", {"dual_tor": False, "dual_plane": True}, r"dual_plane: true needs dual_tor"),
        ("hpn", {"spines": 5}, r"spines: 5 cannot be shared by 2 planes; allowed: even"),
        ("hpn", {"pods": 2}, r"cores: 0 leaves 2 pods unconnected"),
        ("hpn", {"segments": 15, "gpus_per_server": 16}, r"segments: .* need 480 leaves"),
        ("meta-ai-zone", {"gpus_per_server": 3}, r"servers_per_rack: 6 GPUs .* multiples of 8"),
        ("meta-ai-zone", {"servers_per_rack": 32}, r"servers_per_rack: 128 GPUs and 144 CTSWs"),
        ("hpn7-pod", {"segments": 15, "servers_per_segment": 16, "gpus_per_server": 8},
         r"cannot be emulated: interface name 'rank1\d+-leaf1\d\d' is longer than 15"),
    ],
)  # fmt: skip
def test_what_cannot_be_wired(kind, parameters, words):
    with pytest.raises(TopologyError, match=words) as caught:
        create_topology(kind, **parameters)
    assert str(caught.value).startswith("topology") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("leaf-spine", {"oversubscription": 0}),
        ("leaf-spine", {"storage": "attached"}),
        ("three-tier", {"zones": 0}),
        ("hpn", {"dual_tor": "perhaps"}),
        ("hpn7-pod", {"dual_plane": False}),
        ("rail-optimised", {"gpus_per_server": 17}),
    ],
)
def test_parameters_out_of_range(kind, parameters):
    with pytest.raises(ValidationError):
        create_topology(kind, **parameters)
