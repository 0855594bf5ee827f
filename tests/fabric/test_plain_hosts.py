"""The fabric as a plain network: silent when idle, and open to ping and iperf3."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from testbed.experiment import Experiment
from testbed.fabric_keeper import create_experiment
from testbed.isolation import network_namespace_of
from testbed.progress import QuietProgress
from testbed.scenario import Scenario
from testbed.topology import Topology
from testbed.topology.base import ROCE_MTU
from tests.isolated import isolated
from traffic.codec import FRAME_OVERHEAD

pytestmark = [
    pytest.mark.fabric,
    pytest.mark.alone,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: builds a fabric"),
]

LINK_RATE, DILATION = 400e9, 8000
"""A link carries 50 Mb/s of wall time."""

IDLE_TIME = 10.0
"""Wall seconds."""

ATTEMPTS = 3
"""Of a TCP transfer, the best of which counts: what else a machine does can only take away."""

ETHERNET_HEADER = 14
IP_TCP_HEADERS = 20 + 20 + 12  # with timestamps
TCP_SHARE = (ROCE_MTU - IP_TCP_HEADERS) / (ROCE_MTU + ETHERNET_HEADER + FRAME_OVERHEAD)
"""Of what a link carries, the part that is TCP's payload."""

EXPECTED_RATE = LINK_RATE / DILATION * TCP_SHARE
"""Wall bit/s."""

SCENARIO = {
    "name": "plain-hosts",
    "dilation": DILATION,
    "topology": {
        "kind": "leaf-spine",
        "leaves": 4,
        "spines": 2,
        "servers_per_leaf": 4,
        "link_rate": "400 Gbps",
    },
    "switch": {"buffer": {"limit": "1 MiB"}},
    "workload": {"kind": "permutation", "shift": 5, "message_size": "4 KiB"},
}


@contextmanager
def built_fabric(directory: Path) -> Iterator[Experiment]:
    """The scenario's fabric with its routes, probed; taken down at the end."""
    scenario = Scenario.from_document(SCENARIO)
    experiment = create_experiment(scenario, DILATION, directory, QuietProgress())
    try:
        experiment.build()
        yield experiment
    finally:
        experiment.stop()


def interface_counters(experiment: Experiment) -> dict[str, list[int]]:
    """Packets received and transmitted by every interface, from its own network namespace."""
    topology = experiment.fabric.topology
    counters = {}
    for server in ("", *(node.name for node in topology.servers)):
        pid = experiment.fabric.pid_of(server) if server else os.getpid()
        with network_namespace_of(pid):
            lines = Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
        for line in lines:
            name, _, fields = line.partition(":")
            values = [int(field) for field in fields.split()]
            counters[f"{server}/{name.strip()}"] = [values[1], values[9]]
    return counters


def idle_differences(experiment: Experiment) -> dict[str, Any]:
    """What changed on an idle fabric: interfaces and rows of the buffer program's counters."""
    interfaces, ports = interface_counters(experiment), experiment.fabric.mmu.ports.copy()
    time.sleep(IDLE_TIME)
    after = interface_counters(experiment)
    return {
        "watched": sorted(name.partition("/")[2] for name in interfaces),
        "interfaces": [name for name, counts in after.items() if counts != interfaces[name]],
        "ports": int((experiment.fabric.mmu.ports != ports).sum()),
    }


def ping_all(experiment: Experiment) -> dict[str, list[str]]:
    """For every server, the addresses of other servers that answered its ping."""
    topology: Topology = experiment.fabric.topology
    addresses = {s.name: topology.interfaces_of(s.name)[0].address for s in topology.servers}
    net = experiment.fabric.net
    pings = []
    for source in topology.servers:
        for name, address in addresses.items():
            if name != source.name:
                command = ["ping", "-n", "-c", "1", "-W", "5", address]
                pings.append((source.name, address, net.nameToNode[source.name].popen(command)))
    answered: dict[str, list[str]] = {name: [] for name in addresses}
    for name, address, process in pings:
        output = process.communicate()[0].decode()
        if process.returncode == 0 and re.search(r"1 received, 0% packet loss", output):
            answered[name].append(address)
    return answered


def iperf(experiment: Experiment, client: str, server: str) -> float:
    """TCP goodput from client to server in wall bit/s."""
    best = 0.0
    for _ in range(ATTEMPTS):
        best = max(best, iperf_once(experiment, client, server))
        if best > 0.95 * EXPECTED_RATE:
            break
    return best


def iperf_once(experiment: Experiment, client: str, server: str) -> float:
    """One transfer of four seconds after two of slow start."""
    net, topology = experiment.fabric.net, experiment.fabric.topology
    address = topology.interfaces_of(server)[0].address
    listener = net.nameToNode[server].popen(["iperf3", "-s", "-1", "-B", address, "--forceflush"])
    try:
        while b"listening" not in listener.stdout.readline():
            assert listener.poll() is None, "iperf3 -s ended"
        command = ["iperf3", "-c", address, "-t", "4", "-O", "2", "-J"]
        output = net.nameToNode[client].popen(command).communicate()[0]
    finally:
        listener.terminate()
        listener.wait()
    return float(json.loads(output)["end"]["sum_received"]["bits_per_second"])


def measure(experiment: Experiment) -> dict[str, Any]:
    """Everything this file is about, from one fabric."""
    idle = idle_differences(experiment)
    servers = [node.name for node in experiment.fabric.topology.servers]
    pairs = [(servers[0], servers[1]), (servers[2], servers[15])]
    return {
        "idle": idle,
        "answered": ping_all(experiment),
        "iperf": {f"{a} to {b}": iperf(experiment, a, b) for a, b in pairs},
    }


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("plain-hosts")

    def body() -> dict[str, Any]:
        with built_fabric(directory) as experiment:
            return measure(experiment)

    return isolated(body)


def test_an_idle_fabric_carries_no_packet(measured: Any) -> None:
    idle = measured["idle"]
    # 16 servers' links and 4 x 2 uplinks have two ends each
    assert len([name for name in idle["watched"] if "rank" in name or "spine" in name]) >= 48
    assert idle["interfaces"] == []
    assert idle["ports"] == 0


def test_every_server_reaches_every_other(measured: Any) -> None:
    assert len(measured["answered"]) == 16
    assert {name: len(set(found)) for name, found in measured["answered"].items()} == dict.fromkeys(
        measured["answered"], 15
    )


def test_tcp_fills_a_link(measured: Any) -> None:
    assert len(measured["iperf"]) == 2
    for pair, rate in measured["iperf"].items():
        assert rate == pytest.approx(EXPECTED_RATE, rel=0.05), pair
