"""A run: every variant of a scenario, one after the other, judged and written down.

Runs as PID 1 of the run's namespaces (testbed.isolation). Exit status as in testbed.options.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import socket
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from testbed.calibration import SHARED_MARGIN, choose_dilation, fastest_time, measure_unit
from testbed.collect import collect, most_retransmitting_flow, queue_samples, rank_intervals
from testbed.experiment import Measurements
from testbed.fabric_keeper import SCRATCH, FabricKeeper, create_experiment
from testbed.fidelity import Verdict
from testbed.options import ExitStatus, RunOptions
from testbed.progress import ProgressReporter, Stage
from testbed.results import (
    DropRecord,
    EmptyResultError,
    Environment,
    ExpectationResult,
    QueueSamples,
    RunResult,
    TopologySummary,
    VariantResult,
    check_not_empty,
    merge_iterations,
    write_drops_csv,
    write_flows_csv,
    write_queues_csv,
    write_result,
)
from testbed.scenario import (
    Scenario,
    build_topology,
    evaluate_expectations,
    plan_traffic,
    resolve_variants,
)
from testbed.timeline import write_chrome_trace
from testbed.topology import Topology

ATTEMPTS = 3
"""How often a variant is run with ``dilation: auto`` until the machine keeps up."""

SHORT = 3.0
"""Wall seconds of traffic on which a moment's work of something else tells."""


def run_scenario(
    scenario: Scenario,
    options: RunOptions,
    progress: ProgressReporter,
    on_result: Callable[[VariantResult], None] = lambda result: None,
) -> int:
    """Run all variants that ``options`` names and write results, charts and report.

    ``on_result`` is given the result of each as soon as it is there.
    """
    started = datetime.now(UTC)
    variants = [
        (name, variant) for name, variant in resolve_variants(scenario) if name in options.variants
    ]
    dilation = _dilation(scenario, variants, progress, together=options.keep_fabric)
    results: list[VariantResult] = []
    queues: dict[str, QueueSamples] = {}
    with FabricKeeper(
        dilation, progress, keep=options.keep_fabric, directory=options.directory
    ) as fabrics:
        runs = _Variants(scenario, options, progress, fabrics)
        for number, (name, variant) in enumerate(variants, 1):
            progress.variant(name, number=number, count=len(variants))
            directory = options.directory if len(variants) == 1 else options.directory / name
            result, queues[name] = runs.run(name, variant, directory)
            on_result(result)
            results.append(result)
    progress.stage(Stage.REPORT)
    run = RunResult(
        name=scenario.name,
        description=scenario.description,
        scenario=scenario.model_dump(mode="json"),
        seed=scenario.seed,
        topology=_summarise(build_topology(variants[0][1])),
        environment=_environment(),
        started=started,
        finished=datetime.now(UTC),
        variants=results,
        expectations=_expectations(scenario, results),
    )
    _write(run, options.directory, queues, {v.name: v.drops for v in results})
    return _status(run, progress)


