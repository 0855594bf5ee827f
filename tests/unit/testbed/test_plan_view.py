"""The plan on paper: what is shown, and that predicted paths are paths."""

from __future__ import annotations

import io
from itertools import pairwise

import pytest
from rich.console import Console

from testbed.plan_view import ROWS, print_plan
from testbed.routes import plan_routes
from testbed.scenario import build_topology, load_scenario, plan_traffic


def shown(*overrides: str, name: str = "incast") -> str:
    console = Console(file=io.StringIO(), width=80, highlight=False)
    print_plan(load_scenario(name, ["dilation=1000", *overrides]), console)
    return console.file.getvalue()


def test_sizes_addresses_and_bounds() -> None:
    text = shown("workload.messages=2", "workload.message_size=2 MiB", name="incast-long")
    assert "leaf-spine: 2 + 2 switches, 8 servers, 8 ranks, 12 links" in text
    assert "10.2.0.4" in text and "rank7-leaf2" in text
    assert "payload 29.4 MB" in text
    # 7 x 2 messages of 2 MiB through one 400 Gb/s port: 587 us of payload, and 2 % of headers
    assert "no network can finish before 601 us" in text
    assert "dilation 1000: at least 0.6 s of wall time" in text


def test_the_ratio_is_that_of_the_fabric_with_the_gpus() -> None:
    """A front-end network, whose leaves may have NICs in unequal numbers, does not change it."""
    text = shown(
        "topology={kind: rail-optimised, pods: 1, servers_per_pod: 2, gpus_per_server: 2, "
        "storage: separate, storage_servers: 3, front_end_leaves: 2, storage_rate: 100 Gbps}",
        "workload.senders=all",
    )
    assert "capacity of a leaf down over up: 1.00" in text


def test_equal_variants_are_shown_once() -> None:
    text = shown()
    assert text.count("no network can finish") == 1
    assert "variant selective-repeat: the same fabric, paths and traffic as go-back-n" in text


def test_variants_that_route_differently_are_shown_both() -> None:
    assert shown(name="permutation").count("no network can finish") == 2


def test_large_fabrics_are_cut_short() -> None:
    text = shown("topology.servers_per_leaf=40", "topology.leaves=4", "workload.senders=all")
    assert f"… and {160 - ROWS} more ranks" in text
    assert f"… and {159 - ROWS} more flows" in text
    assert len(text.splitlines()) < 60


def test_auto_dilation_is_estimated() -> None:
    console = Console(file=io.StringIO(), width=80)
    print_plan(load_scenario("incast"), console)
    assert "dilation auto, about " in console.file.getvalue()


def test_ways_of_all_queue_pairs_are_counted() -> None:
    overrides = ["topology.spines=4", "routing.scheme=disjoint", "nic.qps_per_connection=4"]
    text = shown(*overrides, name="all-to-all")
    assert "or 3 other ways" in " ".join(text.replace("│", " ").split())
    # disjoint searches its ports from the first one on
    assert "49152" in text


@pytest.mark.parametrize("scheme", ["ecmp", "static"])
def test_predicted_paths_are_wired(scheme: str) -> None:
    scenario = load_scenario("all-to-all", [f"routing.scheme={scheme}"])
    topology = build_topology(scenario)
    plan = plan_traffic(scenario, topology)
    paths = plan_routes(scenario, topology, plan).paths
    assert len(paths) == 2 * len(plan.connections) > 0
    for connection in plan.connections:
        (path,) = paths[connection.index, False]
        hops = [topology.interfaces[name] for name in path.interfaces]
        assert hops[0].name == topology.nic(connection.source_rank).name
        assert hops[-1].peer == topology.nic(connection.destination_rank).name
        for sender, receiver in pairwise(hops):
            assert sender.peer_node == receiver.node


def test_how_a_collective_is_carried_out() -> None:
    settings = "topology.gpus_per_server=4", "workload={kind: collective, size: 4 MiB}"
    text = " ".join(shown(*settings, name="ring-all-reduce").split())
    assert "all-reduce by hierarchical: 32 ranks, 4 of each server over NVLink" in text
    text = " ".join(shown(*settings, "workload.gpus_per_server=1", name="ring-all-reduce").split())
    assert "all-reduce by ring: 32 ranks, all over the network" in text


def test_a_server_that_the_fabric_does_not_have_is_not_said_to_have_nvlink() -> None:
    settings = (
        "topology.gpus_per_server=2",
        "workload={kind: collective, size: 4 MiB, gpus_per_server: 4}",
    )
    text = " ".join(shown(*settings, name="ring-all-reduce").split())
    assert "16 ranks, 4 in a row as if of one server, over NVLink where they are" in text
    assert "of each server over NVLink" not in text
