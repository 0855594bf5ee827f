"""Placement of a scenario's jobs: on which GPUs plans run, what crosses groups, what is refused."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from testbed.placing import PlacedJob, placed_jobs, traffic_between
from testbed.plan_view import print_plan
from testbed.scenario import ScenarioError, build_topology, load_scenario, plan_traffic
from testbed.schema import Scenario
from traffic.payload import initial_memory
from traffic.plan import OpKind, Plan
from traffic.workloads import verify_rank

SIZE = 64 * 1024


def document(workload: dict[str, Any] | None = None, **sections: Any) -> dict[str, Any]:
    """Two leaves of two servers with two GPUs."""
    return {
        "name": "placing",
        "topology": {
            "kind": "leaf-spine",
            "leaves": 2,
            "servers_per_leaf": 2,
            "gpus_per_server": 2,
        },
        "workload": {
            "kind": "collective",
            "algorithm": "ring",
            "size": SIZE,
            "gpus_per_server": 1,
            **(workload or {}),
        },
        **sections,
    }


def planned(workload: dict[str, Any] | None = None, **sections: Any) -> Plan:
    scenario = Scenario.from_document(document(workload, **sections))
    return plan_traffic(scenario, build_topology(scenario))


def jobs_of(workload: dict[str, Any] | None = None, **sections: Any) -> list[PlacedJob]:
    scenario = Scenario.from_document(document(workload, **sections))
    topology = build_topology(scenario)
    return placed_jobs(scenario.placement, topology, plan_traffic(scenario, topology))


def pairs(plan: Plan) -> set[tuple[int, int]]:
    return set(traffic_between(plan))


def test_the_default_is_packed_and_changes_no_plan() -> None:
    plan = planned()
    assert plan.jobs == (tuple(range(8)),)
    assert planned(placement={"strategy": "packed"}).plan_hash() == plan.plan_hash()
    assert pairs(plan) == {(rank, (rank + 1) % 8) for rank in range(8)}


def test_a_ring_follows_the_placement() -> None:
    # servers in turn from both leaves: 0 1 | 4 5 | 2 3 | 6 7
    plan = planned(placement={"strategy": "fragmented"})
    assert plan.gpu_ranks == (0, 1, 4, 5, 2, 3, 6, 7)
    assert pairs(plan) == {(0, 1), (1, 4), (4, 5), (5, 2), (2, 3), (3, 6), (6, 7), (7, 0)}


def test_what_crosses_leaves() -> None:
    """Of a ring's 2(n - 1)/n S per link, two of eight links cross if packed, four if fragmented."""
    link = 2 * 7 * SIZE // 8
    (packed,) = jobs_of()
    assert (packed.groups, packed.traffic_bytes, packed.crossing_bytes) == (2, 8 * link, 2 * link)
    (fragmented,) = jobs_of(placement={"strategy": "fragmented"})
    assert (fragmented.traffic_bytes, fragmented.crossing_bytes) == (8 * link, 4 * link)


def test_topology_aware_sees_the_traffic_of_the_workload() -> None:
    """Pairs of ranks far apart in number: packed they all cross, with their traffic known none."""
    workload = {"kind": "permutation", "shift": 4, "message_size": SIZE}
    for key in ("algorithm", "size"):
        document_of = document(workload)
        document_of["workload"].pop(key, None)
    base = {**document(), "workload": workload}

    def crossing(strategy: str) -> int:
        scenario = Scenario.from_document({**base, "placement": {"strategy": strategy}})
        topology = build_topology(scenario)
        (job,) = placed_jobs(scenario.placement, topology, plan_traffic(scenario, topology))
        assert job.traffic_bytes == 8 * SIZE
        return job.crossing_bytes

    assert crossing("packed") == 8 * SIZE
    assert crossing("topology-aware") == 0


def test_explicit_slots() -> None:
    plan = planned(placement={"strategy": "explicit", "slots": [7, 5, 3, 1]})
    assert plan.gpu_ranks == (7, 5, 3, 1)
    assert pairs(plan) == {(7, 5), (5, 3), (3, 1), (1, 7)}
    assert [memory.total > 0 for memory in plan.memory] == [False, True] * 4


def test_ranks_of_the_workload_are_those_of_the_jobs() -> None:
    placement = {"strategy": "explicit", "slots": [7, 5, 3, 1]}
    assert pairs(planned({"ranks": [0, 3]}, placement=placement)) == {(7, 1), (1, 7)}
    scenario = {**document(placement=placement), "workload": {"kind": "incast", "receiver": 2}}
    plan_of = Scenario.from_document(scenario)
    assert pairs(plan_traffic(plan_of, build_topology(plan_of))) == {(7, 3), (5, 3), (1, 3)}


def test_several_jobs_are_several_communicators() -> None:
    placement = {
        "strategy": "fragmented",
        "jobs": [{"name": "a", "size": 4}, {"name": "b", "size": 4}],
    }
    plan = planned(placement=placement)
    assert plan.jobs == ((0, 1, 4, 5), (2, 3, 6, 7))
    assert pairs(plan) == {
        (0, 1), (1, 4), (4, 5), (5, 0), (2, 3), (3, 6), (6, 7), (7, 2),
    }  # fmt: skip
    a, b = jobs_of(placement=placement)
    assert (a.name, b.name, a.groups, b.groups) == ("a", "b", 2, 2)
    assert a.crossing_bytes == b.crossing_bytes == 2 * 2 * 3 * SIZE // 4
    # unless the workload says who talks to whom
    both = planned({"groups": [[0, 4], [1, 5]]}, placement=placement)
    assert pairs(both) == {(0, 2), (2, 0), (1, 3), (3, 1)}


