"""Which variants share a fabric, and that nothing is left standing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed import fabric_keeper
from testbed.coll.sweep import Sweep
from testbed.experiment import Experiment
from testbed.fabric_keeper import FabricKeeper
from testbed.progress import QuietProgress
from testbed.scenario import Scenario, build_topology, plan_traffic, resolve_variants


def variants(*settings: str, algorithms: tuple[str, ...] = ("ring",)) -> list[Scenario]:
    sweep = Sweep(
        operation="all-reduce",
        sizes=(8192, 16384),
        algorithms=algorithms,
        settings=["topology.servers_per_leaf=2", *settings],
    )
    return [variant for _, variant in resolve_variants(sweep.scenario())]


def planned(variant: Scenario, directory: Path) -> Experiment:
    topology = build_topology(variant)
    return Experiment(
        variant,
        topology,
        plan_traffic(variant, topology),
        dilation=1000.0,
        directory=directory,
        scratch=directory,
        progress=QuietProgress(),
    )


def takes(experiment: Experiment, variant: Scenario, directory: Path) -> bool:
    return experiment.take(variant, plan_traffic(variant, build_topology(variant)), directory)


def test_a_fabric_takes_what_differs_in_its_workload_alone(tmp_path: Path) -> None:
    first, second, tree, _ = variants(algorithms=("ring", "double-binary-tree"))
    experiment = planned(first, tmp_path)
    assert takes(experiment, second, tmp_path)
    assert takes(experiment, tree, tmp_path)
    assert takes(experiment, first, tmp_path)


@pytest.mark.parametrize(
    "setting",
    [
        "nic.timeout=10",
        "switch.buffer.limit=64 KiB",
        "topology.link_rate=100 Gbps",
        "routing.scheme=e-ecmp",
        "seed=2",
    ],
)
def test_a_fabric_refuses_what_differs_in_more(tmp_path: Path, setting: str) -> None:
    experiment = planned(variants()[0], tmp_path)
    assert not takes(experiment, variants(setting)[1], tmp_path)
    assert takes(experiment, variants()[1], tmp_path)


def test_a_fabric_whose_links_change_takes_nothing(tmp_path: Path) -> None:
    fault = "faults.links=[{link: leaf1-spine1, down: 10 us, up: 20 us}]"
    first, second = variants(fault)
    assert not takes(planned(first, tmp_path), second, tmp_path)


class FakeExperiment:
    """Records what is asked of it."""

    def __init__(self, log: list[str], number: int, *, suits: bool) -> None:
        self._log, self._number, self._suits = log, number, suits
        log.append(f"create {number}")

    def take(self, *arguments: Any) -> bool:
        return self._suits

    def measure(self) -> int:
        self._log.append(f"measure {self._number}")
        return self._number

    def run(self) -> int:
        self._log.append(f"run {self._number}")
        return self._number

    def stop(self) -> None:
        self._log.append(f"stop {self._number}")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return use(monkeypatch, suits=True)


def use(monkeypatch: pytest.MonkeyPatch, *, suits: bool) -> list[str]:
    log: list[str] = []

    def create(*arguments: Any) -> FakeExperiment:
        number = sum(line.startswith("create") for line in log) + 1
        return FakeExperiment(log, number, suits=suits)

    monkeypatch.setattr(fabric_keeper, "create_experiment", create)
    return log


def keeper(directory: Path, *, keep: bool = True) -> FabricKeeper:
    return FabricKeeper(1000.0, QuietProgress(), keep=keep, directory=directory)


def test_one_fabric_for_all(log: list[str], tmp_path: Path) -> None:
    with keeper(tmp_path) as fabrics:
        for number, variant in enumerate(variants()):
            fabrics.measure(variant, tmp_path / str(number))
    assert log == ["create 1", "measure 1", "measure 1", "stop 1"]
    assert (tmp_path / "1").is_dir()


def test_another_dilation_needs_another_fabric(log: list[str], tmp_path: Path) -> None:
    (variant, _) = variants()
    with keeper(tmp_path) as fabrics:
        fabrics.measure(variant, tmp_path)
        fabrics.dilation = 2000.0
        fabrics.measure(variant, tmp_path)
        fabrics.measure(variant, tmp_path)
    assert log == [
        "create 1", "measure 1", "stop 1", "create 2", "measure 2", "measure 2", "stop 2",
    ]  # fmt: skip


def test_a_fabric_that_does_not_suit_makes_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = use(monkeypatch, suits=False)
    with keeper(tmp_path) as fabrics:
        for variant in variants():
            fabrics.measure(variant, tmp_path)
    assert log == ["create 1", "measure 1", "stop 1", "create 2", "measure 2", "stop 2"]


def test_without_keeping_each_has_its_own(log: list[str], tmp_path: Path) -> None:
    with keeper(tmp_path, keep=False) as fabrics:
        for variant in variants():
            fabrics.measure(variant, tmp_path)
    assert log == ["create 1", "run 1", "create 2", "run 2"]


def test_an_error_takes_the_fabric_down(log: list[str], tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), keeper(tmp_path) as fabrics:
        fabrics.measure(variants()[0], tmp_path)
        raise KeyboardInterrupt
    assert log[-1] == "stop 1"
