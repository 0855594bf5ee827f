"""Workloads: what they send, what they refuse, and that a loss-free network satisfies them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.unit.traffic.lossless import run_lossless
from traffic.bounds import lower_bound, payload_rate, wire_bytes
from traffic.collectives.symbolic import races
from traffic.plan import Operation, OpKind, PlanError
from traffic.workloads import create_workload, verify_rank, workload_class, workload_names

OPERATIONS = list(Operation)
COLLECTIVES = ("collective", "ring-all-reduce")


def plan_of(name, world_size=4, seed=1, **parameters):
    chosen = create_workload(name)
    return chosen.plan(chosen.Parameters(**parameters), world_size=world_size, seed=seed)


def sends(plan):
    return [op for ops in plan.ops for op in ops if op.kind is OpKind.SEND]


def edges(plan):
    return [(c.source_rank, c.destination_rank) for c in plan.connections]


def test_names():
    assert workload_names() == [
        "all-to-all", "collective", "flows", "incast", "permutation", "ring-all-reduce",
        "storage-interference",
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"'tree'; allowed: all-to-all, collective"):
        workload_class("tree")


@pytest.mark.parametrize("name", workload_names())
def test_parameters_are_strict_and_described(name):
    model = workload_class(name).Parameters
    with pytest.raises(ValidationError, match="extra"):
        model(mesage_size="1 MiB")
    assert all(field.description for field in model.model_fields.values())


@pytest.mark.parametrize("name", workload_names())
@pytest.mark.parametrize("world_size", [2, 3, 8])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_lossless_network_makes_every_rank_right(name, world_size, operation):
    size = {"size": 1000} if name in COLLECTIVES else {"message_size": 999}
    if name in COLLECTIVES and operation is Operation.WRITE:
        with pytest.raises(ValidationError):
            plan_of(name, operation=operation, **size)
        return
    plan = plan_of(name, world_size, operation=operation, **size)
    memories = run_lossless(plan)
    assert [verify_rank(plan, rank, memories[rank]) for rank in range(world_size)] == [
        0
    ] * world_size


@pytest.mark.parametrize("name", workload_names())
def test_no_order_of_events_changes_the_outcome(name):
    assert races(plan_of(name, 5)) == []


@pytest.mark.parametrize("name", workload_names())
def test_one_wrong_byte_is_found(name):
    plan = plan_of(name)
    memories = run_lossless(plan)
    target = sends(plan)[-1]
    rank = plan.connections[target.connection].destination_rank
    place = target.remote_offset + target.length // 2
    if name == "ring-all-reduce":
        place = plan.parameters.size - 1
    elif name == "collective":
        place = 2 * plan.parameters.size - 1
    memories[rank][place] ^= 1
    assert verify_rank(plan, rank, memories[rank]) == 1


@pytest.mark.parametrize("name", workload_names())
def test_payload_counts_every_message(name):
    plan = plan_of(name)
    assert plan.payload_bytes == sum(op.length for op in sends(plan))
    assert create_workload(name).reference(plan).payload_bytes == plan.payload_bytes
    assert sum(flow.messages for flow in plan.flows) == len(sends(plan))


# incast


def test_incast_takes_senders_in_ascending_order():
    plan = plan_of("incast", 6, receiver=2, senders=3, message_size="1 KiB", messages=2)
    assert edges(plan) == [(0, 2), (1, 2), (3, 2)]
    assert [(f.messages, f.payload_bytes) for f in plan.flows] == [(2, 2048)] * 3
    assert edges(plan_of("incast", 4, receiver=3)) == [(0, 3), (1, 3), (2, 3)]


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"senders": 4}, r"senders: 4; allowed: 'all' or 1 to 3"),
        ({"receiver": 4}, r"receiver: 4; allowed: 0 to 3"),
    ],
)
def test_incast_refuses_what_does_not_fit(parameters, words):
    with pytest.raises(PlanError, match=words):
        plan_of("incast", 4, **parameters)
    with pytest.raises(PlanError, match="senders: all; allowed: none"):
        plan_of("incast", 1)


@pytest.mark.parametrize(
    "parameters",
    [
        {"senders": 0},
        {"senders": "most"},
        {"message_size": 0},
        {"message_size": "4 GiB"},
        {"messages": 0},
        {"start_jitter": 5},
        {"operation": "read"},
    ],
)
def test_incast_parameters_are_checked(parameters):
    with pytest.raises(ValidationError):
        plan_of("incast", 4, **parameters)


def test_incast_jitter_is_drawn_from_the_seed():
    starts = [flow.start for flow in plan_of("incast", 65, start_jitter="10 us").flows]
    assert all(0 <= start < 10e-6 for start in starts)
    assert len(set(starts)) == 64
    assert np.mean(starts) == pytest.approx(5e-6, rel=0.25)
    again = [flow.start for flow in plan_of("incast", 65, start_jitter="10 us").flows]
    other = [flow.start for flow in plan_of("incast", 65, seed=2, start_jitter="10 us").flows]
    assert starts == again != other


def test_incast_bounds_the_receivers_memory():
    few = plan_of("incast", 3, message_size="1 MiB", messages=4)
    many = plan_of("incast", 3, message_size="1 MiB", messages=1000)
    assert few.memory[0].total == 8 * 2**20
    assert many.memory[0].total == 64 * 2**20
    assert many.payload_bytes == 2000 * 2**20


# permutation


@given(st.integers(2, 40), st.integers(0, 1000))
@settings(max_examples=50)
def test_permutation_is_a_derangement(world_size, seed):
    pairs = edges(plan_of("permutation", world_size, seed, message_size=8))
    assert [source for source, _ in pairs] == list(range(world_size))
    assert sorted(destination for _, destination in pairs) == list(range(world_size))
    assert all(source != destination for source, destination in pairs)


def test_permutation_depends_on_the_seed():
    assert edges(plan_of("permutation", 16, 1)) != edges(plan_of("permutation", 16, 2))


def test_permutation_by_shift():
    assert edges(plan_of("permutation", 4, shift=-1)) == [(0, 3), (1, 0), (2, 1), (3, 2)]
    with pytest.raises(PlanError, match="shift: 8"):
        plan_of("permutation", 4, shift=8)


@pytest.mark.parametrize("name", ["permutation", "all-to-all", *COLLECTIVES])
def test_one_rank_is_too_few(name):
    with pytest.raises(PlanError, match="world_size"):
        plan_of(name, 1)


# all-to-all


def test_all_to_all_is_staggered():
    plan = plan_of("all-to-all", 5)
    assert len(plan.flows) == 20
    for rank in range(5):
        targets = [
            plan.connections[op.connection].destination_rank
            for op in plan.ops[rank]
            if op.kind is OpKind.SEND
        ]
        assert targets == [(rank + distance) % 5 for distance in (1, 2, 3, 4)]


@pytest.mark.parametrize("window", [1, 2, 3, 10])
def test_all_to_all_window(window):
    most = 0

    def watch(outstanding):
        nonlocal most
        most = max(most, outstanding)

    plan = plan_of("all-to-all", 6, window=window, message_size=64)
    memories = run_lossless(plan, on_outstanding=watch)
    assert most == min(window, 5)
    assert verify_rank(plan, 3, memories[3]) == 0


# bounds


def test_wire_bytes_of_a_message():
    plan = plan_of("incast", 2, message_size=4097, operation="write-with-imm")
    (op,) = sends(plan)
    # two packets of 82 bytes of headers and gaps, RETH, immediate, pad of 3
    assert wire_bytes(op, 4096) == 4097 + 3 + 2 * 82 + 16 + 4


def test_lower_bound_of_an_incast_is_the_receivers_link():
    plan = plan_of("incast", 8, message_size="1 MiB")
    seconds = 7 * 2**20 * 8 / payload_rate(400e9, 4096)
    assert lower_bound(plan, link_rate=400e9, latency=2e-6) == pytest.approx(
        seconds + 2e-6, rel=1e-4
    )


def test_lower_bound_of_a_ring_includes_its_steps():
    plan = plan_of("ring-all-reduce", 8, size="8 KiB")
    step = (1024 + 82 + 16 + 4) * 8 / 400e9
    assert lower_bound(plan, link_rate=400e9, latency=1e-3) == pytest.approx(14 * (step + 1e-3))


@pytest.mark.parametrize(
    ("name", "parameters", "factor", "size"),
    [
        ("ring-all-reduce", {"size": 4096}, 2 * 3 / 4, 4096),
        ("collective", {"size": 4096}, 2 * 3 / 4, 4096),
        ("all-to-all", {"message_size": 100}, 3 / 4, 400),
        ("permutation", {"message_size": 100, "messages": 2}, 1, 200),
        ("incast", {"message_size": 100}, 1, 300),
    ],
)
def test_bus_factor(name, parameters, factor, size):
    reference = create_workload(name).reference(plan_of(name, **parameters))
    assert reference.bus_factor == factor
    assert reference.size_bytes == size
