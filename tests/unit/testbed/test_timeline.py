"""Timelines of ranks: every moment counted once, lanes without overlap, a valid trace file."""

from __future__ import annotations

import json
from array import array
from collections import defaultdict
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import run_result

from testbed.report.timeline_chart import drawn_variants, timeline_chart, timeline_finding
from testbed.results import Activity, RankTimeline, TimelineResult
from testbed.timeline import chrome, intervals_of, summarise, write_chrome_trace
from testbed.timeline.chrome import chrome_trace
from testbed.timeline.summary import merged
from tests.unit.traffic.nic_world import World
from traffic.executor import KINDS, Timeline
from traffic.locations import RankLocation
from traffic.plan import Operation, Plan, WorkloadParameters
from traffic.plan_builder import PlanBuilder
from traffic.rank_times import rank_times
from traffic.workloads import create_workload

NAN = float("nan")


def by_hand() -> tuple[Plan, dict[int, Timeline]]:
    """Rank 0 computes 0-4 and sends from 4; rank 1 gets it at 6 (0 knows at 7), computes 6-9."""
    builder = PlanBuilder(workload="incast", parameters=WorkloadParameters(), world_size=2, seed=1)
    for rank in range(2):
        builder.memory(rank, initialised=64, total=128)
    first = builder.compute(0, duration=4.0, name="forward")
    _, receive = builder.message(
        builder.flow(builder.connect(0, 1)),
        operation=Operation.WRITE_WITH_IMM,
        length=64,
        offset=0,
        remote_offset=64,
        depends_on=(first,),
    )
    assert receive is not None
    builder.compute(1, duration=3.0, depends_on=(receive,), name="backward")
    plan = builder.build()
    return plan, {
        0: timeline(plan, 0, (0.0, 4.0), (4.0, 7.0)),
        1: timeline(plan, 1, (0.0, 6.0), (6.0, 9.0)),
    }


def timeline(plan: Plan, rank: int, *spans: tuple[float, float]) -> Timeline:
    started, finished = zip(*spans, strict=True)
    kinds = (KINDS.index(op.kind) for op in plan.ops[rank])
    return Timeline(array("B", kinds), array("d", started), array("d", finished))


@cache
def executed(kind: str) -> tuple[Plan, dict[int, Timeline]]:
    """A plan of eight ranks in four servers, run on a perfect wire."""
    workload = create_workload("training" if kind == "training" else "collective")
    if kind == "training":
        parameters = workload.Parameters(
            model={"layers": 8, "hidden": 256, "heads": 4, "sequence": 512},
            scale=0.2, micro_batches=4, pp=4, utilisation=0.05,
        )  # fmt: skip
    else:
        parameters = workload.Parameters(
            collective="all-reduce", algorithm=kind, size=2**18, gpus_per_server=1
        )
    locations = [RankLocation(server=f"server{rank // 2 + 1}") for rank in range(8)]
    plan = workload.plan(parameters, world_size=8, seed=1, locations=locations)
    world = World(plan)
    world.run()
    return plan, {rank.rank: rank.executor.timeline() for rank in world.ranks}


EXECUTED = pytest.mark.parametrize("kind", ["ring", "double-binary-tree", "training"])


def test_by_hand() -> None:
    plan, timelines = by_hand()
    result = summarise(intervals_of(plan, timelines), ("a", "b"))
    assert result is not None
    assert (result.begin, result.end, result.duration) == (0.0, 9.0, 9.0)
    first, second = result.ranks
    assert first.spans == {Activity.COMPUTE: [0.0, 4.0], Activity.SEND: [4.0, 7.0]}
    assert first.shares == {
        "compute": 4.0, "nvlink": 0.0, "send": 3.0, "receive": 0.0, "wait": 0.0, "done": 2.0,
    }  # fmt: skip
    assert second.spans == {Activity.COMPUTE: [6.0, 9.0], Activity.RECEIVE: [4.0, 6.0]}
    assert second.shares == {
        "compute": 3.0, "nvlink": 0.0, "send": 0.0, "receive": 2.0, "wait": 4.0, "done": 0.0,
    }  # fmt: skip
    assert (first.waits_for, second.waits_for) == ({}, {0: 4.0})
    assert (first.server, second.server) == ("a", "b")


def test_what_did_not_end_lasts_to_the_end_and_what_did_not_begin_is_not_there() -> None:
    plan, timelines = by_hand()
    timelines[0].finished[1] = NAN
    timelines[1].finished[0] = NAN
    timelines[1].started[1] = timelines[1].finished[1] = NAN
    found = intervals_of(plan, timelines)
    assert [(i.begin, i.end, i.finished) for i in found[0]] == [(0, 4, True), (4, 4, False)]
    assert [(i.begin, i.end, i.finished) for i in found[1]] == [(4, 4, False)]
    assert summarise({0: [], 1: []}) is None
    failed = intervals_of(plan, timelines, end=9.0)
    assert [(i.begin, i.end, i.finished) for i in failed[0]] == [(0, 4, True), (4, 9, False)]


