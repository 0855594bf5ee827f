"""Server models: NICs for GPUs, penalties, presets, and the ranks' environment."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traffic.servers import (
    Distance,
    Gpu,
    Nic,
    ServerModel,
    rank_environments,
    server_preset,
    server_preset_names,
)
from traffic.servers.model import GBYTE, HOST_BRIDGE_FACTOR


def server(nic_distances, *, nic_rate=400e9, pcie_rate=200e9, smp_rate=100e9):
    gpus = len(nic_distances)
    return ServerModel(
        name="test",
        gpus=tuple(Gpu(i) for i in range(gpus)),
        nics=tuple(Nic(i, f"mlx5_{i}", nic_rate) for i in range(len(nic_distances[0]))),
        gpu_distances=tuple(
            tuple(Distance.X if a == b else Distance.SYS for b in range(gpus)) for a in range(gpus)
        ),
        nic_distances=tuple(tuple(row) for row in nic_distances),
        nvlinks=tuple((0,) * gpus for _ in range(gpus)),
        pcie_rate=pcie_rate,
        smp_rate=smp_rate,
    )


PIX, PXB, PHB, NODE, SYS = (
    Distance.PIX, Distance.PXB, Distance.PHB, Distance.NODE, Distance.SYS
)  # fmt: skip


def test_nearer_relations_win_in_the_order_of_nvidia_smi():
    order = [PIX, PXB, PHB, NODE, SYS]
    for near, far in itertools.pairwise(order):
        assert server([[far, near]]).nic_of_gpu == (1,)


def test_a_gpu_without_choice_gets_its_only_near_nic():
    # GPU0 could take either, GPU1 only the first: nobody shares
    assert server([[PIX, PIX], [PIX, SYS]]).nic_of_gpu == (1, 0)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_ties_are_shared_as_evenly_as_possible(data):
    gpus, nics = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    row = st.lists(st.sampled_from([PIX, SYS]), min_size=nics, max_size=nics)
    model = server([data.draw(row) for _ in range(gpus)])
    near = [[n for n in range(nics) if r[n] == min(r)] for r in model.nic_distances]
    assert all(own in near[gpu] for gpu, own in enumerate(model.nic_of_gpu))
    # Hall: some set of NICs is all that so many GPUs can use
    bound = max(
        math.ceil(sum(set(n) <= chosen for n in near) / len(chosen))
        for bits in range(1, 2**nics)
        for chosen in [{n for n in range(nics) if bits >> n & 1}]
    )
    assert max(len(model.gpus_of_nic(nic)) for nic in range(nics)) == bound


def test_penalties_grow_with_distance():
    rates = [server([[d]]).path_rate(0, 0) for d in (PIX, PXB, PHB, NODE, SYS)]
    assert rates == [
        200e9, 200e9, 200e9 * HOST_BRIDGE_FACTOR, 200e9 * HOST_BRIDGE_FACTOR,
        100e9 * HOST_BRIDGE_FACTOR,
    ]  # fmt: skip
    assert server([[SYS]], nic_rate=25e9).path_rate(0, 0) == 25e9


def test_gpus_of_one_nic_share_its_rate():
    model = server([[PIX], [PIX]], nic_rate=100e9)
    assert model.network_rate(0) == model.network_rate(1) == 50e9


def test_gpus_without_nvlink_use_pcie():
    model = server([[PIX], [PIX]])
    assert model.gpu_rate(0, 1) == 100e9 * HOST_BRIDGE_FACTOR
    with pytest.raises(ValueError, match="GPU1 has no path to itself"):
        model.gpu_rate(1, 1)


@pytest.mark.parametrize("name", server_preset_names())
def test_presets_are_balanced(name):
    model = server_preset(name)
    loads = [len(model.gpus_of_nic(nic)) for nic in range(len(model.nics))]
    assert set(loads) == {len(model.gpus) // len(model.nics)}
    assert all(model.network_rate(gpu) > 0 for gpu in range(len(model.gpus)))


def test_presets_have_the_published_nvlink_bandwidth():
    # data sheets, both directions: H100 900 GB/s, A100 600 GB/s; HPN's H800 400 GB/s
    for name, both_ways in (("dgx-h100", 900), ("hgx-a100", 600), ("hpn-h800", 400)):
        model = server_preset(name)
        assert model.has_nvswitch
        assert 2 * model.gpu_rate(0, 7) == both_ways * GBYTE
    h100 = server_preset("dgx-h100")
    assert h100.gpu_rate(0, 1) / h100.network_rate(0) == pytest.approx(9, rel=0.05)
    assert h100.nic_of_gpu == tuple(range(8))
    assert h100.nvlink_total(0) == h100.gpu_rate(0, 7)
    quad = server_preset("hgx-a100-4gpu")  # no switches: 12 links to three others
    assert not quad.has_nvswitch
    assert quad.nvlink_total(0) == 3 * quad.gpu_rate(0, 1) == 300 * GBYTE
    v100 = server_preset("dgx-1v")
    assert not v100.has_nvswitch
    assert [sum(row) for row in v100.nvlinks] == [6] * 8
    assert v100.nic_of_gpu == (0, 0, 1, 1, 2, 2, 3, 3)


def test_unknown_presets_and_misshapen_tables_are_refused():
    with pytest.raises(ValueError, match="unknown server 'dgx'; allowed: dgx-1v, dgx-h100"):
        server_preset("dgx")
    model = server([[PIX], [PIX]])
    with pytest.raises(ValueError, match="nic_distances is no 2 x 1 table"):
        dataclasses.replace(model, nic_distances=((PIX,),))
    with pytest.raises(ValueError, match="nvlinks differs between GPU1 to GPU0"):
        dataclasses.replace(model, nvlinks=((0, 2), (1, 0)))


def test_ranks_of_two_servers_with_four_gpus():
    environments = rank_environments(["server1"] * 4 + ["server2"] * 4)
    assert [e.rank for e in environments] == list(range(8))
    assert [e.local_rank for e in environments] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert environments[5].variables() == {
        "RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4",
    }  # fmt: skip


def test_local_ranks_count_within_the_job_only():
    environments = rank_environments(["server2", "server1", "server2"])
    assert [e.local_rank for e in environments] == [0, 0, 1]
    assert [e.local_world_size for e in environments] == [2, 1, 2]
