"""What a run says of its fabric."""

from __future__ import annotations

from testbed.runner import _rates_by_kind
from testbed.scenario import build_topology, load_scenario


def rates(*overrides: str) -> dict[str, float]:
    return _rates_by_kind(build_topology(load_scenario("ecmp-collisions", overrides)))


def test_rates_by_kind_of_link() -> None:
    assert rates("topology.uplink_rate=200 Gbps") == {
        "server-leaf": 400e9, "leaf-server": 400e9, "leaf-spine": 200e9, "spine-leaf": 200e9,
    }  # fmt: skip


def test_one_slow_link_is_not_taken_for_all() -> None:
    slow = ", ".join(
        f"{{link: leaf1-spine{n}, rate: {rate} Gbps}}" for n, rate in ((1, 100), (2, 100), (3, 50))
    )
    found = rates(f"faults.slow=[{slow}, {{link: leaf1-spine4, rate: 25 Gbps}}]")
    assert found["leaf-spine"] == 400e9
    assert found["2 of 16 leaf-spine"] == 100e9
    assert {found["1 of 16 leaf-spine"], found["another 1 of 16 leaf-spine"]} == {50e9, 25e9}
    assert found["server-leaf"] == 400e9
