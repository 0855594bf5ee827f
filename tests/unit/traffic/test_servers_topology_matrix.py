"""Pasted ``nvidia-smi topo -m`` matrices: what they say, and what is wrong with them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traffic.servers import Distance, TopologyMatrixError, parse_topology_matrix

EIGHT_GPUS = """\
\t{header}\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV12\tNV12\tNV12\tNV12\tNV12\tNV12\tNV12\tPXB\tPXB\tSYS\tSYS\tSYS\tSYS\tSYS\tSYS\tSYS\tSYS\t48-63,176-191\t3
GPU1\tNV12\t X \tNV12\tNV12\tNV12\tNV12\tNV12\tNV12\tPXB\tPXB\tSYS\tSYS\tSYS\tSYS\tSYS\tSYS\tSYS\tSYS\t48-63,176-191\t3
GPU2\tNV12\tNV12\t X \tNV12\tNV12\tNV12\tNV12\tNV12\tSYS\tSYS\tPXB\tPXB\tSYS\tSYS\tSYS\tSYS\tSYS\tSYS\t16-31,144-159\t1
GPU3\tNV12\tNV12\tNV12\t X \tNV12\tNV12\tNV12\tNV12\tSYS\tSYS\tPXB\tPXB\tSYS\tSYS\tSYS\tSYS\tSYS\tSYS\t16-31,144-159\t1
GPU4\tNV12\tNV12\tNV12\tNV12\t X \tNV12\tNV12\tNV12\tSYS\tSYS\tSYS\tSYS\tPXB\tPXB\tSYS\tSYS\tSYS\tSYS\t112-127,240-255\t7
GPU5\tNV12\tNV12\tNV12\tNV12\tNV12\t X \tNV12\tNV12\tSYS\tSYS\tSYS\tSYS\tPXB\tPXB\tSYS\tSYS\tSYS\tSYS\t112-127,240-255\t7
GPU6\tNV12\tNV12\tNV12\tNV12\tNV12\tNV12\t X \tNV12\tSYS\tSYS\tSYS\tSYS\tSYS\tSYS\tPXB\tPXB\tSYS\tSYS\t80-95,208-223\t5
GPU7\tNV12\tNV12\tNV12\tNV12\tNV12\tNV12\tNV12\t X \tSYS\tSYS\tSYS\tSYS\tSYS\tSYS\tPXB\tPXB\tSYS\tSYS\t80-95,208-223\t5

Legend:
  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks
""".replace(  # noqa: E501
    "{header}",
    "\t".join([f"GPU{i}" for i in range(8)] + [f"mlx5_{i}" for i in range(10)]),
)

PCIE_WORKSTATION = """\
user@host:~$ nvidia-smi topo -m
\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tPIX\tSYS\tNODE\tSYS\t0-13,28-41\t0\t\tN/A
GPU1\tPIX\t X \tSYS\tPHB\tSYS\t0-13,28-41\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tSYS\tPIX\t14-27,42-55\t1-2\t\tN/A
NIC0\tNODE\tPHB\tSYS\t X \tSYS\t\t\t\t
NIC1\tSYS\tSYS\tPIX\tSYS\t X \t\t\t\t

Legend:

  X    = Self

NIC Legend:

  NIC0: mlx5_bond_0
  NIC1: bnxt_re1
