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
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from testbed.calibration import choose_dilation, measure_unit
from testbed.collect import collect, most_retransmitting_flow, queue_samples
from testbed.experiment import Experiment, Measurements
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
from testbed.topology import Topology

ATTEMPTS = 3
"""How often a variant is run with ``dilation: auto`` until the machine keeps up."""

SCRATCH = Path("/run/rocelab")
"""Sockets and the compiled program; on the run's own tmpfs (testbed.isolation)."""


def run_scenario(scenario: Scenario, options: RunOptions, progress: ProgressReporter) -> int:
    """Run all variants that ``options`` names and write results, charts and report."""
    started = datetime.now(UTC)
    variants = [
        (name, variant) for name, variant in resolve_variants(scenario) if name in options.variants
    ]
    dilation = _dilation(scenario, variants, progress)
    results: list[VariantResult] = []
    queues: dict[str, QueueSamples] = {}
    drops: dict[str, list[DropRecord]] = {}
    traced = -1
    for number, (name, variant) in enumerate(variants, 1):
        progress.variant(name, number=number, count=len(variants))
        directory = options.directory if len(variants) == 1 else options.directory / name
        overrides = next((v.set for v in scenario.variants if v.name == name), {})
        for attempt in range(ATTEMPTS):
            measurements = _run_variant(variant, dilation, directory, progress)
            if traced < 0:
                traced = most_retransmitting_flow(measurements)
            result = collect(name, overrides, variant, measurements, traced_flow=traced)
            slower = result.fidelity.dilation_enough
            if (
                scenario.dilation != "auto"
                or result.fidelity.verdict is not Verdict.INVALID
                or slower is None
                or attempt == ATTEMPTS - 1
            ):
                break
            dilation = max(1.5 * dilation, min(slower, 4 * dilation))
            progress.note(
                f"{name}: the machine did not keep up ({result.fidelity.reasons[0]}); "
                f"once more with dilation {dilation:g}"
            )
        results.append(result)
        queues[name] = queue_samples(measurements)
        drops[name] = result.drops
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
    _write(run, options.directory, queues, drops)
    return _status(run, progress)


def run_shell(scenario: Scenario, options: RunOptions, progress: ProgressReporter) -> int:
    """Build the first variant's fabric and routes and hand it to Mininet's command line."""
    import mininet.log
    from mininet.cli import CLI

    name, variant = resolve_variants(scenario)[0]
    dilation = _dilation(scenario, [(name, variant)], progress)
    experiment = _experiment(variant, dilation, options.directory, progress)
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
    scenario: Scenario, variants: list[tuple[str, Scenario]], progress: ProgressReporter
) -> float:
    """One dilation for all variants, so that they can be compared."""
    if scenario.dilation != "auto":
        return scenario.dilation
    unit = measure_unit()
    chosen = 1.0
    for _, variant in variants:
        topology = build_topology(variant)
        plan = plan_traffic(variant, topology)
        needed = choose_dilation(plan, topology, path_mtu=variant.nic.path_mtu, unit=unit)
        chosen = max(chosen, needed)
    progress.note(f"dilation {chosen:g}: one emulated microsecond takes {chosen * 1e-3:.3g} ms")
    return chosen


def _experiment(
    variant: Scenario, dilation: float, directory: Path, progress: ProgressReporter
) -> Experiment:
    topology = build_topology(variant)
    SCRATCH.mkdir(exist_ok=True)
    return Experiment(
        variant,
        topology,
        plan_traffic(variant, topology),
        dilation=dilation,
        directory=directory,
        scratch=Path(tempfile.mkdtemp(dir=SCRATCH)),
        progress=progress,
    )


def _run_variant(
    variant: Scenario, dilation: float, directory: Path, progress: ProgressReporter
) -> Measurements:
    directory.mkdir(exist_ok=True)
    return _experiment(variant, dilation, directory, progress).run()


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
    rates: dict[str, float] = {}
    for interface in topology.interfaces.values():
        ends = (interface.node, interface.peer_node)
        kind = "-".join(end.rstrip("0123456789") for end in ends)
        rates.setdefault(kind, interface.rate)
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
        link_rates=rates,
        base_rtt=2 * topology.one_way_latency(farthest),
    )


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
