"""One variant of a scenario, run: build, route, connect, traffic, halt; and measured.

A fabric that stands can carry the traffic of other variants too, one after the other.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from controllers.process import ControllerProcess
from controllers.program import write_program
from testbed.activity import ActivityBoard
from testbed.asic.mmu import UNLIMITED, BufferPolicy
from testbed.capture import Capture
from testbed.clock import EmulatedClock
from testbed.fabric import Fabric
from testbed.failure_agent import NEVER_HAPPENED, FailureAgent, FaultRecord, PathChange
from testbed.failures import FaultTimeline
from testbed.priority import Priority, set_priority
from testbed.probe import ProbeError, Prober, ProbeResult
from testbed.progress import ProgressReporter, Stage
from testbed.reconvergence import Reconvergence
from testbed.routes import PlannedPath, plan_routes
from testbed.schema import Scenario
from testbed.server_pool import ServerPool
from testbed.server_settings import server_settings
from testbed.telemetry import Telemetry
from testbed.topology import Interface, Topology
from traffic.plan import Plan
from traffic.server import RankReport
from traffic.settings import ServerSettings

CONTROLLER_TIMEOUT = 60.0
"""Wall seconds for the controller to program all switches."""

TICK = 0.001
"""Wall seconds between two samples of all queues."""

SEND_AHEAD = 0.003
"""Wall seconds that a NIC may run ahead of the wire; the scheduler of its port keeps the pace. Less
makes the rate depend on how quickly a process wakes up."""

DRAIN_TIMEOUT = 30.0
"""Wall seconds for the queues to empty after a run was stopped."""


class ExperimentError(RuntimeError):
    """The variant could not be run to its end; the message says what failed."""


@dataclass
class Measurements:
    """Everything a variant measured, still raw."""

    topology: Topology
    plan: Plan
    dilation: float
    paths: list[tuple[PlannedPath, ...]]
    """By connection: the ways that its requests may take."""
    reports: list[RankReport]
    ports: NDArray[np.void]
    """Counters of all interfaces after the traffic (testbed.asic.mmu.PORT_DTYPE)."""
    telemetry: Telemetry
    probe: ProbeResult
    forwarding_drops: int
    mismatches: list[str]
    end_time: float
    wall_seconds: float
    skipped_seconds: float
    cpu_steal: float | None
    stopped: str
    """Why an unfinished run was stopped; empty if it came to its end."""
    faults: list[FaultRecord] = field(default_factory=list)
    path_changes: list[PathChange] = field(default_factory=list)


class Experiment:
    """One variant. ``directory`` receives logs and captures; ``scratch`` sockets, short paths."""

    def __init__(
        self,
        scenario: Scenario,
        topology: Topology,
        plan: Plan,
        *,
        dilation: float,
        directory: Path,
        scratch: Path,
        progress: ProgressReporter,
    ) -> None:
        self._scenario = scenario
        self._topology = topology
        self._plan = plan
        self._dilation = dilation
        self._directory = directory
        self._progress = progress
        self._logs = directory / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        routes = plan_routes(scenario, topology, plan)
        buffer, ecn = scenario.switch.buffer, scenario.switch.ecn
        self.fabric = Fabric(
            topology,
            dilation=dilation,
            policy=BufferPolicy(
                limit=UNLIMITED if buffer.limit is None else buffer.limit,
                ecn_threshold=UNLIMITED if ecn.threshold is None else ecn.threshold,
            ),
            directory=scratch,
            logs=self._logs,
            labels=routes.labels,
        )
        self._plan = routes.plan
        self._paths = routes.paths
        self._labels = routes.labels
        self._probe: ProbeResult | None = None
        self._timeline = FaultTimeline(scenario.faults, topology)
        self._network: Reconvergence | None = None
        self._entries = entries = routes.entries
        if self._timeline.steps or routes.recompute_interval is not None:
            self._network = Reconvergence(scenario, topology, plan)
            self._network.rehearse(self._timeline)
            entries = self._network.entries
        program = self._logs / "program.json"
        write_program(program, topology, entries)
        self._controller = ControllerProcess(program, log=self._logs / "controller.log")

    def build(self) -> ProbeResult:
        """Build fabric and routes and probe every path. Raises what its parts raise."""
        self._progress.stage(Stage.BUILD)
        # it takes a second to start, which the building of the fabric hides
        self._controller.start()
        self.fabric.build(before_bridges=self._wait_for_controller)
        self._progress.stage(Stage.ROUTE)
        self._controller.wait_ready(CONTROLLER_TIMEOUT)
        self._probe = Prober(self.fabric, self._plan, self._paths).run()
        return self._probe

    def _wait_for_controller(self) -> None:
        # a switch that finds nobody waits up to a second before it tries again
        self._controller.wait_listening(CONTROLLER_TIMEOUT)

    def run(self) -> Measurements:
        """Everything; on return nothing of the variant is left but its files."""
        try:
            return self.measure()
        finally:
            self.stop()

    def measure(self) -> Measurements:
        """The traffic, once; builds the fabric unless it stands, and leaves it standing."""
        try:
            return self._run(self._probe or self.build())
        except Exception:
            self.fabric.ovs.check()  # its end explains whatever else failed
            raise

    def take(self, scenario: Scenario, plan: Plan, directory: Path) -> bool:
        """Let the next ``measure`` run other traffic, on the fabric as it stands.

        False, and nothing is changed, where the scenario differs in more than its workload, its
        routes are others, or links do not stay as they were built. ``directory`` receives captures.
        """
        same = all(
            getattr(scenario, name) == getattr(self._scenario, name)
            for name in type(scenario).model_fields
            if name != "workload"
        )
        if self._network is not None or not same:
            return False
        routes = plan_routes(scenario, self._topology, plan)
        if (routes.entries, routes.labels) != (self._entries, self._labels):
            return False
        proven = self._paths == routes.paths and self._plan.connections == routes.plan.connections
        if self._probe is not None and not proven:
            self._probe = Prober(self.fabric, routes.plan, routes.paths).run()
        self._scenario, self._directory = scenario, directory
        self._plan, self._paths = routes.plan, routes.paths
        return True

    def stop(self) -> None:
        """Take everything down. Idempotent."""
        self._controller.stop()
        self.fabric.stop()

    def _run(self, probe: ProbeResult) -> Measurements:
        clock = EmulatedClock.shared(self._dilation)
        board = ActivityBoard(len(self._topology.servers), len(self._topology.interfaces))
        pool = ServerPool(clock, board)
        captures: list[Capture] = []
        try:
            pool.start(self._settings(), self._plan)
            pool.connect()
            self.fabric.mmu.reset()
            captures = self._start_captures()
            telemetry = self._telemetry(clock, board, pool)
            agent = self._failure_agent(board, pool, clock, telemetry)
            self._progress.stage(Stage.TRAFFIC)
            steal = _StealMeter()
            self._start_traffic(pool, agent)
            stopped = self._watch(clock, telemetry, pool, agent)
            end, wall, skipped = clock.now(), clock.wall(), clock.skipped
            share = steal.share()
            reports = self._collect(pool, telemetry, agent)
        finally:
            pool.kill()
        mismatches = self.fabric.problems()
        mismatches += self._stop_captures(captures)
        ports = self.fabric.mmu.ports.copy()
        sockets = self.fabric.ovs.audit_sockets()
        mismatches += sockets.problems()
        if agent:
            mismatches += self._probe_again(agent, end)
        return Measurements(
            topology=self._topology,
            plan=self._plan,
            dilation=self._dilation,
            paths=[self._paths[c.index, False] for c in self._plan.connections],
            reports=reports,
            ports=ports,
            telemetry=telemetry,
            probe=probe,
            forwarding_drops=sockets.dropped_frames,
            mismatches=mismatches,
            end_time=end,
            wall_seconds=wall,
            skipped_seconds=skipped,
            cpu_steal=share,
            stopped=stopped,
            faults=agent.records if agent else [],
            path_changes=agent.path_changes if agent else [],
        )

    def _settings(self) -> list[ServerSettings]:
        return server_settings(
            self._scenario,
            self._topology,
            self._plan,
            lead=SEND_AHEAD / self._dilation,
            namespace_of=lambda server: f"/proc/{self.fabric.pid_of(server)}/ns/net",
        )

    def _telemetry(self, clock: EmulatedClock, board: ActivityBoard, pool: ServerPool) -> Telemetry:
        fabric = self.fabric
        return Telemetry(
            self._topology, fabric.mmu, clock, board, pool.wake_descriptors, fabric.skip
        )

    def _collect(
        self, pool: ServerPool, telemetry: Telemetry, agent: FailureAgent | None
    ) -> list[RankReport]:
        """End the traffic: empty the queues, then take in what everybody has to tell."""
        self._progress.stage(Stage.COLLECT)
        pool.halt()
        self._drain()
        telemetry.collect_drops()
        self._settle(agent)
        return pool.collect()

    def _start_traffic(self, pool: ServerPool, agent: FailureAgent | None) -> None:
        set_priority(Priority.SWITCH, self.fabric.ovs.daemon_pid)
        set_priority(Priority.SAMPLER)
        if agent:
            agent.begin()
        pool.go()

    def _settle(self, agent: FailureAgent | None) -> None:
        """Let the fabric come to terms with what has happened, and tell what has not."""
        if agent is None:
            return
        agent.settle()
        for record in agent.records:
            if record.what == NEVER_HAPPENED:
                self._progress.note(f"faults: {record.subject} {record.what}")

    def _failure_agent(
        self, board: ActivityBoard, pool: ServerPool, clock: EmulatedClock, telemetry: Telemetry
    ) -> FailureAgent | None:
        if self._network is None:
            return None
        agent = FailureAgent(
            self._timeline,
            self._network,
            fabric=self.fabric,
            controller=self._controller,
            board=board,
            wake_descriptors=pool.wake_descriptors,
            clock=clock,
            on_rate_change=telemetry.rate_changed,
            programs=self._logs,
        )
        telemetry.follow(agent)
        return agent

    def _probe_again(self, agent: FailureAgent, end: float) -> list[str]:
        """Whether packets go where they should now that links have changed; what is wrong."""
        assert self._network is not None
        paths = self._network.routes(agent.physical).paths
        if not any(paths.values()):
            return []
        try:
            probe = Prober(self.fabric, self._plan, paths).run()
        except ProbeError as error:
            return [f"after the faults: {error}"]
        last = max([end, *(record.time for record in agent.records)])
        agent.records.append(
            FaultRecord(last, "paths as predicted", f"{probe.probes} ways", reaction=True)
        )
        return []

    def _watch(
        self,
        clock: EmulatedClock,
        telemetry: Telemetry,
        pool: ServerPool,
        agent: FailureAgent | None,
    ) -> str:
        """Sample until the traffic is over; returns why it was stopped early, if it was."""
        limit = self._scenario.time_limit
        ticks = 0
        while True:
            if agent:
                agent.tick()
            telemetry.tick()
            ticks += 1
            if telemetry.quiescent:
                return ""
            if ticks % 100 == 0:
                pool.check()
                self.fabric.ovs.check()
                self._report_progress(clock)
                if clock.now() > limit:
                    return f"time_limit: not finished after {limit:g} s of emulated time"
                vanished = telemetry.vanished_frames()
                if vanished:
                    return f"{vanished} frames vanished between the ports of the fabric"
            time.sleep(TICK)

    def _report_progress(self, clock: EmulatedClock) -> None:
        ports = self.fabric.mmu.ports
        arrived = ports["dequeued"]["bytes"][:, 0]
        interfaces = self._topology.interfaces.values()
        done = sum(
            int(count)
            for interface, count in zip(interfaces, arrived, strict=True)
            if self._topology.interfaces[interface.peer].address
        )
        fraction = min(0.99, done / (1.02 * max(1, self._plan.payload_bytes)))
        self._progress.update(fraction=fraction, emulated=clock.now(), wall=clock.wall())

    def _drain(self) -> None:
        deadline = time.monotonic() + DRAIN_TIMEOUT
        while self.fabric.mmu.depths().any():
            if time.monotonic() > deadline:
                raise ExperimentError(f"queues still hold frames after {DRAIN_TIMEOUT:.0f} s")
            time.sleep(TICK)
        # a frame that has left its queue is in a socket or a switch for a moment yet
        time.sleep(0.05)

    def _start_captures(self) -> list[Capture]:
        directory = self._directory / "pcap"
        captures = []
        for name in self._scenario.capture:
            directory.mkdir(exist_ok=True)
            interface = self.fabric.wire_end(self._topology.interfaces[name])
            captures.append(
                Capture(interface.name, directory / f"{name}.pcap", self._namespace_pid(interface))
            )
        return captures

    @staticmethod
    def _stop_captures(captures: list[Capture]) -> list[str]:
        return [
            f"{capture.path.name}: tcpdump lost {lost} frames"
            for capture in captures
            if (lost := capture.stop())
        ]

    def _namespace_pid(self, interface: Interface) -> int:
        return self.fabric.pid_of(interface.node) if interface.address else os.getpid()


class _StealMeter:
    """Share of CPU time that the hypervisor took, from /proc/stat."""

    def __init__(self) -> None:
        self._first = self._read()

    @staticmethod
    def _read() -> tuple[int, int]:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        values = [int(value) for value in fields[:8]]
        return values[7], sum(values)

    def share(self) -> float | None:
        """Since the beginning; None if no time has passed."""
        stolen, total = self._read()
        spent = total - self._first[1]
        return (stolen - self._first[0]) / spent if spent > 0 else None
