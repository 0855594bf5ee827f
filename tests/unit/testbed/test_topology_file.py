"""Topology files of HPCC and SimAI: read, written, read again; and every way to get one wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from testbed.scenario import ScenarioError, build_topology, load_scenario, plan_traffic
from testbed.topology import (
    Topology,
    TopologyBuilder,
    TopologyError,
    TopologyFormat,
    create_topology,
    export_topology,
)
from testbed.topology.text_format import parse_topology

HPCC = """\
6 3 5
3 4 5
0 3 100Gbps 1000ns 0.000000
1 3 100Gbps 1000ns 0
2 4 100Gbps 1us 0
3 5 400Gbps 1000ns 0
4 5 400Gbps 1000ns 0
"""

SIMAI = """\
10 2 2 4 10 H20
4 5
6 7 8 9
0 4 900Gbps 0.000025ms 0
0 6 200Gbps 0.0005ms 0
1 4 900Gbps 0.000025ms 0
1 7 200Gbps 0.0005ms 0
2 5 900Gbps 0.000025ms 0
2 6 200Gbps 500ns 0
3 5 900Gbps 0.000025ms 0
3 7 200Gbps 0.0005ms 0
6 8 400Gbps 0.001ms 0
7 9 400Gbps 0.001ms 0
"""


@pytest.fixture
def read(tmp_path):
    """Write a text into a file and build it."""

    def read(text: str, **parameters: object) -> Topology:
        path = tmp_path / "fabric.txt"
        path.write_text(text)
        return create_topology("file", path=str(path), **parameters)

    return read


def test_hpcc(read):
    topology = read(HPCC)
    assert topology.name == "fabric"
    assert [(n.name, n.tier) for n in topology.switches] == [
        ("leaf1", 1), ("leaf2", 1), ("spine1", 2),
    ]  # fmt: skip
    assert [rank.interfaces for rank in topology.ranks] == [
        ("rank0-leaf1",), ("rank1-leaf1",), ("rank2-leaf2",),
    ]  # fmt: skip
    assert [rank.server for rank in topology.ranks] == ["server1", "server2", "server3"]
    assert topology.interfaces["spine1-leaf2"].rate == 400e9
    assert topology.one_way_latency(3) == pytest.approx(4e-6)


def test_simai(read):
    topology = read(SIMAI)
    assert [rank.server for rank in topology.ranks] == ["server1"] * 2 + ["server2"] * 2
    assert [topology.leaf_of(rank.rank) for rank in topology.ranks] == ["leaf1", "leaf2"] * 2
    assert [switch.plane for switch in topology.switches] == [0, 1, 0, 1]
    assert topology.interfaces["leaf1-spine1"].rate == 400e9
    assert topology.one_way_latency(3) == pytest.approx(2 * 0.5e-6 + 2 * 1e-6)
    assert not topology.connected(0, 1)


def test_a_host_with_two_links_has_a_nic_with_two_ports(read):
    text = HPCC.replace("6 3 5", "6 3 6") + "0 4 100Gbps 1000ns 0\n"
    topology = read(text)
    assert topology.ranks[0].interfaces == ("rank0-leaf1", "rank0-leaf2")
    assert len({port.address for port in topology.nic_ports(0)}) == 1


FAMILIES = [
    ("leaf-spine", {"leaves": 3, "gpus_per_server": 2}),
    ("three-tier", {"zones": 3, "spine_oversubscription": 2.8}),
    ("rail-optimised", {"hop_latency": "600 ns", "nic_latency": "1.3 us"}),
    ("hpn", {}),
    ("hpn", {"dual_plane": False, "pods": 2, "cores": 2}),
    ("meta-ai-zone", {}),
    ("hpn7-pod", {"pods": 2}),
    ("spectrum-x-like", {}),
]


@pytest.mark.parametrize(("kind", "parameters"), FAMILIES)
@pytest.mark.parametrize("format", TopologyFormat)
def test_round_trip(read, kind, parameters, format):
    topology = create_topology(kind, **parameters)
    text = export_topology(topology, format)
    servers = len({rank.server for rank in topology.ranks})
    again = read(text, gpus_per_server=len(topology.ranks) // servers)
    assert again.ranks == topology.ranks
    assert set(again.interfaces) == set(topology.interfaces)
    for name, interface in topology.interfaces.items():
        found = again.interfaces[name]
        assert found.rate == pytest.approx(interface.rate)
        assert (found.address, found.port, found.peer) == (
            interface.address, interface.port, interface.peer,
        )  # fmt: skip
    assert [(n.name, n.tier, n.plane) for n in again.switches] == [
        (n.name, n.tier, n.plane) for n in topology.switches
    ]
    for hops in (1, 3, 5):
        assert again.one_way_latency(hops) == pytest.approx(topology.one_way_latency(hops))
    assert export_topology(again, format) == text


def test_simai_export_says_which_gpus_share_an_nvswitch():
    lines = export_topology(
        create_topology("leaf-spine", gpus_per_server=2, servers_per_leaf=1), "simai"
    )
    header, switches, *links = lines.splitlines()
    assert header == "10 2 2 4 12 H100"
    assert switches == "4 5 6 7 8 9"
    assert links[:4] == [f"{gpu} {4 + gpu // 2} 2880Gbps 0.000025ms 0" for gpu in range(4)]
    assert links[4] == "0 6 400Gbps 1000ns 0"


@pytest.mark.parametrize(
    ("parameters", "format", "words"),
    [
        ({"storage": "shared"}, "simai", "GPUs only"),
        ({"storage": "separate"}, "simai", "GPUs only"),
    ],
)
def test_what_a_format_cannot_say(parameters, format, words):
    with pytest.raises(TopologyError, match=words):
        export_topology(create_topology("leaf-spine", **parameters), format)


def test_one_rate_per_link():
    builder = TopologyBuilder("uneven", hop_latency=1e-6, nic_latency=1e-6)
    leaf = builder.switch("leaf", tier=1, index=0)
    builder.rank(builder.server(0), 0, [leaf], rate=1e9)
    builder.link(leaf, builder.switch("spine", tier=2, index=0), up_rate=1e9, down_rate=2e9)
    with pytest.raises(TopologyError, match="link leaf1-spine1 has two rates"):
        export_topology(builder.build(), "hpcc")


def test_hpcc_knows_hosts_of_any_role(read):
    topology = create_topology("leaf-spine", storage="separate")
    again = read(export_topology(topology, "hpcc"))
    assert len(again.ranks) == len(topology.ranks)
    assert len({switch.plane for switch in again.switches}) == 2
    assert not again.connected(0, len(again.ranks) - 1)


def replaced(text: str, old: str, new: str) -> str:
    assert text.count(old) >= 1
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("6 3\n", "line 1: 2 fields; allowed: NODES SWITCHES LINKS"),
        ("6 x 5\n", "line 1: 'x' is no number"),
        ("6 -3 5\n", "line 1: '-3' is no number"),
        ("9999999 3 5\n", "line 1: 9999999 nodes; allowed: at most 100000"),
        ("3 3 5\n", "line 1: 3 nodes leave no hosts"),
        ("6 3 5\n3 4\n", "line 1: announces 3 switches; 2 follow"),
        (replaced(HPCC, "3 4 5", "3 4 4"), "line 2: switch 4 is listed twice"),
        (replaced(HPCC, "3 4 5", "3 4 5 2"), "line 2: the first line announces 3 switches only"),
        (replaced(HPCC, "3 4 5", "3 4 6"), "line 2: there is no node 6; allowed: 0 to 5"),
        (replaced(HPCC, "0 3 100", "0 7 100"), "line 3: there is no node 7"),
        (replaced(HPCC, "100Gbps 1000ns", "100 1000ns"), "line 3: '100' has no known unit"),
        (replaced(HPCC, "1000ns", "1000"), "line 3: '1000' has no known unit"),
        (replaced(HPCC, " 0.000000", ""), "line 3: 4 fields; allowed: SOURCE DESTINATION"),
        (replaced(HPCC, "0.000000", "0.01"), "line 3: error rate 0.01; allowed: 0"),
        (replaced(HPCC, "0.000000", "nan"), "line 3: error rate nan; allowed: 0"),
        (replaced(HPCC, "0.000000", "few"), "line 3: could not convert"),
        (replaced(HPCC, "0 3 100", "0 0 100"), "line 3: links node 0 to itself"),
        (replaced(HPCC, "0 3 100", "0 1 100"), "line 3: links two hosts"),
        (replaced(HPCC, "6 3 5", "6 3 4"), "line 7: the first line announces 4 links only"),
        (replaced(HPCC, "6 3 5", "6 3 6"), "5 links; the first line announces 6"),
        (replaced(HPCC, "4 5 400", "3 5 400"), "links 3 and 5 a second time"),
        (replaced(HPCC, "1 3 100", "2 3 100"), "host 1 has 0 links to switches; allowed: 1 or 2"),
        (replaced(HPCC, "2 4 100", "2 5 100"), "no path leads from switch 4|tiers 1 and 1"),
        (replaced(HPCC, "4 5 400", "4 3 400"), "line 7: links two switches of tiers 1 and 1"),
        (replaced(HPCC, "3 5 400Gbps 1000ns", "3 5 400Gbps 9us"), "delay .* differs from"),
        (HPCC.replace("400Gbps 1000ns", "400Gbps 9us"), "allowed: at least half as long"),
        (replaced(SIMAI, "0 4 900", "6 4 900"), "line 4: an NVSwitch is linked to no host"),
    ],
)  # fmt: skip
def test_wrong_files(read, text, words):
    with pytest.raises(TopologyError, match=words) as caught:
        read(text)
    message = str(caught.value)
    assert message.startswith("topology.path: ") and "\n" not in message
    assert "fabric.txt: " in message


def test_ports_of_a_host_are_alike(read):
    text = HPCC.replace("6 3 5", "6 3 6")
    with pytest.raises(TopologyError, match="line 8: the ports of host 0 differ in rate"):
        read(text + "0 4 50Gbps 1000ns 0\n")
    with pytest.raises(TopologyError, match="line 8: links host 0 to the same switch a second"):
        read(text + "0 3 100Gbps 1000ns 0\n")


def test_servers_are_whole(read):
    with pytest.raises(TopologyError, match="3 hosts are no whole number of servers with 2 GPUs"):
        read(HPCC, gpus_per_server=2)


def test_at_most_three_tiers(read):
    chain = ["6 5 5", "1 2 3 4 5", *(f"{i} {i + 1} 1Gbps 1us 0" for i in range(5))]
    with pytest.raises(TopologyError, match="switch 4 is in tier 4; allowed: 1 to 3"):
        read("\n".join(chain))


def test_files_that_are_not_opened(tmp_path: Path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(9 * 2**20)
    for path, words in (
        (fifo, "is no file"),
        (tmp_path, "is no file"),
        (tmp_path / "absent", "cannot be read: No such file"),
        (binary, r"is not ASCII text \(byte 0\)"),
        (huge, "is larger than 8 MiB"),
        ("a\0b", "cannot be read"),
    ):
        with pytest.raises(TopologyError, match=words):
            create_topology("file", path=str(path))
    with pytest.raises(ValidationError):
        create_topology("file", path="")


def test_a_scenario_names_a_file(tmp_path: Path):
    fabric = tmp_path / "fabric.txt"
    fabric.write_text(SIMAI)
    scenario = tmp_path / "imported.yaml"
    scenario.write_text(
        f"name: imported\ntopology: {{kind: file, path: {fabric}}}\n"
        "workload: {kind: permutation, shift: 2, message_size: 64 KiB}\n"
    )
    loaded = load_scenario(scenario)
    topology = build_topology(loaded)
    assert len(plan_traffic(loaded, topology).connections) == 4
    fabric.write_text(SIMAI.replace("0.0005ms 0", "0.0005ms 1", 1))
    with pytest.raises(
        ScenarioError, match=r"imported.yaml: topology.path: .*line 5: error rate 1"
    ):
        load_scenario(scenario)


words = st.sampled_from([*"0123456789", "5", "100Gbps", "1us", "x", "0.0", "-1", "\n", "\n", "H20"])


@given(st.lists(words, max_size=40).map(" ".join))
@example(HPCC)
@example(SIMAI)
@settings(max_examples=150)
def test_any_text_is_a_fabric_or_one_clear_line(text):
    try:
        fabric = parse_topology(text)
    except TopologyError as error:
        assert "\n" not in str(error)
    else:
        assert fabric.hosts and not set(fabric.hosts) & set(fabric.switches)