@EXECUTED
def test_every_moment_of_a_rank_counts_once(kind: str) -> None:
    plan, timelines = executed(kind)
    result = summarise(intervals_of(plan, timelines), plan.servers)
    assert result is not None
    assert [rank.rank for rank in result.ranks] == list(range(8))
    for rank in result.ranks:
        assert min(rank.shares.values()) >= 0
        assert sum(rank.shares.values()) == pytest.approx(result.duration)
        waits = [end - begin for begin, end in rank.waits(result.begin)]
        tolerance = len(waits) * result.resolution
        assert rank.waiting <= sum(waits) + tolerance
        if kind != "training":  # where a rank also waits for the end of its own sends
            assert rank.waiting == pytest.approx(sum(waits), abs=tolerance)


@EXECUTED
def test_shares_agree_with_what_the_metrics_say(kind: str) -> None:
    plan, timelines = executed(kind)
    result = summarise(intervals_of(plan, timelines))
    times = rank_times(plan, timelines, range(8))
    assert result is not None
    assert times is not None
    for rank, other in zip(result.ranks, times, strict=True):
        shares = rank.shares
        exposed = shares["nvlink"] + shares["send"] + shares["receive"]
        assert shares["compute"] == pytest.approx(other.compute)
        assert exposed == pytest.approx(other.exposed_communication)
        assert shares["wait"] + shares["done"] == pytest.approx(other.waiting, abs=1e-12)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=12), st.integers(0, 3))
def test_merged_spans_cover_the_same_and_do_not_overlap(
    drawn: list[tuple[int, int]], pause: int
) -> None:
    spans = np.array([(a, a + n) for a, n in drawn], dtype=float).reshape(-1, 2)
    found = merged(spans, pause=float(pause))
    for (_, end), (begin, _) in pairwise(found.tolist()):
        assert begin > end + pause
    for begin, end in spans.tolist():
        assert any(first <= begin and end <= last for first, last in found.tolist())
    if len(spans):
        assert (found.min(), found.max()) == (spans.min(), spans.max())


def test_a_long_timeline_stays_small() -> None:
    plan, timelines = by_hand()
    interval = intervals_of(plan, timelines)[0][0]
    many = [
        type(interval)(interval.activity, n * 1e-6, (n + 0.5) * 1e-6, interval.op)
        for n in range(100_000)
    ]
    result = summarise({0: many})
    assert result is not None
    (rank,) = result.ranks
    assert len(rank.spans[Activity.COMPUTE]) <= 2 * 501
    assert rank.shares["compute"] == pytest.approx(0.05)


def test_spans_that_overlap_are_refused() -> None:
    with pytest.raises(ValueError, match="spans of send overlap"):
        RankTimeline(rank=1, spans={Activity.SEND: [0.0, 2.0, 1.0, 3.0]}, shares={})


@EXECUTED
def test_a_trace_is_valid_and_its_lanes_do_not_overlap(kind: str, tmp_path: Path) -> None:
    plan, timelines = executed(kind)
    found = intervals_of(plan, timelines)
    path = write_chrome_trace(tmp_path, found, plan.servers)
    document = json.loads(path.read_text(encoding="utf-8"))
    events = document["traceEvents"]
    check_schema(events)
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert list(processes.values()) == ["server1", "server2", "server3", "server4"]
    lanes = by_lane(events)
    for lane in lanes.values():
        for before, after in pairwise(sorted(lane, key=lambda e: (e["ts"], e["dur"]))):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-6
    assert sum(map(len, lanes.values())) == sum(map(len, plan.ops))
    end = max(e["ts"] + e["dur"] for lane in lanes.values() for e in lane)
    assert end == pytest.approx(1e6 * max(max(t.finished) for t in timelines.values()), abs=1e-3)


def check_schema(events: list[dict[str, Any]]) -> None:
    """The fields that the trace event format asks for, by phase."""
    threads = set()
    for event in events:
        assert event["ph"] in ("M", "X", "s", "f")
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["name"]
        if event["ph"] == "M":
            threads.add((event["pid"], event["tid"]))
            continue
        assert event["ts"] >= 0
        assert event["cat"]
        assert (event["pid"], event["tid"]) in threads  # named before it is used
        if event["ph"] == "X":
            assert event["dur"] >= 0
        else:
            assert event["id"]