class _Variants:
    """Runs variants: as often as asked for, and again where the machine did not keep up."""

    def __init__(
        self,
        scenario: Scenario,
        options: RunOptions,
        progress: ProgressReporter,
        fabrics: FabricKeeper,
    ) -> None:
        self._scenario = scenario
        self._iterations = options.iterations
        self._keep_fabric = options.keep_fabric
        self._progress = progress
        self._fabrics = fabrics
        self._traced = -1

    def run(
        self, name: str, variant: Scenario, directory: Path
    ) -> tuple[VariantResult, QueueSamples]:
        """The result of the best attempt, and the queues of the last run behind it."""
        usual = self._fabrics.dilation
        best = None
        for attempt in range(ATTEMPTS):
            result, last = self._measure(name, variant, directory)
            if best is None or result.fidelity.verdict.severity <= best.fidelity.verdict.severity:
                best, measurements = result, last
            disturbed = attempt == 0 and last.wall_seconds < SHORT
            if attempt == ATTEMPTS - 1 or not self._again(result, disturbed=disturbed):
                break
        assert best is not None
        best = best.model_copy(update={"attempts": attempt + 1})
        if self._keep_fabric:
            # a few small messages need more time than many large ones, which would take it too
            self._fabrics.dilation = usual
        write_chrome_trace(directory, rank_intervals(measurements), measurements.plan.servers)
        return best, queue_samples(measurements)

    def _measure(
        self, name: str, variant: Scenario, directory: Path
    ) -> tuple[VariantResult, Measurements]:
        """All iterations in one result, and the last of them."""
        overrides = next((v.set for v in self._scenario.variants if v.name == name), {})
        results = []
        for _ in range(self._iterations):
            measurements = self._fabrics.measure(variant, directory)
            if self._traced < 0:
                self._traced = most_retransmitting_flow(measurements)
            results.append(
                collect(name, overrides, variant, measurements, traced_flow=self._traced)
            )
        return merge_iterations(results), measurements

    def _again(self, result: VariantResult, *, disturbed: bool) -> bool:
        """Whether another attempt is worth it; its dilation is in force then.

        One fabric for all makes attempts cheap, so there what is only degraded gets one too: with
        the same dilation if it may have been ``disturbed`` by something else.
        """
        verdict, slower = result.fidelity.verdict, result.fidelity.dilation_enough
        if self._scenario.dilation != "auto" or slower is None or verdict is Verdict.FAITHFUL:
            return False
        dilation = self._fabrics.dilation
        if verdict is Verdict.INVALID:
            dilation = max(1.5 * dilation, min(slower, 4 * dilation))
        elif not self._keep_fabric:
            return False
        elif not disturbed:
            dilation = max(1.5 * dilation, min(slower, 2 * dilation))
        self._fabrics.dilation = dilation
        self._progress.note(
            f"{result.name}: the machine did not keep up ({result.fidelity.reasons[0]}); "
            f"once more with dilation {dilation:g}"
        )
        return True


def run_shell(scenario: Scenario, options: RunOptions, progress: ProgressReporter) -> int:
    """Build the first variant's fabric and routes and hand it to Mininet's command line."""
    import mininet.log
    from mininet.cli import CLI

    name, variant = resolve_variants(scenario)[0]
    dilation = _dilation(scenario, [(name, variant)], progress)
    experiment = create_experiment(variant, dilation, options.directory, progress)
    try:
        experiment.build()
        progress.note(
            f"{variant.name} is up at dilation {dilation:g}: "
            f"{len(experiment.fabric.net.hosts)} servers; try 'server1 ping -c 3 server2', 'net', "
            "'leaf1 ovs-ofctl -O OpenFlow13 dump-flows leaf1'; 'exit' ends it"
        )
        progress.__exit__(None, None, None)
        mininet.log.setLogLevel("output")  # what commands of the shell print
        # the history file would be written to the user's home
        os.environ["HOME"] = str(SCRATCH)
        # ^C ends a command, or clears the line, as often as it is typed
        signal.signal(signal.SIGINT, signal.default_int_handler)
        CLI(experiment.fabric.net)
    finally:
        experiment.stop()
    return ExitStatus.OK


def _dilation(
    scenario: Scenario,
    variants: list[tuple[str, Scenario]],
    progress: ProgressReporter,
    *,
    together: bool = False,
) -> float:
    """One dilation for all variants, so that they can be compared.

    Those that run ``together`` share the wall time that one of them might take otherwise; else the
    longest has it, so that a short one beside it does not slow that down.
    """
    if scenario.dilation != "auto":
        return scenario.dilation
    unit = measure_unit()
    planned = []
    for _, variant in variants:
        topology = build_topology(variant)
        planned.append((variant.nic.path_mtu, topology, plan_traffic(variant, topology)))
    times = [fastest_time(plan, topology, path_mtu=mtu) for mtu, topology, plan in planned]
    chosen = 1.0
    for (mtu, topology, plan), own in zip(planned, times, strict=True):
        others = (sum(times) if together else max(times)) - own
        needed = choose_dilation(
            plan, topology, path_mtu=mtu, unit=unit, others=others,
            margin=SHARED_MARGIN if together else 1.0,
        )  # fmt: skip
        chosen = max(chosen, needed)
    progress.note(f"dilation {chosen:g}: one emulated microsecond takes {chosen * 1e-3:.3g} ms")
    return chosen


