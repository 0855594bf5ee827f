"""CPU seconds per packet in whole runs: the constants of testbed.calibration, measured.

    python -m tests.bench.costs

Eight servers send to each other below one switch, then through leaf, spine and leaf. What the
server processes use is divided between sending and receiving as in the endpoint benchmark.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from testbed.calibration import measure_unit
from testbed.clock import EmulatedClock
from testbed.experiment import Experiment
from testbed.progress import QuietProgress
from testbed.scenario import build_topology, plan_traffic
from testbed.schema import Scenario
from testbed.server_pool import ServerPool
from testbed.telemetry import Telemetry
from tests.bench import endpoint
from tests.isolated import isolated_in_directory

DILATION = 10_000.0
"""About what testbed.calibration chooses for this traffic on two cores: cost depends on the load,
because a process that finds several frames at once needs less for each."""
MESSAGE_MIB = 8
SERVERS = 8


@dataclass(frozen=True, slots=True)
class CpuTime:
    """CPU seconds per data packet: of all servers' processes, and of the switch daemon."""

    servers: float
    switches: float
    ticks: float
    """Samples of all queues per wall second."""


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process, from the scheduler's own account."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) * 1e-9


class _MeteredExperiment(Experiment):
    """Reads the CPU times when the traffic starts and when it has ended."""

    servers = switches = ticks = 0.0

    def _watch(self, clock: EmulatedClock, telemetry: Telemetry, pool: ServerPool) -> str:
        pids = [process.pid for process in pool._processes]
        daemon = self.fabric.ovs.daemon_pid
        servers, switches = sum(map(cpu_seconds, pids)), cpu_seconds(daemon)
        stopped = super()._watch(clock, telemetry, pool)
        self.servers = sum(map(cpu_seconds, pids)) - servers
        self.switches = cpu_seconds(daemon) - switches
        self.ticks = len(telemetry.series.times) / clock.wall()
        return stopped


def scenario(leaves: int, *, servers: int, dilation: float) -> Scenario:
    """Every server sends to another one: below the same switch, or below the other leaf."""
    return Scenario.from_document(
        {
            "name": "bench-costs",
            "dilation": dilation,
            "topology": {
                "kind": "leaf-spine",
                "leaves": leaves,
                "spines": 0 if leaves == 1 else servers // leaves,
                "servers_per_leaf": servers // leaves,
            },
            "routing": {"scheme": "static"},
            "switch": {"buffer": {"policy": "static", "limit": "infinite"}},
            "workload": {
                "kind": "permutation",
                "shift": servers // 2,
                "message_size": f"{MESSAGE_MIB} MiB",
            },
        }
    )


def measure(spec: Scenario, directory: Path) -> CpuTime:
    """Run the scenario once, in isolated namespaces."""
    topology = build_topology(spec)
    plan = plan_traffic(spec, topology)
    assert spec.dilation != "auto"
    experiment = _MeteredExperiment(
        spec, topology, plan, dilation=spec.dilation, directory=directory,
        scratch=Path("/run/bench"), progress=QuietProgress(),
    )  # fmt: skip
    m = experiment.run()
    packets = sum(report.counts["delivered_data"][0] for report in m.reports)
    assert all(report.done and not report.wrong_elements for report in m.reports)
    return CpuTime(experiment.servers / packets, experiment.switches / packets, experiment.ticks)


def _endpoint(directory: Path) -> endpoint.Costs:
    endpoint.make_veth()
    return endpoint.measure_ours()


def main() -> int:
    """Measure and print."""
    near, far = (
        isolated_in_directory(
            partial(measure, scenario(leaves, servers=SERVERS, dilation=DILATION))
        )
        for leaves in (1, 2)
    )
    costs = isolated_in_directory(_endpoint)
    servers = (near.servers + far.servers) / 2
    send = servers * costs.send / costs.both
    print(f"unit {measure_unit() * 1e6:.2f} us")
    print(f"servers {near.servers * 1e6:.1f} and {far.servers * 1e6:.1f} us per packet")
    print(f"switches {near.switches * 1e6:.1f} us for one hop, {far.switches * 1e6:.1f} for three")
    print(f"send {send * 1e6:.1f}, receive {(servers - send) * 1e6:.1f}, "
          f"hop {far.switches / 3 * 1e6:.1f} us")  # fmt: skip
    print(f"{near.ticks:.0f} and {far.ticks:.0f} samples of all queues per second")
    return 0


if __name__ == "__main__":
    sys.exit(main())
