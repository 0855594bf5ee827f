"""Sizes and sweeps of `rocelab coll`: what nccl-tests takes, and one line for every mistake."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.coll.sizes import (
    MOST_SIZES,
    binary_size,
    distinct,
    parse_nccl_size,
    short_size,
    size_range,
)
from testbed.coll.sweep import Sweep
from testbed.scenario import ScenarioError, plan_traffic, resolve_variants
from testbed.scenario import build_topology as topology_of


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8K", 8192),
        ("64M", 64 * 2**20),
        ("1G", 2**30),
        ("8k", 8192),
        ("4096", 4096),
        ("64 MiB", 64 * 2**20),
        ("1 MB", 10**6),
    ],
)
def test_sizes_are_read_as_nccl_tests_reads_them(text: str, size: int) -> None:
    assert parse_nccl_size(text) == size


@pytest.mark.parametrize("text", ["", "K", "8Q", "-8K", "0", "0K", "1.5K", "9999999999G"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"allowed|size|negative|unit"):
        parse_nccl_size(text)


@given(st.integers(min_value=1, max_value=2**40))
def test_a_short_size_reads_back_as_itself(size: int) -> None:
    assert parse_nccl_size(short_size(size)) == size
    assert parse_nccl_size(binary_size(size)) == size


@given(
    st.integers(min_value=1, max_value=2**20),
    st.integers(min_value=0, max_value=2**24),
    st.floats(min_value=1.5, max_value=8),
)
def test_a_range_begins_with_its_least_and_never_exceeds_its_most(
    least: int, more: int, factor: float
) -> None:
    sizes = size_range(least, least + more, factor)
    assert sizes[0] == least
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] <= least + more < (sizes[-1] + 1) * factor + 1


def test_ranges_that_make_no_sense() -> None:
    for arguments, message in (
        ((8, 4, 2.0), "--min: 8 bytes is more than --max, 4"),
        ((8, 64, 1.0), "--factor: 1; allowed: more than 1"),
        ((8, 64, float("nan")), "--factor: nan"),
        ((1000, 10**6, 1.001), f"more than {MOST_SIZES} sizes"),
    ):
        with pytest.raises(ValueError, match=message):
            size_range(*arguments)
    assert distinct([4, 8, 4]) == (4, 8)


def test_a_sweep_has_a_variant_for_each_algorithm_and_size() -> None:
    sweep = Sweep(
        operation="all-reduce",
        sizes=(8192, 65536),
        algorithms=("ring", "double-binary-tree"),
        channels=2,
        dtype="int32",
        reduction="max",
        settings=["topology.servers_per_leaf=2"],
    )
    scenario = sweep.scenario()
    variants = resolve_variants(scenario)
    assert [name for name, _ in variants] == [
        "ring-8K",
        "ring-64K",
        "double-binary-tree-8K",
        "double-binary-tree-64K",
    ]
    plans = [plan_traffic(variant, topology_of(variant)) for _, variant in variants]
    for plan in plans:
        assert len(plan.gpu_ranks) == 4
        assert plan.dtype == "int32"
        assert plan.reduction == "max"
    assert plans[1].payload_bytes == 8 * plans[0].payload_bytes == 2 * 3 * 65536


def test_a_sweep_takes_place_in_another_scenarios_fabric() -> None:
    scenario = Sweep(operation="all-gather", sizes=(8192,), base="ring-all-reduce").scenario()
    assert scenario.workload.kind == "collective"
    assert scenario.expect == ("wrong_elements == 0",)
    assert scenario.name == "coll-all-gather"
    from testbed.scenario import load_scenario

    base = load_scenario("ring-all-reduce")
    assert (scenario.topology, scenario.nic, scenario.switch) == (
        base.topology,
        base.nic,
        base.switch,
    )


def test_a_barrier_has_no_size() -> None:
    scenario = Sweep(operation="barrier", sizes=(8192, 16384)).scenario()
    assert len(scenario.variants) == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"operation": "all-reduse"}, "OPERATION: 'all-reduse'; did you mean 'all-reduce'"),
        ({"algorithms": ("rong",)}, "--algorithm: 'rong'; did you mean 'ring'"),
        ({"algorithms": ("ring", "ring")}, "--algorithm: ring,ring names one twice"),
        ({"dtype": "uint8"}, "--dtype: 'uint8'"),
        ({"reduction": "min"}, "--op: 'min'"),
        ({"sizes": (1001,)}, "1001 bytes are no whole number of float32 elements"),
        ({"channels": 0}, "workload.channels: 0 must be"),
        ({"settings": ["topology.leafs=2"]}, "topology.leafs: unknown field"),
        ({"algorithms": ("pairwise",)}, "pairwise"),
        (
            {"settings": ["variants=[]"]},
            "--set variants: not in a sweep, which has its own variants",
        ),
        ({"settings": ["variants.0.set={}"]}, "--set variants.0.set: not in a sweep"),
        ({"settings": ["workload={kind: incast}"]}, "--set workload: not in a sweep"),
        (
            {"settings": ["workload.kind=incast"]},
            "--set workload.kind: not in a sweep; it is always",
        ),
        ({"settings": ["workload.size=4"]}, "--set workload.size: not in a sweep; it is --sizes"),
        ({"base": "no-such"}, "no-such: there is no such file or scenario"),
        ({"topology": "torus"}, "topology.kind: 'torus' is not known"),
    ],
)
def test_mistakes_name_the_word_and_what_is_allowed(fields: dict, message: str) -> None:
    sweep = Sweep(**{"operation": "all-reduce", "sizes": (8192,), **fields})
    with pytest.raises(ScenarioError) as caught:
        sweep.scenario()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
