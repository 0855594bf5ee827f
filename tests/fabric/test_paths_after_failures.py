"""Predicted paths are the observed ones: every scheme on every preset, before and after a failure.

A fabric is built once and its controller given one program after the other, as in a run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controllers.process import ControllerProcess
from controllers.program import write_program
from controllers.routes import LinkState
from controllers.schemes import scheme_class, scheme_names
from testbed.asic.mmu import BufferPolicy
from testbed.fabric import Fabric
from testbed.failure_agent import REVALIDATION
from testbed.probe import Prober
from testbed.routes import PlannedRoutes, plan_routes
from testbed.scenario import Scenario, build_topology, plan_traffic
from testbed.topology import Topology
from tests.isolated import isolated

pytestmark = [
    pytest.mark.fabric,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: builds fabrics"),
    pytest.mark.timeout(240),
]

PRESETS = ["hpn7-pod", "meta-ai-zone", "rail-optimised", "spectrum-x-like"]
DILATION = 2000
TIMEOUT = 30.0
"""Wall seconds."""


def scenario(preset: str, scheme: str) -> Scenario:
    return Scenario.from_document(
        {
            "name": "paths",
            "topology": {"kind": preset},
            "routing": {"scheme": scheme},
            "workload": {"kind": "permutation", "message_size": "64 KiB"},
        }
    )


def failures(topology: Topology) -> Iterator[tuple[str, LinkState]]:
    """All links up; then an uplink and a NIC's port down; then a spine."""
    uplink = next(i for i in topology.interfaces_of("leaf1") if i.peer_node.startswith("spine"))
    access = topology.ranks[0].interfaces[0]
    yield "healthy", LinkState()
    yield "links", LinkState(frozenset({uplink.name, access}))
    yield "spine", LinkState(frozenset(i.name for i in topology.interfaces_of("spine2")))


class Bench:
    """One fabric, with hash engines or without, whose switches take program after program."""

    def __init__(self, folder: Path, topology: Topology, first: PlannedRoutes) -> None:
        self._folder = folder
        self._topology = topology
        self._programs = 0
        self.fabric = Fabric(
            topology,
            dilation=DILATION,
            policy=BufferPolicy(),
            directory=Path("/run/rocelab") / folder.name,
            logs=folder,
            labels=first.labels,
        )
        self._controller = ControllerProcess(self._program(first), log=folder / "log")

    def start(self) -> None:
        self._controller.start()
        self.fabric.build(before_bridges=lambda: self._controller.wait_listening(TIMEOUT))
        self._controller.wait_ready(TIMEOUT)

    def stop(self) -> None:
        self._controller.stop()
        self.fabric.stop()

    def observe(self, routes: PlannedRoutes, state: LinkState) -> int:
        """Bring links and switches to a state; probe all ways, raising what the prober raises."""
        for name, interface in self._topology.interfaces.items():
            self.fabric.mmu.set_link(name, up=state.up(interface))
        version = self._controller.update(self._program(routes))
        deadline = time.monotonic() + TIMEOUT
        while not self._controller.in_force(version):
            assert time.monotonic() < deadline, "entries are not in force"
            time.sleep(0.002)
        if self.fabric.label_engine is not None:
            alive = {leaf: s for leaf, s in routes.labels.items() if s.members}
            self.fabric.label_engine.configure(alive, DILATION)
        time.sleep(REVALIDATION)
        return Prober(self.fabric, routes.plan, routes.paths).run().probes

    def _program(self, routes: PlannedRoutes) -> Path:
        self._programs += 1
        path = self._folder / f"program-{self._programs}.json"
        write_program(path, self._topology, routes.entries)
        return path


def observe_all(preset: str, folder: Path) -> dict[str, Any]:
    """Scheme and failure -> number of probes, or what was wrong."""
    seen: dict[str, Any] = {}
    for labelled in (False, True):
        schemes = [name for name in scheme_names() if scheme_class(name).labelled is labelled]
        topology = build_topology(scenario(preset, schemes[0]))

        def routes(scheme: str, state: LinkState, topology: Topology = topology) -> PlannedRoutes:
            one = scenario(preset, scheme)
            return plan_routes(one, topology, plan_traffic(one, topology), state)

        part = folder / f"labelled-{labelled}"
        part.mkdir()
        bench = Bench(part, topology, routes(schemes[0], LinkState()))
        try:
            bench.start()
            for scheme in schemes:
                for name, state in failures(topology):
                    try:
                        found: Any = bench.observe(routes(scheme, state), state)
                    except Exception as error:
                        found = f"{type(error).__name__}: {error}"
                    seen[f"{scheme}, {name}"] = found
        finally:
            bench.stop()
    return seen


@pytest.mark.parametrize("preset", PRESETS)
def test_every_scheme_goes_where_it_says(tmp_path: Path, preset: str) -> None:
    seen = isolated(lambda: observe_all(preset, tmp_path))
    assert {case: found for case, found in seen.items() if not isinstance(found, int)} == {}
    assert len(seen) == 3 * len(scheme_names())
    assert all(found > 0 for found in seen.values())