"""


def test_eight_gpus_with_ten_nics():
    server = parse_topology_matrix(EIGHT_GPUS, name="a100", nic_rate=200e9)
    assert [gpu.index for gpu in server.gpus] == list(range(8))
    assert [nic.name for nic in server.nics] == [f"mlx5_{i}" for i in range(10)]
    assert server.nics[9].rate == 200e9
    assert server.nvlinks[0] == (0, *[12] * 7)
    assert server.has_nvswitch
    assert server.gpus[4].cpu_affinity == "112-127,240-255"
    assert [gpu.numa_node for gpu in server.gpus] == [3, 3, 1, 1, 7, 7, 5, 5]
    # two GPUs share two equally near NICs: one each; the two NICs far from all serve nobody
    assert server.nic_of_gpu == (0, 1, 2, 3, 4, 5, 6, 7)
    assert server.gpus_of_nic(8) == server.gpus_of_nic(9) == ()


def test_escape_codes_prompt_legend_of_nics_and_rows_of_nics():
    server = parse_topology_matrix(PCIE_WORKSTATION, nic_rates={"bnxt_re1": 100e9})
    assert [nic.name for nic in server.nics] == ["mlx5_bond_0", "bnxt_re1"]
    assert [nic.rate for nic in server.nics] == [400e9, 100e9]
    assert server.nic_distances == (
        (Distance.NODE, Distance.SYS),
        (Distance.PHB, Distance.SYS),
        (Distance.SYS, Distance.PIX),
    )
    assert server.gpu_distances[0] == (Distance.X, Distance.PIX, Distance.SYS)
    assert not server.has_nvswitch
    assert server.nic_of_gpu == (0, 0, 1)
    assert server.gpus[2].numa_node is None  # "1-2" is no single node


@pytest.mark.parametrize("change", ["spaces", "crlf", "no leading tab"])
def test_the_same_matrix_however_it_was_pasted(change):
    text = {
        "spaces": EIGHT_GPUS.replace("\t", "    "),
        "crlf": EIGHT_GPUS.replace("\n", "\r\n"),
        "no leading tab": EIGHT_GPUS.lstrip("\t"),
    }[change]
    assert parse_topology_matrix(text) == parse_topology_matrix(EIGHT_GPUS)


def test_gpus_without_any_nic():
    server = parse_topology_matrix("\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n")
    assert server.nic_of_gpu == (None, None)
    assert server.network_rate(0) == 0
    assert server.gpu_rate(0, 1) == 4 * server.nvlink_rate
    assert server.gpus[0].cpu_affinity is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("NODE\tPHB", "NODE\tPHX", "row NIC0, column GPU1: 'PHX'; allowed: NV#, PIX"),
        ("GPU1\tPIX", "GPU1\tPXB", "row GPU0, column GPU1: PIX, but row GPU1, column GPU0: PXB"),
        ("GPU2\tSYS\tSYS\t X \tSYS\tPIX", "GPU2\tSYS\tSYS\t X ", "row GPU2, column NIC0"),
        ("GPU1\tPIX\t X ", "GPU1\tPIX\tPIX", "row GPU1, column GPU1: 'PIX'; allowed: X"),
        ("GPU0\t X \tPIX", "GPU0\t X \tX", "row GPU0, column GPU1: 'X'"),
        ("GPU0\t X \tPIX", "GPU0\t X \tNV0", "row GPU0, column GPU1: 'NV0'"),
        ("NIC1\tSYS", "NIC1\tNV2", "row NIC1, column GPU0: 'NV2'"),
        ("\nGPU2\t", "\nGPU1\t", "row GPU1 is there twice"),
        ("\nGPU2\t", "\nGPU5\t", "row GPU5: the header has no such column"),
        ("\nGPU2\t", "\n#GPU2\t", "row GPU2 is missing"),
        ("GPU1\tGPU2\tNIC0", "GPU1\tGPU1\tNIC0", "header: column GPU1 is there twice"),
        ("GPU0\tGPU1\tGPU2\tNIC0", "NIC0\tGPU1\tGPU2\tNIC0", "no header line"),
    ],
)
def test_errors_name_row_and_column_in_one_line(old, new, message):
    assert old in PCIE_WORKSTATION
    with pytest.raises(TopologyMatrixError) as error:
        parse_topology_matrix(PCIE_WORKSTATION.replace(old, new, 1))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_cells_are_counted():
    with pytest.raises(
        TopologyMatrixError, match=r"row GPU1: 3 cells.* 5 devices.* NIC0 is missing"
    ):
        parse_topology_matrix(
            PCIE_WORKSTATION.replace("SYS\tPHB\tSYS\t0-13,28-41\t0\t\tN/A", "SYS")
        )


def test_a_rate_for_a_nic_that_is_not_there():
    with pytest.raises(TopologyMatrixError, match="'mlx5_7'; the matrix has: mlx5_bond_0, bnxt"):
        parse_topology_matrix(PCIE_WORKSTATION, nic_rates={"mlx5_7": 1e9})


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, len(PCIE_WORKSTATION) - 1), max_size=6), st.text(max_size=6))
def test_damaged_text_is_read_or_refused(places, garbage):
    text = PCIE_WORKSTATION
    for place in places:
        text = text[:place] + garbage + text[place + 3 :]
    try:
        server = parse_topology_matrix(text)
    except TopologyMatrixError as error:
        assert "\n" not in str(error)
    else:
        assert len(server.nic_of_gpu) == len(server.gpus)
