"""Collectives over NICs and queue pairs that lose packets: the numbers are numpy's all the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from nic_world import LATENCY, RATE, TRANSPORT, World

from traffic.collectives.algorithms import algorithms_for
from traffic.collectives.cost import CostModel, estimate
from traffic.collectives.request import Collective
from traffic.faults import LossInjector
from traffic.locations import RankLocation
from traffic.workloads import create_workload
from traffic.workloads.collective import schedule_of

PAIRS = [
    (collective, algorithm) for collective in Collective for algorithm in algorithms_for(collective)
]


def plan_of(world_size=16, **parameters):
    chosen = create_workload("collective")
    gpus = parameters.get("gpus_per_server", 1)
    return chosen.plan(
        chosen.Parameters(**parameters),
        world_size=world_size,
        seed=5,
        locations=[RankLocation(server=f"server{rank // gpus}") for rank in range(world_size)],
    )


def run(plan, **fields):
    world = World(plan, **fields)
    world.run()
    assert all(rank.done for rank in world.ranks)
    assert [rank.verify() for rank in world.ranks] == [0] * plan.world_size
    return world


@pytest.mark.parametrize(("collective", "algorithm"), PAIRS)
def test_lost_packets_change_nothing_but_the_time(collective, algorithm):
    plan = plan_of(collective=collective, algorithm=algorithm, size="64 KiB", chunk="5 KiB", root=3)
    recovery = "selective-repeat" if len(algorithm) % 2 else "go-back-n"
    world = run(
        plan,
        transport=replace(TRANSPORT, recovery=recovery, timeout=8),
        losses=lambda rank: LossInjector(seed=f"{algorithm}/{rank}", probability=0.02),
    )
    lost = sum(nics[0].counts.injected_loss.packets for nics in world.nics)
    # by chance none of a few packets
    assert lost > 0 or plan.payload_bytes < 2**18


@pytest.mark.parametrize("gpus_per_server", [1, 4])
@pytest.mark.parametrize("algorithm", ["ring", "recursive-halving-doubling", "hierarchical"])
@pytest.mark.parametrize("size", [2**20, 2**21])
def test_time_is_that_of_the_alpha_beta_model(algorithm, size, gpus_per_server):
    """On wires without switches, where no two senders meet; inside servers on NVLink."""
    plan = plan_of(world_size=8, algorithm=algorithm, size=size, gpus_per_server=gpus_per_server)
    model = CostModel(latency=LATENCY, rate=RATE)
    schedule = schedule_of(plan.parameters, 8, plan.seed)
    finish = max(max(rank.executor.finished) for rank in run(plan).ranks)
    assert finish == pytest.approx(estimate(schedule, model), rel=0.05)
