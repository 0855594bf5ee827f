"""Flows from a distribution of sizes: their load, their number, and that each stands alone."""

from __future__ import annotations

import pytest
from lossless import run_lossless

from traffic.plan import PlanError
from traffic.workloads import create_workload, verify_rank


def flows_plan(*, ranks=4, seed=1, **parameters):
    workload = create_workload("poisson-flows")
    return workload.plan(workload.Parameters(**parameters), world_size=ranks, seed=seed)


def test_every_flow_has_a_connection_of_its_own():
    plan = flows_plan(sizes="fb-hadoop", duration="50 us")
    assert len(plan.flows) == len(plan.connections) > 20
    assert all(flow.messages == 1 for flow in plan.flows)
    assert all(0 <= flow.start < 50e-6 for flow in plan.flows)
    memories = run_lossless(plan)
    assert [verify_rank(plan, rank, memory) for rank, memory in enumerate(memories)] == [0] * 4


@pytest.mark.parametrize(("scale", "duration"), [(1.0, "2 ms"), (0.1, "200 us")])
def test_the_load_is_what_is_asked_for_at_any_scale(scale, duration):
    """A flow is of 120 KB, give or take 600: over 1600 flows the sum is within some 12 %."""
    plan = flows_plan(
        sizes="fb-hadoop", load=0.5, rate="400 Gbps", duration=duration, size_scale=scale
    )
    assert len(plan.flows) > 1500
    assert plan.payload_bytes * 8 == pytest.approx(4 * 0.5 * 400e9 * 2e-3 * scale, rel=0.25)


@pytest.mark.parametrize(
    ("name", "spelt"), [("web-search", "WebSearch"), ("fb-hadoop", "FB_Hadoop")]
)
def test_distributions_are_known_as_the_papers_spell_them(name, spelt):
    plans = [flows_plan(sizes=sizes, duration="500 us") for sizes in (name, spelt)]
    assert plans[0].ops == plans[1].ops


def test_sizes_come_from_a_file(tmp_path):
    path = tmp_path / "sizes.txt"
    path.write_text("1000 0\n1001 100\n")
    plan = flows_plan(sizes=str(path), duration="1 us")
    assert {flow.payload_bytes for flow in plan.flows} == {1001}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"sizes": "webserch"}, "sizes: 'webserch' is no file; allowed: fb-hadoop, web-search"),
        ({"sizes": "web-search", "duration": "1 ns"}, "no flow begins within"),
        ({"sizes": "fb-hadoop", "duration": "10 s"}, "flows; at most"),
    ],
)
def test_what_cannot_be_drawn_is_refused(parameters, message):
    with pytest.raises(PlanError, match=message):
        flows_plan(**parameters)


def test_what_is_no_plain_file_is_named_once(tmp_path, monkeypatch):
    with pytest.raises(PlanError, match=rf"^sizes: {tmp_path}: is no file$"):
        flows_plan(sizes=str(tmp_path))
    monkeypatch.chdir(tmp_path.parent)
    with pytest.raises(PlanError, match=rf"^sizes: {tmp_path.name}: is no file$"):
        flows_plan(sizes=f"./{tmp_path.name}")


def test_a_bad_file_is_named(tmp_path):
    path = tmp_path / "sizes.txt"
    path.write_text("1000 0\nmany 100\n")
    with pytest.raises(PlanError, match=r"sizes: .*sizes.txt: line 2"):
        flows_plan(sizes=str(path))
