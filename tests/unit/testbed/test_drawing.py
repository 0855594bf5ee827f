"""Drawings of topologies: nothing overlaps, nothing is left out, and the title tells the truth."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest

from testbed.drawing import FLOW_COLOURS, DrawingError, draw_topology, picture_format
from testbed.drawn_flows import DrawnFlow, finding, link_loads
from testbed.topology import Topology, create_topology
from testbed.topology.layout import Box, lay_out

FABRICS = [
    ("leaf-spine", {}),
    ("leaf-spine", {"leaves": 1, "spines": 0, "servers_per_leaf": 1}),
    ("leaf-spine", {"storage": "shared", "storage_servers": 3}),
    ("leaf-spine", {"storage": "separate", "front_end_leaves": 2}),
    ("leaf-spine", {"leaves": 32, "spines": 32, "servers_per_leaf": 2, "gpus_per_server": 8}),
    ("three-tier", {"zones": 3}),
    ("rail-optimised", {"pods": 3}),
    ("rail-optimised", {"pods": 1, "spines": 0}),
    ("hpn", {"pods": 2, "cores": 4}),
    ("meta-ai-zone", {"zones": 2}),
    ("hpn7-pod", {}),
    ("spectrum-x-like", {}),
]


def overlap(first: Box, second: Box) -> bool:
    slack = 1e-9
    return (
        first.left < second.right - slack
        and second.left < first.right - slack
        and first.bottom < second.top - slack
        and second.bottom < first.top - slack
    )


@pytest.mark.parametrize(("kind", "parameters"), FABRICS)
def test_boxes_do_not_overlap(kind, parameters):
    topology = create_topology(kind, **parameters)
    layout = lay_out(topology)
    assert set(layout.nodes) == set(topology.nodes)
    assert set(layout.ranks) == {rank.rank for rank in topology.ranks}
    for first, second in combinations(layout.nodes.values(), 2):
        assert not overlap(first, second)
    for rank in topology.ranks:
        cell, server = layout.ranks[rank.rank], layout.nodes[rank.server]
        assert cell.left >= server.left - 1e-9 and cell.right <= server.right + 1e-9
        assert cell.bottom >= server.bottom - 1e-9 and cell.top <= server.top + 1e-9


@pytest.mark.parametrize(("kind", "parameters"), FABRICS)
def test_tiers_are_rows_and_front_ends_are_below(kind, parameters):
    topology = create_topology(kind, **parameters)
    layout = lay_out(topology)
    for interface in topology.interfaces.values():
        low, high = topology.nodes[interface.node], topology.nodes[interface.peer_node]
        if low.tier > high.tier:
            low, high = high, low
        side = -1 if high.name in layout.below else 1
        assert side * layout.nodes[high.name].y > side * layout.nodes[low.name].y
    front_end = {node.name for node in topology.switches if node.group == "front-end"}
    assert layout.below == front_end


def test_planes_stand_side_by_side():
    topology = create_topology("hpn7-pod")
    layout = lay_out(topology)
    spines = [node for node in topology.switches if node.tier == 2]
    first = max(layout.nodes[node.name].x for node in spines if node.plane == 0)
    second = min(layout.nodes[node.name].x for node in spines if node.plane == 1)
    assert first < second


def way(*interfaces: str) -> DrawnFlow:
    return DrawnFlow("a flow", (interfaces,))


UP1 = ("rank0-leaf1", "leaf1-spine1", "spine1-leaf2", "leaf2-rank4")
UP2 = ("rank1-leaf1", "leaf1-spine1", "spine1-leaf2", "leaf2-rank5")
UP3 = ("rank2-leaf1", "leaf1-spine2", "spine2-leaf2", "leaf2-rank6")
DOWN = ("rank0-leaf1", "leaf1-rank1")


@pytest.mark.parametrize(
    ("flows", "words"),
    [
        ([], "leaf-spine: 8 GPUs, 8 servers, 4 switches, 12 links"),
        ([way(*UP1)], "1 flow uses 1 of 4 uplinks"),
        ([way(*UP1), way(*UP2), way(*UP3)], "3 flows use 2 of 4 uplinks; the busiest carries 2"),
        ([way(*DOWN)], "1 flow stays below its leaf; none of 4 uplinks is used"),
        ([way(*DOWN), way(*DOWN)], "2 flows stay below their leaves; none of 4 uplinks is used"),
        ([way(*UP1)] * 2, "2 flows use 1 of 4 uplinks; the busiest carries 2"),
        ([way(*UP1), way(*UP3[:-1], "leaf2-rank4")],
         "2 flows use 2 of 4 uplinks; the busiest carries 1; 2 end at rank 4"),
        ([DrawnFlow("spread", (UP1, ("rank0-leaf1", "leaf1-spine2", "spine2-leaf2", UP1[3]))),
          way(*UP2)],
         "2 flows may take 2 of 4 uplinks; the busiest carries 1.50 on average"),
    ],
)  # fmt: skip
def test_findings(flows, words):
    assert finding(create_topology("leaf-spine"), flows) == words


def test_findings_of_other_fabrics():
    single = create_topology("leaf-spine", leaves=1, spines=0)
    assert finding(single, [way(*DOWN)] * 3) == (
        "3 flows through switches that have no uplinks; 3 end at rank 1"
    )
    downlink = [
        way("rank0-leaf1", "leaf1-spine1", "spine1-leaf3", "leaf3-rank8"),
        way("rank4-leaf2", "leaf2-spine1", "spine1-leaf3", "leaf3-rank9"),
    ]
    assert finding(create_topology("leaf-spine", leaves=3), downlink) == (
        "2 flows use 2 of 6 uplinks; the busiest carries 1, the busiest downlink to a leaf 2"
    )
    cores = way("rank0-leaf1", "leaf1-spine1", "spine1-core1", "core1-spine3", "spine3-leaf3")
    assert finding(create_topology("three-tier"), [cores]) == (
        "1 flow uses 1 of 8 uplinks; 1 of 8 links to the cores are used"
    )
    separate = create_topology("leaf-spine", storage="separate", front_end_leaves=2)
    assert finding(separate, [way(*UP1)]).startswith("1 flow uses 1 of 4 uplinks")


def test_loads_share_a_flow_among_its_ways():
    flows = [DrawnFlow("spread", (("a", "b"), ("a", "c"))), way("a")]
    assert link_loads(flows) == {"a": 2.0, "b": 0.5, "c": 0.5}


def svg_of(topology: Topology, flows: list[DrawnFlow], path: Path) -> str:
    draw_topology(topology, flows, path, picture_format(path), subtitle="a test")
    text = path.read_text()
    ElementTree.fromstring(text)
    return text


@pytest.mark.parametrize(("kind", "parameters"), FABRICS)
def test_every_switch_and_server_is_named(tmp_path, kind, parameters):
    topology = create_topology(kind, **parameters)
    text = svg_of(topology, [], tmp_path / "fabric.svg")
    shown = set(re.findall(r">([^<>]+)</text>", text))
    for node in topology.nodes.values():
        number = node.name.lstrip("abcdefghijklmnopqrstuvwxyz")
        assert node.name in shown or number in shown
    groups = {node.group for node in topology.nodes.values()} - {""}
    assert groups <= shown
    if len({switch.plane for switch in topology.switches}) > 1:
        assert {"plane 0", "plane 1"} <= shown


def test_few_flows_have_their_own_colours(tmp_path):
    flows = [DrawnFlow("0 → 4", (UP1,)), DrawnFlow("1 → 5", (UP2,))]
    text = svg_of(create_topology("leaf-spine"), flows, tmp_path / "few.svg")
    assert ">0 → 4</text>" in text and ">1 → 5</text>" in text
    # a line per interface on its way, and one in the legend
    for colour in FLOW_COLOURS[:2]:
        assert len(re.findall(f"stroke: {colour}", text, re.IGNORECASE)) == len(UP1) + 1
    assert f"stroke: {FLOW_COLOURS[2].lower()}" not in text.lower()


def test_many_flows_become_loads(tmp_path):
    flows = [DrawnFlow("x", (UP1,))] * len(FLOW_COLOURS) + [DrawnFlow("x", (UP3,))]
    text = svg_of(create_topology("leaf-spine"), flows, tmp_path / "many.svg")
    assert f">{len(FLOW_COLOURS)} flows</text>" in text and ">1 flow</text>" in text
    assert ">x</text>" not in text


def test_drawings_are_reproducible(tmp_path):
    topology = create_topology("hpn7-pod")
    first = svg_of(topology, [], tmp_path / "first.svg")
    assert svg_of(topology, [], tmp_path / "second.svg") == first


def test_png(tmp_path):
    path = tmp_path / "fabric.PNG"
    draw_topology(create_topology("leaf-spine"), [way(*UP1)], path, picture_format(path))
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["fabric.pdf", "fabric", ".svg.txt"])
def test_other_formats(name):
    with pytest.raises(DrawingError, match=r"no picture's name; allowed: .svg or .png"):
        picture_format(Path(name))
