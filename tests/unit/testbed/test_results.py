"""Results: the schema's round trip, metrics by hand, empty runs, series, files."""

import csv
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from synthetic import run_result

from testbed.fidelity import Verdict
from testbed.results import (
    METRICS,
    SCHEMA_VERSION,
    CollectiveResult,
    DropRecord,
    EmptyResultError,
    FaultRecord,
    FlowResult,
    JobRankTimes,
    JobResult,
    PortResult,
    QueueSamples,
    QueueSeries,
    RankResult,
    ResultError,
    atomic_write,
    build_psn_trace,
    check_not_empty,
    compute_metrics,
    downsample_queues,
    read_result,
    write_drops_csv,
    write_flows_csv,
    write_queues_csv,
    write_result,
)


@pytest.fixture(scope="module")
def result():
    return run_result(senders=3, packets=64, limit=200_000)


def flow(index=0, **fields):
    defaults = {
        "source_rank": 1, "destination_rank": 0, "bytes": 1000, "messages": 1, "start": 0.0,
        "finish": 1e-6, "sent_packets": 1, "delivered_bytes": 1000,
    }  # fmt: skip
    return FlowResult(index=index, **(defaults | fields))


def with_flows(result, *flows, **fields):
    variant = result.variants[0].model_copy(update={"flows": list(flows), **fields})
    return result.model_copy(update={"variants": [variant]})


def test_result_survives_a_round_trip(result, tmp_path):
    write_result(tmp_path, result)
    again = read_result(tmp_path)
    assert again == result
    assert read_result(tmp_path / "result.json") == result
    assert again.variants[0].flows[0].goodput == result.variants[0].flows[0].goodput


def test_fields_of_a_later_writer_are_ignored(result, tmp_path):
    document = json.loads(result.model_dump_json()) | {"invented_later": 1}
    (tmp_path / "result.json").write_text(json.dumps(document))
    assert read_result(tmp_path) == result


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "not a result"),
        ('{"schema_version": "1"}', "not a result"),
        (f'{{"schema_version": {SCHEMA_VERSION + 1}}}', "use a newer rocelab"),
        ('{"schema_version": 0}', "run the scenario again"),
        (f'{{"schema_version": {SCHEMA_VERSION}}}', "name: Field required"),
    ],
)
def test_unreadable_results_say_why(tmp_path, content, message):
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(ResultError, match=message) as error:
        read_result(tmp_path)
    assert str(tmp_path / "result.json") in str(error.value)


def test_a_missing_result_says_so(tmp_path):
    with pytest.raises(ResultError, match="no such file"):
        read_result(tmp_path)


