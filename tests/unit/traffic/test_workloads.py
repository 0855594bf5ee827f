"""Workloads: what they send, what they refuse, and that a loss-free network satisfies them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from testbed.topology import RankRole
from tests.unit.traffic.lossless import run_lossless
from traffic.bounds import lower_bound, payload_rate, wire_bytes
from traffic.collectives.symbolic import races
from traffic.locations import RankLocation
from traffic.plan import Operation, OpKind, PlanError
from traffic.workloads import create_workload, verify_rank, workload_class, workload_names

OPERATIONS = list(Operation)
COLLECTIVES = ("collective", "ring-all-reduce", "storage-interference")
TRACED = ("poisson-flows", "replay", "training")
"""Without parameters they are nothing; each has tests of its own."""
SIMPLE = [name for name in workload_names() if name not in TRACED]
GPU, STORAGE, FRONT_END = RankRole.GPU, RankRole.STORAGE, RankRole.FRONT_END


def plan_of(name, world_size=4, seed=1, roles=None, leaves=None, **parameters):
    """Storage servers have ranks behind the ``world_size`` GPUs; flows go round by default."""
    chosen = create_workload(name)
    if name == "storage-interference" and roles is None:
        roles = [GPU] * world_size + [STORAGE]
    if name == "flows":
        around = [{"source": r, "destination": (r + 1) % world_size} for r in range(world_size)]
        parameters.setdefault("flows", around)
    roles = roles or [GPU] * world_size
    leaves = leaves or ["leaf1"] * len(roles)
    return chosen.plan(
        chosen.Parameters(**parameters),
        world_size=len(roles),
        seed=seed,
        locations=[
            RankLocation(role, leaves=(leaf,)) for role, leaf in zip(roles, leaves, strict=True)
        ],
    )


def sends(plan):
    return [op for ops in plan.ops for op in ops if op.kind is OpKind.SEND]


def edges(plan):
    return [(c.source_rank, c.destination_rank) for c in plan.connections]


def test_names():
    assert workload_names() == [
        "all-to-all", "collective", "flows", "incast", "permutation", "poisson-flows", "replay",
        "ring-all-reduce", "storage-interference", "training",
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"'tree'; allowed: all-to-all, collective"):
        workload_class("tree")


@pytest.mark.parametrize("name", workload_names())
def test_parameters_are_strict_and_described(name):
    model = workload_class(name).Parameters
    with pytest.raises(ValidationError, match="extra"):
        model(mesage_size="1 MiB")
    assert all(field.description for field in model.model_fields.values())


@pytest.mark.parametrize("name", SIMPLE)
@pytest.mark.parametrize("world_size", [2, 3, 8])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_lossless_network_makes_every_rank_right(name, world_size, operation):
    size = {"size": 1000} if name in COLLECTIVES else {"message_size": 999}
    if name == "flows":
        size = {}
    if name in COLLECTIVES and operation is Operation.WRITE:
        with pytest.raises(ValidationError):
            plan_of(name, operation=operation, **size)
        return
    plan = plan_of(name, world_size, operation=operation, **size)
    memories = run_lossless(plan)
    wrong = [verify_rank(plan, rank, memory) for rank, memory in enumerate(memories)]
    assert wrong == [0] * plan.world_size


@pytest.mark.parametrize("name", SIMPLE)
def test_no_order_of_events_changes_the_outcome(name):
    assert races(plan_of(name, 5)) == []


@pytest.mark.parametrize("name", SIMPLE)
def test_one_wrong_byte_is_found(name):
    plan = plan_of(name)
    memories = run_lossless(plan)
    target = sends(plan)[-1]
    rank = plan.connections[target.connection].destination_rank
    place = target.remote_offset + target.length // 2
    if name in ("collective", "ring-all-reduce"):
        place = 2 * plan.parameters.size - 1
    elif name == "storage-interference":
        place = target.remote_offset  # of a checkpoint
    memories[rank][place] ^= 1
    assert verify_rank(plan, rank, memories[rank]) == 1


@pytest.mark.parametrize("name", SIMPLE)
def test_payload_counts_every_message(name):
    plan = plan_of(name)
    assert plan.payload_bytes == sum(op.length for op in sends(plan))
    assert create_workload(name).reference(plan).payload_bytes == plan.payload_bytes
    assert sum(flow.messages for flow in plan.flows) == len(sends(plan))


# roles


@pytest.mark.parametrize("name", ["all-to-all", "incast", "permutation", "ring-all-reduce"])
def test_only_gpus_take_part(name):
    plan = plan_of(name, roles=[GPU] * 5 + [STORAGE, FRONT_END, STORAGE])
    alone = plan_of(name, 5)
    assert edges(plan) == edges(alone)
    assert plan.gpu_ranks == (0, 1, 2, 3, 4)
    assert plan.world_size == 8
    assert all(plan.memory[rank].total == 0 for rank in (5, 6, 7))
    assert create_workload(name).reference(plan) == create_workload(name).reference(alone)
    memories = run_lossless(plan)
    assert [verify_rank(plan, rank, memories[rank]) for rank in range(8)] == [0] * 8


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


def test_permutation_of_several_flows():
    plan = plan_of("permutation", 4, shift=1, flows=3, messages=2, message_size=100)
    assert edges(plan) == [(r, (r + 1) % 4) for r in range(4) for _ in range(3)]
    assert [flow.payload_bytes for flow in plan.flows] == [200] * 12
    assert len({c.source_port for c in plan.connections}) == 12


@given(st.integers(2, 6), st.integers(1, 5), st.integers(0, 100))
@settings(max_examples=40)
def test_partners_on_other_leaves(leaves, per_leaf, seed):
    names = [f"leaf{1 + rank % leaves}" for rank in range(leaves * per_leaf)]
    pairs = edges(
        plan_of(
            "permutation", len(names), seed, leaves=names, partners="other-leaf", message_size=8
        )
    )
    assert [source for source, _ in pairs] == list(range(len(names)))
    assert sorted(destination for _, destination in pairs) == list(range(len(names)))
    target = {}
    for source, destination in pairs:
        assert names[source] != names[destination]
        assert target.setdefault(names[source], names[destination]) == names[destination]


def test_partners_on_other_leaves_need_leaves_of_one_size():
    with pytest.raises(PlanError, match=r"partners: other-leaf .*not 2, 1"):
        plan_of("permutation", leaves=["a", "a", "b"], world_size=3, partners="other-leaf")
    with pytest.raises(PlanError, match=r"partners: other-leaf .*not 4"):
        plan_of("permutation", partners="other-leaf")
    with pytest.raises(PlanError, match=r"shift: 1 .*other-leaf"):
        plan_of("permutation", partners="other-leaf", shift=1)


# rings over some of the ranks


def test_a_ring_in_the_order_given():
    plan = plan_of("ring-all-reduce", 6, ranks=[4, 1, 5], size=600)
    assert edges(plan) == [(4, 1), (1, 5), (5, 4)]
    reference = create_workload("ring-all-reduce").reference(plan)
    assert (reference.bus_factor, reference.ranks) == (2 * 2 / 3, 3)
    assert races(plan) == []
    memories = run_lossless(plan)
    assert [verify_rank(plan, rank, memories[rank]) for rank in range(6)] == [0] * 6
    assert memories[4][600:] == memories[1][600:] == memories[5][600:]
    assert memories[0] == b""
    memories[5][603] ^= 1
    assert verify_rank(plan, 5, memories[5]) == 1


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([0, 6], "ranks: 6 has no GPU; allowed: 0 to 4"),
        ([0, 5], "ranks: 5 has no GPU"),
        ([0, 1, 0], "ranks: 0 is listed twice"),
        ([3], "ranks: 1 listed; allowed: 2 or more"),
        ([], "ranks: 0 listed"),
    ],
)
def test_a_ring_refuses(ranks, words):
    with pytest.raises(PlanError, match=words):
        plan_of("ring-all-reduce", roles=[GPU] * 5 + [STORAGE], ranks=ranks)


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


# flows


def test_flows_are_as_listed():
    plan = plan_of(
        "flows",
        4,
        flows=[
            {"source": 2, "destination": 0, "size": "1 KiB", "messages": 3, "start": "5 us"},
            {"source": 0, "destination": 3, "size": 10, "qps": 2},
            {"source": 2, "destination": 0, "size": 64},
        ],
    )
    assert edges(plan) == [(2, 0), (0, 3), (0, 3), (2, 0)]
    assert [flow.connection for flow in plan.flows] == [0, 1, 3]
    assert [(f.messages, f.payload_bytes, f.start) for f in plan.flows] == [
        (3, 3072, pytest.approx(5e-6)),
        (1, 10, 0.0),
        (1, 64, 0.0),
    ]
    assert [plan.group(flow.connection) for flow in plan.flows] == [(0,), (1, 2), (3,)]


def test_messages_of_a_flow_are_posted_at_once_or_with_a_period():
    flow = {"source": 0, "destination": 1, "messages": 3, "start": "5 us"}
    for period, starts in (("0 us", [5e-6] * 3), ("50 us", [5e-6, 55e-6, 105e-6])):
        plan = plan_of("flows", 2, flows=[{**flow, "period": period}])
        assert [op.start for op in sends(plan)] == pytest.approx(starts)
        assert plan.flows[0].start == pytest.approx(5e-6)


def test_flows_may_name_ranks_of_any_role():
    plan = plan_of("flows", roles=[GPU, STORAGE], flows=[{"source": 1, "destination": 0}])
    assert edges(plan) == [(1, 0)]


@pytest.mark.parametrize(
    ("flow", "words"),
    [
        ({"source": 4, "destination": 0}, r"flows.0.source: 4; allowed: ranks 0 to 3"),
        ({"source": 1, "destination": 9}, r"flows.0.destination: 9"),
        ({"source": 1, "destination": 1}, r"flows.0.destination: 1 sends to itself"),
    ],
)
def test_flows_refuse_what_does_not_fit(flow, words):
    with pytest.raises(PlanError, match=words):
        plan_of("flows", 4, flows=[flow])


@pytest.mark.parametrize(
    "flows", [[], [{"source": 1}], [{"source": 0, "destination": 1, "sizes": 1}], [3], 7]
)
def test_flows_are_checked(flows):
    with pytest.raises(ValidationError):
        plan_of("flows", 4, flows=flows)


# storage-interference


def storage_edges(plan):
    ring = create_workload("storage-interference").collective_flows(plan)
    others = plan.flows[len(ring) :]
    ends = [plan.connections[flow.connection] for flow in others]
    return [(c.source_rank, c.destination_rank) for c in ends]


def test_gpus_are_storages_clients_on_a_shared_network():
    plan = plan_of("storage-interference", roles=[GPU] * 4 + [STORAGE] * 2, accesses=3)
    assert edges(plan)[:4] == [(0, 1), (1, 2), (2, 3), (3, 0)]
    assert storage_edges(plan) == [
        (4, 0), (0, 4), (5, 1), (1, 5), (4, 2), (2, 4), (5, 3), (3, 5),
    ]  # fmt: skip
    assert all(flow.messages == 3 for flow in plan.flows[4:])
    assert races(plan) == []


def test_front_end_nics_are_its_clients_where_there_are_any():
    roles = [GPU] * 4 + [STORAGE] + [FRONT_END] * 2
    plan = plan_of("storage-interference", roles=roles, read_size="4 KiB", size=1000)
    assert storage_edges(plan) == [(4, 5), (5, 4), (4, 6), (6, 4)]
    memories = run_lossless(plan)
    assert [verify_rank(plan, rank, memories[rank]) for rank in range(7)] == [0] * 7
    reference = create_workload("storage-interference").reference(plan)
    assert (reference.bus_factor, reference.ranks, reference.size_bytes) == (1.5, 4, 1000)


def test_a_servers_nics_share_its_accesses():
    """However many NICs do it, a server reads and writes the same."""
    gpus = [RankLocation(GPU, server=f"server{1 + r // 4}") for r in range(8)]
    storage = [RankLocation(STORAGE, server=f"storage{s}") for s in range(2)]
    front_end = [RankLocation(FRONT_END, server=f"server{s}") for s in (1, 2)]
    chosen = create_workload("storage-interference")
    parameters = chosen.Parameters(size=800, read_size=4400, write_size=2200, accesses=2)
    loads = []
    for locations in (gpus + storage, gpus + storage + front_end):
        plan = chosen.plan(parameters, world_size=len(locations), seed=1, locations=locations)
        memories = run_lossless(plan)
        wrong = [verify_rank(plan, rank, memory) for rank, memory in enumerate(memories)]
        assert wrong == [0] * len(locations)
        assert races(plan) == []
        load = {}
        for flow in plan.flows[len(chosen.collective_flows(plan)) :]:
            c = plan.connections[flow.connection]
            for rank, way in ((c.source_rank, "out"), (c.destination_rank, "in")):
                key = locations[rank].server, way
                load[key] = load.get(key, 0) + flow.payload_bytes
        loads.append(load)
    for load in loads:
        assert {load[f"server{s}", "in"] for s in (1, 2)} == {8800}
        assert {load[f"server{s}", "out"] for s in (1, 2)} == {4400}
        assert load["storage0", "in"] + load["storage1", "in"] == 8800
    assert loads[0]["storage0", "out"] == loads[1]["storage0", "out"] == 8800


def test_storage_accesses_are_periodic():
    plan = plan_of(
        "storage-interference", accesses=3, period="7 us", start="2 us", write_size=0, read_size=400
    )
    ring = create_workload("storage-interference").collective_flows(plan)
    starts = {op.start for op in sends(plan) if op.flow >= len(ring)}
    assert sorted(starts) == pytest.approx([2e-6, 9e-6, 16e-6])
    assert {op.length for op in sends(plan) if op.flow >= len(ring)} == {400}


def test_storage_bounds_its_memory():
    plan = plan_of("storage-interference", accesses=1000, read_size="4 MiB", write_size=0)
    assert all(memory.total < 100 * 2**20 for memory in plan.memory)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"roles": [GPU, GPU]}, "storage-interference: no rank is a storage server"),
        ({"read_size": 0, "write_size": 0}, "write_size: 0"),
        ({"read_size": 6}, "read_size: 6; allowed: multiples of 4"),
    ],
)
def test_storage_refuses(parameters, words):
    with pytest.raises(PlanError, match=words):
        plan_of("storage-interference", **parameters)


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
