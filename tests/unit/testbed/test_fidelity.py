"""The verdict: each rule at its limits, the worst wins, and the suggested dilation is enough."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.fidelity import (
    Fidelity,
    FidelityMeasurements,
    Lateness,
    LinkRate,
    Verdict,
    judge,
    worst,
)

RTT, FRAME = 10e-6, 83e-9

GOOD = FidelityMeasurements(
    dilation=10_000,
    frame_time=FRAME,
    base_rtt=RTT,
    nic_lateness=Lateness(1e-8, 1e-7, 5e-7),
    timer_lateness=Lateness(1e-8, 1e-7, 5e-7),
    forwarding_latency_wall=1e-3,
    link_rates=(LinkRate("leaf1-rank0", 400e9, 399e9), LinkRate("leaf1-rank1", 400e9, 401e9)),
    cpu_steal=0.0,
    socket_drops={"server1": 0},
    unsampled_share=0.001,
)


def state(fidelity, name):
    (rule,) = [rule for rule in fidelity.rules if rule.name == name]
    return rule.state


def test_a_machine_that_keeps_up_is_faithful():
    fidelity = judge(GOOD)
    assert fidelity.verdict is Verdict.FAITHFUL
    assert fidelity.reasons == [] and fidelity.dilation_enough is None
    assert all(rule.advice == "" for rule in fidelity.rules)


@pytest.mark.parametrize(
    ("p99", "expected"),
    [(0.10 * RTT, "faithful"), (0.11 * RTT, "degraded"), (0.5 * RTT, "degraded"),
     (0.51 * RTT, "invalid")],
)  # fmt: skip
def test_nic_lateness_against_base_rtt(p99, expected):
    fidelity = judge(replace(GOOD, nic_lateness=Lateness(0, p99, p99)))
    assert state(fidelity, "NIC lateness p99") == expected
    assert fidelity.verdict == expected


def test_lateness_of_two_frames_is_always_allowed():
    short = replace(GOOD, base_rtt=10 * FRAME, forwarding_latency_wall=0.0, timer_lateness=None,
                    unsampled_share=None)  # fmt: skip
    two_frames = Lateness(0, 2 * FRAME, 2 * FRAME)
    assert judge(replace(short, nic_lateness=two_frames)).verdict is Verdict.FAITHFUL
    late = Lateness(0, 2.1 * FRAME, 2.1 * FRAME)
    assert judge(replace(short, nic_lateness=late)).verdict is Verdict.DEGRADED


def test_a_single_stall_is_judged_by_round_trips():
    one = replace(GOOD, nic_lateness=Lateness(0, 0, 3.1 * RTT))
    many = replace(GOOD, nic_lateness=Lateness(0, 0, 20.1 * RTT))
    assert judge(one).verdict is Verdict.DEGRADED
    assert judge(many).verdict is Verdict.INVALID


@pytest.mark.parametrize(
    ("late", "expected"), [(3.0, "faithful"), (3.1, "degraded"), (20.1, "invalid")]
)
def test_a_late_fault_is_judged_by_round_trips(late, expected):
    fidelity = judge(replace(GOOD, fault_lateness=late * RTT))
    assert state(fidelity, "fault lateness max") == fidelity.verdict == expected
    assert not [rule for rule in judge(GOOD).rules if rule.name == "fault lateness max"]


def test_forwarding_error_counts_both_ways_and_shrinks_with_dilation():
    slow = replace(GOOD, forwarding_latency_wall=6e-3)  # 2 * 6 ms / 10 000 = 1.2 us > 10 % of RTT
    assert judge(slow).verdict is Verdict.DEGRADED
    assert judge(replace(slow, dilation=20_000)).verdict is Verdict.FAITHFUL


@pytest.mark.parametrize(
    ("measured", "expected"),
    [(393e9, "faithful"), (407e9, "faithful"), (390e9, "degraded"), (379e9, "invalid"),
     (421e9, "invalid")],
)  # fmt: skip
def test_link_rate_error_in_both_directions(measured, expected):
    rates = (*GOOD.link_rates, LinkRate("spine1-leaf1", 400e9, measured))
    fidelity = judge(replace(GOOD, link_rates=rates))
    assert fidelity.verdict == expected
    if expected != "faithful":
        assert "spine1-leaf1" in fidelity.reasons[0]


def test_a_link_above_its_rate_is_no_matter_of_dilation():
    fidelity = judge(replace(GOOD, link_rates=(LinkRate("p", 400e9, 440e9),)))
    assert fidelity.verdict is Verdict.INVALID and fidelity.dilation_enough is None
    assert "above" in fidelity.reasons[0] and "dilation" not in fidelity.reasons[0]


def test_socket_drops_and_plan_mismatches_are_invalid():
    drops = judge(replace(GOOD, socket_drops={"server1": 0, "leaf2": 3}))
    assert drops.verdict is Verdict.INVALID
    assert "leaf2" in drops.reasons[0] and "server1" not in drops.reasons[0]
    assert drops.dilation_enough == 24_000
    mismatch = judge(replace(GOOD, plan_mismatches=["leaf1-rank0: rate 41 Mb/s, planned 40 Mb/s"]))
    assert mismatch.verdict is Verdict.INVALID and mismatch.dilation_enough is None
    assert "leaf1-rank0: rate 41 Mb/s" in mismatch.reasons[0]
    stopped = judge(replace(GOOD, plan_mismatches=["time_limit: not finished after 1 s"]))
    # whatever it is, it speaks for itself: a run that was stopped has no wrong queue
    assert stopped.reasons[0].endswith("): time_limit: not finished after 1 s")


def test_the_reason_that_decides_is_the_first():
    late = replace(GOOD, nic_lateness=Lateness(0, 0.2 * RTT, 0.2 * RTT), plan_mismatches=["wrong"])
    assert state(judge(late), "NIC lateness p99") == "degraded"
    assert [reason.split()[0] for reason in judge(late).reasons] == ["differences", "NIC"]


def test_an_open_ledger_is_invalid():
    fidelity = judge(GOOD, ledger_open=1)
    assert fidelity.verdict is Verdict.INVALID and "packet ledger 1 packets" in fidelity.reasons[0]


def test_causes_degrade_but_never_invalidate():
    fidelity = judge(replace(GOOD, cpu_steal=0.9, unsampled_share=0.5))
    assert fidelity.verdict is Verdict.DEGRADED and len(fidelity.reasons) == 2
    assert fidelity.dilation_enough is None


def test_what_was_not_measured_has_no_rule():
    bare = FidelityMeasurements(
        dilation=1, frame_time=FRAME, base_rtt=RTT, nic_lateness=Lateness(0, 0, 0)
    )
    names = {rule.name for rule in judge(bare).rules}
    assert "CPU steal" not in names and "link rate error" not in names
    assert {"NIC lateness p99", "receive socket drops", "packet ledger"} <= names


def test_not_a_number_is_invalid_and_survives_json():
    fidelity = judge(replace(GOOD, nic_lateness=Lateness(0, float("nan"), 0)))
    assert fidelity.verdict is Verdict.INVALID
    again = Fidelity.model_validate_json(fidelity.model_dump_json())
    assert again.verdict is Verdict.INVALID


@pytest.mark.parametrize("name", ["dilation", "frame_time", "base_rtt"])
def test_scales_must_be_positive(name):
    with pytest.raises(ValueError, match=name):
        judge(replace(GOOD, **{name: 0.0}))


@given(
    p99=st.floats(0, 100 * RTT),
    extra=st.floats(0, 100 * RTT),
    timer=st.floats(0, 100 * RTT),
    forwarding=st.floats(0, 1.0),
    rate=st.floats(0.05, 1.0),
)
def test_the_suggested_dilation_is_enough(p99, extra, timer, forwarding, rate):
    """Run again at the suggestion on the same machine: wall lateness is what it was."""
    slow = replace(
        GOOD,
        nic_lateness=Lateness(0, p99, p99 + extra),
        timer_lateness=Lateness(0, timer, timer),
        forwarding_latency_wall=forwarding,
        link_rates=(LinkRate("p", 400e9, rate * 400e9),),
    )
    fidelity = judge(slow)
    if fidelity.verdict is Verdict.FAITHFUL:
        assert fidelity.dilation_enough is None
        return
    assert fidelity.dilation_enough is not None and fidelity.dilation_enough > slow.dilation
    ratio = slow.dilation / fidelity.dilation_enough
    again = replace(
        slow,
        dilation=fidelity.dilation_enough,
        nic_lateness=Lateness(0, p99 * ratio, (p99 + extra) * ratio),
        timer_lateness=Lateness(0, timer * ratio, timer * ratio),
        link_rates=(LinkRate("p", 400e9, min(1.0, rate / ratio) * 400e9),),
    )
    assert judge(again).verdict is Verdict.FAITHFUL


def test_worst_verdict():
    assert worst([]) is Verdict.FAITHFUL
    assert worst([Verdict.DEGRADED, Verdict.INVALID, Verdict.FAITHFUL]) is Verdict.INVALID
