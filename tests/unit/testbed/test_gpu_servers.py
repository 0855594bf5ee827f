"""Servers of a scenario: which rates their GPUs' links get, what is refused, what `plan` shows."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from testbed.gpu_servers import local_links, server_model
from testbed.plan_view import print_plan
from testbed.scenario import ScenarioError, build_topology, load_scenario, resolve_variants
from testbed.schema import Scenario, Server
from testbed.topology import Topology
from traffic.servers.model import HOST_BRIDGE_FACTOR, PCIE_GEN3_X16, PCIE_GEN4_X16

MATRIX = """\
\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\tNUMA Affinity
GPU0\t X \t{link}\tPXB\t0-15\t0
GPU1\t{link}\t X \tSYS\t16-31\t1
"""


def document(gpus: int, **sections: Any) -> dict[str, Any]:
    return {
        "name": "servers",
        "topology": {
            "kind": "rail-optimised",
            "pods": 1,
            "gpus_per_server": gpus,
            "link_rate": "400 Gbps",
        },
        "workload": {"kind": "collective", "size": "64 KiB"},
        **sections,
    }


def topology_with(gpus: int, server: dict[str, Any] | None) -> Topology:
    return build_topology(Scenario.from_document(document(gpus, server=server)))


def nic_rates(topology: Topology) -> list[float]:
    """Of the GPUs of server1; the same in both directions."""
    ranks = [rank for rank in topology.ranks if rank.server == "server1"]
    for rank in ranks:
        for port in topology.nic_ports(rank.rank):
            assert topology.interfaces[port.peer].rate == port.rate
    return [topology.nic(rank.rank).rate for rank in ranks]


def test_without_the_section_links_keep_their_rate() -> None:
    assert nic_rates(topology_with(4, None)) == [400e9] * 4


def test_a_server_as_fast_as_its_links_changes_nothing() -> None:
    assert topology_with(8, {"preset": "dgx-h100"}) == topology_with(8, None)


def test_the_slowest_of_link_nic_and_pcie_counts() -> None:
    assert nic_rates(topology_with(8, {"preset": "hgx-a100"})) == [200e9] * 8
    slow = {"preset": "hgx-a100", "nic_rate": "400 Gbps"}
    assert nic_rates(topology_with(8, slow)) == [pytest.approx(PCIE_GEN4_X16)] * 8
    slow["pcie_rate"] = "100 Gbps"
    assert nic_rates(topology_with(8, slow)) == [100e9] * 8


def test_gpus_that_share_a_nic_have_equal_parts_of_it() -> None:
    # 4 NICs of 100 Gb/s for 8 GPUs
    assert nic_rates(topology_with(8, {"preset": "dgx-1v"})) == [50e9] * 8
    # each alone could have 400 Gb/s / 2, were it not for PCIe 3.0
    fast = {"preset": "dgx-1v", "nic_rate": "400 Gbps"}
    assert nic_rates(topology_with(8, fast)) == [pytest.approx(PCIE_GEN3_X16)] * 8


def test_distance_costs_a_share_of_pcie() -> None:
    server = {"preset": "pcie-4gpu", "nic_rate": "800 Gbps"}
    rates = nic_rates(topology_with(4, server))  # PHB
    assert rates == [pytest.approx(PCIE_GEN4_X16 * HOST_BRIDGE_FACTOR)] * 4


def test_ports_of_one_nic_share_what_it_can() -> None:
    base = document(8)
    base["topology"] = {
        "kind": "hpn",
        "segments": 1,
        "servers_per_segment": 2,
        "gpus_per_server": 8,
    }
    built = build_topology(Scenario.from_document(base))
    slow = build_topology(
        Scenario.from_document({**base, "server": {"preset": "hpn-h800", "pcie_rate": "80 Gbps"}})
    )
    ports = slow.nic_ports(0)
    assert len(ports) == len(built.nic_ports(0)) == 2
    assert [port.rate for port in ports] == [40e9, 40e9]


def test_links_between_switches_and_of_storage_stay() -> None:
    base = document(8)
    base["topology"] |= {"storage": "shared", "storage_servers": 2}
    built, slow = (
        build_topology(Scenario.from_document({**base, "server": server}))
        for server in (None, {"preset": "dgx-1v"})
    )
    gpus = {name for rank in slow.gpu_ranks for name in rank.interfaces}
    changed = {name for name, own in slow.interfaces.items() if own != built.interfaces[name]}
    assert changed == gpus | {slow.interfaces[name].peer for name in gpus}
    assert len(changed) < len(slow.interfaces)


def test_a_pasted_matrix(tmp_path: Path) -> None:
    path = tmp_path / "topo.txt"
    path.write_text(MATRIX.format(link="NV4"))
    server = {"nvidia_smi": str(path), "nic_rate": "300 Gbps", "smp_rate": "80 Gbps"}
    # both share the NIC; what SYS leaves of the interconnect's 80 Gb/s is less than half of it
    near, far = nic_rates(topology_with(2, server))
    assert near == 150e9
    assert far == pytest.approx(80e9 * HOST_BRIDGE_FACTOR)


def test_local_links() -> None:
    assert local_links(None).rate == 3.6e12
    nvswitch = local_links(Server(preset="hgx-a100", nvlink_latency="2 us"))
    assert (nvswitch.rate, nvswitch.latency, nvswitch.paths) == (2.4e12, 2e-6, ())
    mesh = local_links(Server(preset="dgx-1v", nvlink_rate="200 Gbps"))
    assert mesh.path(0, 3).rate == 400e9 and mesh.path(0, 3).private  # two links
    assert mesh.path(0, 5).rate < PCIE_GEN3_X16 and not mesh.path(0, 5).private  # none
    pcie = local_links(Server(preset="pcie-4gpu"))
    assert pcie.rate == pytest.approx(PCIE_GEN4_X16 * HOST_BRIDGE_FACTOR)
    assert not any(pcie.path(a, b).private for a in range(4) for b in range(4) if a != b)


@pytest.mark.parametrize(
    ("server", "told"),
    [
        ({}, "server: neither of preset and nvidia_smi given; allowed: one of them"),
        (
            {"preset": "dgx-1v", "nvidia_smi": "x"},
            "server: both of preset and nvidia_smi given; allowed: one of them",
        ),
        ({"preset": "dgx-h10"}, "server.preset: 'dgx-h10' is not known; did you mean 'dgx-h100'?"),
        (
            {"preset": "pcie-4gpu"},
            "server: pcie-4gpu has 4 GPUs, but server1 of rail-optimised has 8; "
            "allowed: topology.gpus_per_server 4, or another server",
        ),
        ({"preset": "dgx-1v", "nic_rate": 4}, "server.nic_rate: 4 has no unit"),
        ({"preset": "dgx-1v", "nic_rate": "0 Gbps"}, "server.nic_rate: '0 Gbps'"),
        ({"preset": "dgx-1v", "nvlink_latency": "-1 us"}, "server.nvlink_latency: '-1 us'"),
        ({"nvidia_smi": "/nowhere"}, "server.nvidia_smi: /nowhere: cannot be read: No such file"),
        ({"nvidia_smi": "/dev"}, "server.nvidia_smi: /dev: is no file"),
        ({"nvidia_smi": "/dev/zero"}, "server.nvidia_smi: /dev/zero: is no file"),
        ({"nvidia_smi": "a\0b"}, "server.nvidia_smi: "),
        ({"gpus": 8}, "server.gpus: unknown field; allowed: nic_rate, nvidia_smi"),
        ("dgx-1v", "server: 'dgx-1v' is not a mapping"),
    ],
)
def test_bad_sections(server: Any, told: str, tmp_path: Path) -> None:
    assert told in refusal(server, tmp_path)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "no header line that begins with the column GPU0"),
        (MATRIX.format(link="NV"), "row GPU0, column GPU1: 'NV'; allowed: "),
        (re.sub("\t(mlx5_0|PXB|SYS)", "", MATRIX.format(link="NV4")), "has no NIC"),
        ("x" * (1024 * 1024 + 1), "is larger than 1 MiB"),
    ],
)  # fmt: skip
def test_bad_matrices(content: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "matrix.txt"
    path.write_text(content)
    assert told in refusal({"nvidia_smi": str(path)}, tmp_path, gpus=2)


def refusal(server: Any, tmp_path: Path, gpus: int = 8) -> str:
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(document(gpus, server=server)))
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_set_on_the_command_line_and_in_variants(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(document(8)))
    scenario = load_scenario(path, ["server.preset=dgx-1v", "server.nic_rate=20 Gbps"])
    assert nic_rates(build_topology(scenario)) == [10e9] * 8
    variants = [{"name": name, "set": {"server.preset": name}} for name in ("dgx-h100", "hgx-a100")]
    path.write_text(yaml.safe_dump(document(8, variants=variants)))
    topologies = [build_topology(variant) for _, variant in resolve_variants(load_scenario(path))]
    assert [topology.nic(0).rate for topology in topologies] == [400e9, 200e9]


def test_plan_shows_the_nic_of_every_gpu(tmp_path: Path) -> None:
    path = tmp_path / "topo.txt"
    path.write_text(MATRIX.format(link="NV4"))
    server = {"nvidia_smi": str(path), "nic_rate": "400 Gbps", "smp_rate": "80 Gbps"}
    console = Console(file=io.StringIO(), width=80, highlight=False)
    print_plan(Scenario.from_document(document(2, server=server, dilation=1000)), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "server topo.txt: 2 GPUs and 1 NIC, NVLink, 100 GB/s per GPU" in text
    assert "GPU0, GPU1 share mlx5_0: equal parts of its rate" in text
    assert "WORLD_SIZE 4, LOCAL_WORLD_SIZE 2, 2 servers, 1 group" in text
    rows = [re.sub(r"\s+", " ", row).strip("│ ") for row in text.splitlines() if "mlx5_0 │" in row]
    assert rows[:3] == [
        "0 │ 0 │ 0 │ server1 │ mlx5_0 │ PXB │ 200 Gb/s │ 50.0 %",
        "1 │ 1 │ 1 │ server1 │ mlx5_0 │ SYS │ 66.7 Gb/s │ 16.7 %",
        "2 │ 0 │ 0 │ server2 │ mlx5_0 │ PXB │ 200 Gb/s │ 50.0 %",
    ]


def test_model_of_a_section() -> None:
    model = server_model(Server(preset="dgx-h100", nic_rate="200 Gbps"))
    assert {nic.rate for nic in model.nics} == {200e9}