def by_lane(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    lanes = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            lanes[event["pid"], event["tid"]].append(event)
    return lanes


@EXECUTED
def test_arrows_lead_from_a_send_to_its_receive(kind: str) -> None:
    plan, timelines = executed(kind)
    events = chrome_trace(intervals_of(plan, timelines), plan.servers)["traceEvents"]
    begins = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert begins.keys() == ends.keys()
    sends = sum(op.kind.sends for ops in plan.ops for op in ops)
    # messages of a tree follow each other so closely that some are drawn too late for an arrow
    assert len(begins) == sends if kind == "ring" else 0 < len(begins) < sends
    assert all(begins[name]["ts"] <= ends[name]["ts"] for name in begins)


def test_events_say_how_much_went_to_whom() -> None:
    plan, timelines = by_hand()
    events = chrome_trace(intervals_of(plan, timelines))["traceEvents"]
    slices = {(e["name"], e["ts"], e["dur"]): e["args"] for e in events if e["ph"] == "X"}
    assert set(slices) == {
        ("forward", 0, 4e6), ("send to 1", 4e6, 3e6), ("receive from 0", 4e6, 2e6),
        ("backward", 6e6, 3e6),
    }  # fmt: skip
    sent = slices["send to 1", 4e6, 3e6]
    assert (sent["bytes"], sent["peer"], sent["posted_us"]) == (64, 1, 4e6)


def test_computations_that_overlap_get_lanes_of_their_own() -> None:
    builder = PlanBuilder(workload="incast", parameters=WorkloadParameters(), world_size=1, seed=1)
    for _ in range(3):
        builder.compute(0, duration=1.0)
    plan = builder.build()
    spans = timeline(plan, 0, (0.0, 2.0), (1.0, 3.0), (2.0, 4.0))
    lanes = by_lane(chrome_trace(intervals_of(plan, {0: spans}))["traceEvents"])
    assert sorted([e["ts"] for e in lane] for lane in lanes.values()) == [[0, 2e6], [1e6]]


def test_a_long_trace_has_no_arrows(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, timelines = by_hand()
    found = intervals_of(plan, timelines)
    assert {e["ph"] for e in chrome_trace(found)["traceEvents"]} == {"M", "X", "s", "f"}
    monkeypatch.setattr(chrome, "ARROW_LIMIT", 3)
    assert {e["ph"] for e in chrome_trace(found)["traceEvents"]} == {"M", "X"}


def test_a_trace_keeps_the_longest_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chrome, "EVENT_LIMIT", 2)
    plan, timelines = by_hand()
    document = chrome_trace(intervals_of(plan, timelines))
    names = [e["name"] for e in document["traceEvents"] if e["ph"] == "X"]
    assert "forward" in names
    assert document["otherData"]["operations_left_out"] == 4 - len(names) >= 2


def result_of(**timelines: TimelineResult) -> Any:
    base = run_result()
    variants = [
        base.variants[0].model_copy(update={"name": name, "timeline": value, "overrides": {}})
        for name, value in timelines.items()
    ]
    return base.model_copy(update={"variants": variants})


def timeline_result(kind: str) -> TimelineResult:
    plan, timelines = executed(kind)
    found = summarise(intervals_of(plan, timelines), plan.servers)
    assert found is not None
    return found


def test_findings_name_who_waits_for_whom() -> None:
    plan, timelines = by_hand()
    hand = summarise(intervals_of(plan, timelines))
    assert hand is not None
    assert timeline_finding(result_of(hand=hand)) == (
        "Ranks compute 39 % of the time; rank 1 waits longest (44 %, for rank 0's messages), "
        "rank 0 least (0 %)"
    )
    ring = timeline_result("ring")
    assert timeline_finding(result_of(a=ring, b=ring)) == "No rank waits for another"
    both = timeline_finding(result_of(hand=hand, ring=ring))
    assert both == (
        "Ranks compute for these shares of the time: 39 % (hand), 0 % (ring); rank 1 waits longest "
        "with hand (44 %, for rank 0's messages), rank 0 least (0 %)"
    )


def test_the_chart_has_a_panel_per_variant_and_a_band_per_rank() -> None:
    figure = timeline_chart(result_of(a=timeline_result("ring"), b=timeline_result("training")))
    assert figure is not None
    panels = figure.axes
    assert len(panels) == 2
    for ax in panels:
        assert [label.get_text() for label in ax.get_yticklabels()] == [
            f"rank {rank}" for rank in range(8)
        ]
    assert timeline_chart(run_result()) is None


def test_of_many_variants_only_few_are_drawn() -> None:
    many = {f"v{n}": timeline_result("ring") for n in range(6)}
    assert len(drawn_variants(result_of(**many))) == 3