def _expectations(scenario: Scenario, results: list[VariantResult]) -> list[ExpectationResult]:
    metrics: dict[str, dict[str, Any]] = {v.name: dict(v.metrics) for v in results}
    outcomes = evaluate_expectations(scenario, metrics)
    return [
        ExpectationResult(text=outcome.text, actual=outcome.actual, met=outcome.passed)
        for outcome in outcomes
        if outcome.passed is not None  # it names a variant that was not asked for
    ]


def _write(
    run: RunResult,
    directory: Path,
    queues: dict[str, QueueSamples],
    drops: dict[str, list[DropRecord]],
) -> None:
    from testbed.report import write_report

    write_result(directory, run)
    write_flows_csv(directory, run.variants)
    write_queues_csv(directory, queues)
    write_drops_csv(directory, drops)
    write_report(run, directory)


def _status(run: RunResult, progress: ProgressReporter) -> int:
    try:
        check_not_empty(run)
    except EmptyResultError as error:
        progress.note(f"nothing was measured: {error}")
        return ExitStatus.INVALID
    if run.verdict is Verdict.INVALID:
        return ExitStatus.INVALID
    return ExitStatus.OK if run.expectations_met else ExitStatus.EXPECTATION_FAILED


def _summarise(topology: Topology) -> TopologySummary:
    tiers: dict[str, int] = {}
    for node in topology.nodes.values():
        stem = node.name.rstrip("0123456789")
        tiers[stem] = tiers.get(stem, 0) + 1
    first = 0
    farthest = max(
        (
            topology.switch_hops(first, rank.rank)
            for rank in topology.ranks[1:]
            if topology.connected(first, rank.rank)
        ),
        default=1,
    )
    return TopologySummary(
        name=topology.name,
        tiers=tiers,
        ranks=len(topology.ranks),
        links=len(topology.interfaces) // 2,
        link_rates=_rates_by_kind(topology),
        base_rtt=2 * topology.one_way_latency(farthest),
    )


def _rates_by_kind(topology: Topology) -> dict[str, float]:
    """Kind of link, such as "leaf-spine" -> bit/s of most of its links; others are counted."""
    found: dict[str, Counter[float]] = defaultdict(Counter)
    for interface in topology.interfaces.values():
        ends = (interface.node, interface.peer_node)
        found["-".join(end.rstrip("0123456789") for end in ends)][interface.rate] += 1
    rates: dict[str, float] = {}
    for kind, counts in found.items():
        (rates[kind], _), *others = counts.most_common()
        for rate, n in others:
            name = f"{n} of {counts.total()} {kind}"
            while name in rates:
                name = f"another {name}"
            rates[name] = rate
    return rates


def _environment() -> Environment:
    from importlib.metadata import version

    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    packages = {name: version(name) for name in ("rocelab", "scapy", "numpy", "pyroute2")}
    return Environment(
        hostname=socket.gethostname(),
        kernel=platform.release(),
        cpu=cpu,
        cores=len(os.sched_getaffinity(0)),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        versions={
            "python": platform.python_version(),
            **packages,
            "openvswitch": _tool_version("ovs-vswitchd"),
        },
    )


def _tool_version(tool: str) -> str:
    path = shutil.which(tool)
    if path is None:
        return "missing"
    words = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    return words.splitlines()[0].split()[-1]