def test_environments_are_the_job_s_own() -> None:
    jobs = [{"name": "a", "slots": [1, 4, 5]}, {"name": "b", "slots": [0, 2, 3]}]
    a, b = jobs_of({"ranks": [0, 1]}, placement={"strategy": "explicit", "jobs": jobs})
    assert [e.variables() for e in a.environments] == [
        {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "1"},
        {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "2"},
        {"RANK": "2", "LOCAL_RANK": "1", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "2"},
    ]
    assert [e.server for e in b.environments] == ["server1", "server2", "server2"]
    assert b.traffic_bytes == b.crossing_bytes == 0


def test_results_are_verified_where_the_ranks_are() -> None:
    """Data that was never reduced is wrong on the job's GPUs, and nobody else has any."""
    plan = planned(placement={"strategy": "explicit", "slots": [6, 2, 4]})
    wrong = [verify_rank(plan, r, initial_memory(plan, r).data.cast("B")) for r in (6, 2, 4)]
    assert all(count > 0 for count in wrong)
    assert verify_rank(plan, 0, memoryview(b"")) == 0


def test_servers_of_a_training_job_follow_the_placement() -> None:
    workload = {"kind": "training", "preset": "llama3-8b", "tp": 2, "scale": 1e-6}
    scenario = Scenario.from_document(
        {**document(placement={"strategy": "fragmented"}), "workload": workload}
    )
    plan = plan_traffic(scenario, build_topology(scenario))
    local = {(op.rank, op.peer) for ops in plan.ops for op in ops if op.kind is OpKind.LOCAL_SEND}
    assert local and all(plan.servers[a] == plan.servers[b] for a, b in local)


@pytest.mark.parametrize(
    ("placement", "told"),
    [
        ({"strategy": "packd"}, "placement.strategy: 'packd' is not known; did you mean 'packed'?"),
        ({"size": 0}, "placement.size: 0 "),
        ({"size": 9}, "placement: jobs of 9 ranks in total; the fabric has 8 free GPUs"),
        ({"strategy": "explicit"}, "placement: strategy 'explicit' without slots; allowed: slots"),
        ({"slots": [1, 2]}, "placement: strategy 'packed' with slots; allowed: slots"),
        (
            {"strategy": "explicit", "slots": [1, 8]},
            "placement: job job: slot 8 is none of the 8 free GPUs",
        ),
        (
            {"strategy": "explicit", "slots": [1, 1]},
            "placement: job job: slot 1 already belongs to job job",
        ),
        (
            {"strategy": "explicit", "size": 3, "slots": [1, 2]},
            "placement: job job: 2 slots for 3 ranks; one each",
        ),
        (
            {"size": 2, "jobs": [{"name": "a", "size": 2}]},
            "placement: size or slots beside jobs; allowed: those of each job instead",
        ),
        (
            {"jobs": [{"name": "a", "size": 2}, {"name": "b"}]},
            "placement: several jobs, one of them without size; allowed: a size for each",
        ),
        (
            {"jobs": [{"name": "a", "size": 2}, {"name": "a", "size": 2}]},
            "placement: job a: two jobs have this name",
        ),
        (
            {"jobs": [{"name": "a", "size": 2}, {"name": "b", "size": 3}]},
            "workload.groups: the jobs, which they are, have different sizes",
        ),
        ({"jobs": [{"size": 2}]}, "placement.jobs.0.name: this field is required"),
        ({"size": 1}, "world_size: 2 GPUs or more are needed, not 1"),
        ({"strategy": 7}, "placement.strategy: 7 must be a valid string"),
    ],
)
def test_bad_sections(placement: dict[str, Any], told: str, tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(document(placement=placement)))
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    assert "\n" not in str(caught.value)
    assert told in str(caught.value)


def test_set_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(document()))
    scenario = load_scenario(path, ["placement.strategy=fragmented", "placement.size=4"])
    assert plan_traffic(scenario, build_topology(scenario)).gpu_ranks == (0, 1, 4, 5)


def test_plan_shows_jobs() -> None:
    jobs = [{"name": "a", "slots": [0, 4]}, {"name": "b", "slots": [5, 6]}]
    scenario = Scenario.from_document(
        document(placement={"strategy": "explicit", "jobs": jobs}, dilation=1000)
    )
    console = Console(file=io.StringIO(), width=80, highlight=False)
    print_plan(scenario, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert (
        "a, explicit: WORLD_SIZE 2, LOCAL_WORLD_SIZE 1, 2 servers, 2 groups; "
        "131 KB of 131 KB cross groups" in " ".join(text.split())
    )
    assert "b, explicit: WORLD_SIZE 2, LOCAL_WORLD_SIZE 1, 2 servers, 1 group\n" in text
    assert "│ 1    │ 0          │ 0 (rank 4) │ server3 │" in text