def test_an_interrupted_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "flows.csv"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic_write(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["flows.csv"]


def test_numbers_that_json_cannot_hold_are_refused():
    with pytest.raises(ValidationError):
        flow(start=float("nan"))


def test_metrics_of_a_hand_made_variant(result):
    variant = with_flows(
        result,
        flow(0, start=1e-6, finish=3e-6, delivered_bytes=500, retransmitted_packets=2, naks=1),
        flow(1, start=0.0, finish=4e-6, delivered_bytes=1500, timeouts=3, rnr_naks=4),
        flow(2, start=2e-6, finish=5e-6, delivered_bytes=0, status="IBV_WC_RETRY_EXC_ERR"),
        flow(3, start=2e-6, finish=None, delivered_bytes=0, status="unfinished"),
        emulated_seconds=5e-6,
        lower_bound=2.5e-6,
    ).variants[0]
    metrics = compute_metrics(variant)
    assert set(metrics) == set(METRICS)
    assert metrics["completion_time_median"] == pytest.approx(3e-6)  # of 2 us and 4 us
    assert metrics["completion_time_max"] == pytest.approx(4e-6)
    assert metrics["duration"] == pytest.approx(5e-6)
    assert metrics["slowdown"] == pytest.approx(2.0)
    assert metrics["goodput"] == pytest.approx(2000 * 8 / 5e-6)
    assert metrics["delivered_bytes"] == 2000
    assert metrics["failed_flows"] == 2
    assert (metrics["naks"], metrics["rnr_naks"], metrics["timeouts"]) == (1, 4, 3)
    assert metrics["retransmitted_packets"] == 2
    assert metrics["wrong_elements"] is None and metrics["busbw"] is None
    assert metrics["verdict"] == "faithful"


def test_metrics_of_a_job_are_per_iteration_and_per_rank(result):
    """Two iterations of 5 ms of 400 tokens, on two ranks, at a tenth of the original's times."""
    job = JobResult(
        iterations=2,
        iteration_time=5e-3,
        tokens=400,
        time_scale=0.1,
        ranks=[
            JobRankTimes(rank=0, compute=6e-3, exposed_communication=3e-3, waiting=1e-3),
            JobRankTimes(rank=1, compute=2e-3, exposed_communication=3e-3, waiting=5e-3),
        ],
    )
    metrics = compute_metrics(result.variants[0].model_copy(update={"job": job}))
    assert metrics["iteration_time"] == 5e-3
    assert metrics["exposed_communication"] == pytest.approx(1.5e-3)
    assert metrics["waiting_time"] == pytest.approx(1.5e-3)
    assert metrics["compute_share"] == pytest.approx(0.4)
    assert metrics["straggler_spread"] == pytest.approx(1.0)
    assert metrics["tokens_per_second"] == pytest.approx(400 * 0.1 / 5e-3 / 2)
    assert compute_metrics(result.variants[0])["iteration_time"] is None


def test_drops_are_what_the_ledger_says(result):
    variant = result.variants[0]
    metrics = compute_metrics(variant)
    assert metrics["dropped_packets"] == variant.drops_total > 0
    assert metrics["dropped_bytes"] == sum(p.dropped_bytes.get("port-limit", 0)
                                           for p in variant.ports)  # fmt: skip
    assert metrics["ledger_open"] == 0


def test_no_completed_flow_has_no_completion_time(result):
    metrics = compute_metrics(with_flows(result, flow(finish=None)).variants[0])
    assert metrics["completion_time_median"] is None and metrics["goodput"] is None
    assert metrics["slowdown"] is None


def test_bus_bandwidth_as_nccl_tests_defines_it(result):
    collective = CollectiveResult(
        operation="all-reduce", ranks=8, bytes=8 << 20, time=1e-3, bus_factor=2 * 7 / 8
    )
    variant = with_flows(result, flow(), collective=collective).variants[0]
    metrics = compute_metrics(variant)
    assert metrics["algbw"] == pytest.approx((8 << 20) * 8 / 1e-3)
    assert metrics["busbw"] == pytest.approx(metrics["algbw"] * 1.75)


def test_wrong_elements_are_summed_over_ranks_that_check(result):
    ranks = [RankResult(rank=0, wrong_elements=2), RankResult(rank=1, wrong_elements=0),
             RankResult(rank=2)]  # fmt: skip
    variant = with_flows(result, flow(), ranks=ranks).variants[0]
    assert compute_metrics(variant)["wrong_elements"] == 2


@pytest.mark.parametrize(
    ("flows", "message"),
    [
        ([], "made no flow"),
        ([flow(sent_packets=0)], "no flow sent a packet"),
        ([flow(delivered_bytes=0)], "no byte was delivered"),
        ([flow(finish=None, status="IBV_WC_RETRY_EXC_ERR")], "IBV_WC_RETRY_EXC_ERR"),
    ],
)
def test_an_empty_run_is_never_a_success(result, flows, message):
    with pytest.raises(EmptyResultError, match=message):
        check_not_empty(with_flows(result, *flows))
    with pytest.raises(EmptyResultError, match="no variant"):
        check_not_empty(result.model_copy(update={"variants": []}))


def test_a_run_that_a_fault_ended_is_not_empty(result):
    fault = FaultRecord(time=1e-6, what="switch down", subject="leaf1")
    ended = flow(finish=None, status="IBV_WC_RETRY_EXC_ERR")
    unfinished = flow(finish=None, status="unfinished")
    check_not_empty(with_flows(result, ended, unfinished, faults=[fault]))
    nothing = flow(finish=None, status="IBV_WC_RETRY_EXC_ERR", delivered_bytes=0)
    check_not_empty(with_flows(result, nothing, faults=[fault]))  # the only path is down from 0
    with pytest.raises(EmptyResultError, match="unfinished"):
        check_not_empty(with_flows(result, unfinished, faults=[fault]))


def test_a_run_with_results_is_not_empty(result):
    check_not_empty(result)
    one_empty = [result.variants[0], with_flows(result).variants[0]]
    with pytest.raises(EmptyResultError):
        check_not_empty(result.model_copy(update={"variants": one_empty}))


@given(
    depths=st.lists(st.integers(0, 10**6), min_size=1, max_size=300),
    bins=st.integers(1, 50),
)
def test_downsampling_keeps_the_peak_and_covers_every_sample(depths, bins):
    times = np.arange(len(depths)) * 1e-6
    samples = QueueSamples(times, {"p": np.array(depths), "empty": np.zeros(len(depths), int)})
    series = downsample_queues(samples, bins=bins)
    assert len(series.times) <= bins and series.times[0] == 0.0
    assert "empty" not in series.depths
    if any(depths):
        assert max(series.depths["p"]) == max(depths)
        edges = [*np.searchsorted(times, series.times), len(depths)]
        for i, depth in enumerate(series.depths["p"]):
            assert depth == max(depths[edges[i] : edges[i + 1]])


def test_no_bin_reaches_across_an_idle_span():
    """67 ms of idle time were skipped between two bursts; each keeps its own depths."""
    times = np.concatenate([np.arange(50) * 1e-6, 67e-3 + np.arange(50) * 1e-6])
    depths = np.concatenate([np.full(50, 7), np.full(50, 9)])
    series = downsample_queues(QueueSamples(times, {"p": depths}), bins=3)
    before = [d for t, d in zip(series.times, series.depths["p"], strict=True) if t < 60e-3]
    assert set(before) == {7} and series.times[-1] >= 67e-3


def test_downsampling_nothing():
    empty = QueueSamples(np.array([]), {"p": np.array([], dtype=int)})
    assert downsample_queues(empty) == QueueSeries(times=[], depths={})


def test_series_of_unequal_length_are_refused():
    with pytest.raises(ValidationError, match="1 depths for 2 times"):
        QueueSeries(times=[0.0, 1.0], depths={"p": [1]})


def drop(psn, qp=7, destination="10.1.0.1", time=2.0):
    return DropRecord(time=time, interface="p", reason="port limit", source="10.1.0.2",
                      destination=destination, qp=qp, psn=psn, bytes=4154)  # fmt: skip


def test_psn_trace_merges_drops_of_its_own_queue_pair_across_the_wrap():
    records = [drop(1), drop(1, qp=8), drop(1, destination="10.1.0.9")]
    trace = build_psn_trace(
        flow(), [(3.0, "send", 4), (1.0, "send", 3)], drops=records, destination="10.1.0.1",
        destination_qp=7, first_psn=0xFFFFFE,
    )  # fmt: skip
    assert trace.times == [1.0, 2.0, 3.0]
    assert trace.events == ["send", "drop", "send"]
    assert trace.psns == [3, 3, 4]


def test_psn_trace_unwraps_drops_of_flows_beyond_24_bits():
    trace = build_psn_trace(
        flow(), [(1.0, "send", (1 << 24) + 9)], drops=[drop(5)], destination="10.1.0.1",
        destination_qp=7,
    )  # fmt: skip
    assert trace.psns == [(1 << 24) + 9, (1 << 24) + 5]


def test_thinning_keeps_every_rare_event():
    events = [(i * 1.0, "send", i) for i in range(5000)]
    events += [(i + 0.5, "resend", i) for i in range(100)] + [(7.7, "timeout", 3)]
    trace = build_psn_trace(flow(), events, limit=1000)
    assert trace.events.count("resend") == 100 and trace.events.count("timeout") == 1
    assert 500 <= trace.events.count("send") <= 1000
    assert trace.times == sorted(trace.times)


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_flows_csv_has_a_line_per_flow_and_variant(result, tmp_path):
    rows = rows_of(write_flows_csv(tmp_path, result.variants))
    assert len(rows) == sum(len(v.flows) for v in result.variants)
    first = result.variants[0].flows[0]
    assert rows[0]["variant"] == "go-back-n"
    assert float(rows[0]["completion_time"]) == first.completion_time
    assert rows[0]["path"].split() == first.path


def test_queues_csv_has_a_line_per_change(tmp_path):
    samples = QueueSamples(
        np.array([0.0, 1e-6, 2e-6, 3e-6]),
        {"p": np.array([0, 5, 5, 0]), "idle": np.array([0, 0, 0, 0])},
    )
    rows = rows_of(write_queues_csv(tmp_path, {"v": samples}))
    assert [(row["interface"], float(row["time"]), row["depth_bytes"]) for row in rows] == [
        ("p", 0.0, "0"), ("p", 1e-6, "5"), ("p", 3e-6, "0"),
    ]  # fmt: skip


def test_drops_csv_has_every_record(tmp_path):
    rows = rows_of(write_drops_csv(tmp_path, {"v": [drop(1), drop(2)]}))
    assert [(row["variant"], row["psn"], row["reason"]) for row in rows] == [
        ("v", "1", "port limit"), ("v", "2", "port limit"),
    ]  # fmt: skip


def test_verdict_and_expectations_of_a_run_are_the_worst(result):
    assert result.verdict == "faithful" and not result.expectations_met
    invalid = result.variants[1].fidelity.model_copy(update={"verdict": Verdict.INVALID})
    bad = result.variants[1].model_copy(update={"fidelity": invalid})
    mixed = result.model_copy(update={"variants": [result.variants[0], bad], "expectations": []})
    assert mixed.verdict == "invalid" and mixed.expectations_met
    assert mixed.variant("selective-repeat") is bad
    with pytest.raises(KeyError):
        mixed.variant("none")


def up_link(name, data, *, tiers=(1, 2), on_path=True, depth=0):
    return PortResult(
        interface=name, rate=400e9, tiers=tiers, on_path=on_path, data_bytes=data, max_depth=depth
    )


def test_link_loads_count_the_links_that_may_carry_a_flow(result):
    ports = [
        up_link("leaf1-spine1", 600, depth=30), up_link("leaf1-spine2", 0),
        up_link("leaf2-spine1", 0), up_link("leaf2-spine2", 200),
        up_link("leaf3-spine1", 0, on_path=False),
        up_link("leaf1-rank0", 900, tiers=(1, 0), depth=7),
        up_link("spine1-core1", 300, tiers=(2, 3)), up_link("spine1-core2", 500, tiers=(2, 3)),
    ]  # fmt: skip
    metrics = compute_metrics(with_flows(result, flow(), ports=ports).variants[0])
    assert metrics["link_load_ratio"] == 3.0
    assert metrics["links_idle"] == 0.5
    assert metrics["core_link_load_ratio"] == 1.25
    assert metrics["core_links_idle"] == 0.0
    assert metrics["spine_bytes"] == 800
    assert metrics["max_queue_depth_leaf_up"] == 30
    assert metrics["max_queue_depth_leaf_down"] == 7


def test_link_loads_are_missing_where_there_is_no_choice_of_links(result):
    for ports in (
        [],
        [up_link("leaf1-spine1", 0)],
        [PortResult(interface="leaf1-rank0", rate=1.0)],
    ):
        metrics = compute_metrics(with_flows(result, flow(), ports=ports).variants[0])
        assert metrics["link_load_ratio"] is None
        assert metrics["links_idle"] is None
        assert metrics["core_links_idle"] is None


def test_reordering_and_migrations_are_summed_over_flows(result):
    flows = [
        flow(0, out_of_order_packets=3, received_packets=10, path_migrations=1),
        flow(1, out_of_order_packets=1, received_packets=30),
    ]
    metrics = compute_metrics(with_flows(result, *flows).variants[0])
    assert metrics["out_of_order_packets"] == 4
    assert metrics["out_of_order_share"] == 0.1
    assert metrics["path_migrations"] == 1
    assert compute_metrics(with_flows(result, flow()).variants[0])["out_of_order_share"] is None


def test_packets_lost_to_a_link_that_is_down_are_those_of_the_ledger(result):
    variant = result.variants[0]
    assert variant.metrics["link_down_packets"] == 0
    rows = [
        row.model_copy(update={"reason": "link down"}) if row.fate == "dropped" else row
        for row in variant.ledger.rows
    ]
    ledger = variant.ledger.model_copy(update={"rows": rows})
    metrics = compute_metrics(variant.model_copy(update={"ledger": ledger}))
    assert metrics["link_down_packets"] == metrics["dropped_packets"] > 0


@pytest.mark.parametrize(
    ("tiers", "layer"),
    [((1, 2), "leaf to spine"), ((1, 0), "leaf to NIC"), ((3, 4), "core to tier 4"), (None, "")],
)
def test_ports_are_named_by_what_they_join(tiers, layer):
    assert PortResult(interface="a-b", rate=1.0, tiers=tiers).layer == layer


def test_results_of_earlier_versions_still_read(result, tmp_path):
    write_result(tmp_path, result)
    document = json.loads((tmp_path / "result.json").read_text())
    for variant in document["variants"]:
        for port in variant["ports"]:
            for field in ("tiers", "on_path", "data_bytes"):
                del port[field]
        for each in variant["flows"]:
            for field in ("paths", "queue_pairs", "out_of_order_packets", "path_migrations"):
                del each[field]
    (tmp_path / "result.json").write_text(json.dumps(document))
    old = read_result(tmp_path).variants[0]
    assert old.ports[0].layer == ""
    assert old.flows[0].queue_pairs == 1
    assert compute_metrics(old)["link_load_ratio"] is None
