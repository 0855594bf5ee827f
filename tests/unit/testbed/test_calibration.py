"""The choice of a dilation from the plan and the machine's speed."""

from __future__ import annotations

import pytest

from testbed.calibration import (
    RTT_SHARE,
    SHARED_MARGIN,
    UTILISATION,
    WAKEUP_LATENCY,
    base_rtt,
    choose_dilation,
    cpu_per_emulated_second,
    measure_unit,
)
from testbed.topology import create_topology
from traffic.plan import Operation, WorkloadParameters
from traffic.plan_builder import PlanBuilder
from traffic.workloads import create_workload, workload_class


def make(senders: int = 7, rate: str = "400 Gbps", hop: str = "1 us"):
    topology = create_topology("leaf-spine", link_rate=rate, hop_latency=hop)
    parameters = workload_class("incast").Parameters(senders=senders, message_size="64 MiB")
    plan = create_workload("incast").plan(parameters, world_size=8, seed=1)
    return plan, topology


def test_load_grows_with_senders_and_rate():
    few, many = (cpu_per_emulated_second(*make(senders=n), 4096) for n in (1, 7))
    assert 5 < many / few < 12
    slow = cpu_per_emulated_second(*make(rate="100 Gbps"), 4096)
    assert cpu_per_emulated_second(*make(), 4096) == pytest.approx(4 * slow)


def test_a_slower_machine_gets_a_larger_dilation():
    plan, topology = make()
    fast, slow = (
        choose_dilation(plan, topology, path_mtu=4096, unit=unit, cores=2) for unit in (1e-6, 4e-6)
    )
    assert slow == pytest.approx(4 * fast, rel=0.15)


def test_the_chosen_dilation_leaves_the_cores_the_promised_share():
    plan, topology = make()
    from testbed.calibration import REFERENCE_SECONDS

    k = choose_dilation(plan, topology, path_mtu=4096, unit=REFERENCE_SECONDS, cores=2)
    assert cpu_per_emulated_second(plan, topology, 4096) / k <= 2 * UTILISATION
    assert WAKEUP_LATENCY / k <= RTT_SHARE * base_rtt(topology, plan) * 1.0001


def test_a_margin_is_for_the_load():
    plan, topology = make()
    plain, safe = (
        choose_dilation(plan, topology, path_mtu=4096, unit=1e-6, cores=2, margin=margin)
        for margin in (1.0, SHARED_MARGIN)
    )
    assert safe == pytest.approx(SHARED_MARGIN * plain, rel=0.05)


def test_computations_do_not_count_because_their_time_is_skipped():
    def chosen(duration):
        builder = PlanBuilder(
            workload="flows", parameters=WorkloadParameters(), world_size=8, seed=1
        )
        for rank in range(8):
            builder.memory(rank, initialised=2**20, total=2**20)
        needed = [builder.compute(0, duration=duration)]
        builder.message(
            builder.flow(builder.connect(0, 1)), operation=Operation.WRITE, length=2**20, offset=0,
            remote_offset=0, depends_on=needed,
        )  # fmt: skip
        topology = create_topology("leaf-spine")
        return choose_dilation(builder.build(), topology, path_mtu=4096, unit=1e-6, cores=2)

    assert chosen(0.0) == chosen(0.1)


def test_a_short_round_trip_needs_a_larger_dilation_too():
    plan, topology = make(senders=1, rate="10 Gbps", hop="100 ns")
    long_plan, long_topology = make(senders=1, rate="10 Gbps", hop="100 us")
    unit = 1.6e-6
    assert choose_dilation(plan, topology, path_mtu=4096, unit=unit, cores=2) > choose_dilation(
        long_plan, long_topology, path_mtu=4096, unit=unit, cores=2
    )


def test_the_unit_is_measured():
    assert 1e-8 < measure_unit() < 1e-3


def test_a_short_run_is_slowed_down_for_accuracy_within_bounds():
    from testbed.calibration import MOST_EXTRA, WALL_BUDGET
    from traffic.bounds import lower_bound

    _, topology = make()
    parameters = workload_class("incast").Parameters(senders=7, message_size="256 KiB")
    short = create_workload("incast").plan(parameters, world_size=8, seed=1)
    long_plan, _ = make()
    k, needed = (
        choose_dilation(plan, topology, path_mtu=4096, unit=1.3e-6, cores=2)
        for plan in (short, long_plan)
    )
    assert needed < k <= 1.1 * MOST_EXTRA * needed
    assert k * lower_bound(short, link_rate=400e9) <= 1.1 * WALL_BUDGET
