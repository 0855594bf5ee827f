"""A strategy that takes another one's name is refused, whatever it is a strategy of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from controllers.planning.schemes import create_planner, register_planner
from controllers.schemes import register_scheme, scheme_class
from testbed.topology import register_topology, topology_kinds
from traffic.collectives.algorithms import create_algorithm, register_algorithm
from traffic.placement import create_placement, register_placement
from traffic.recovery import Recovery, register_recovery
from traffic.verbs import QpType
from traffic.workloads import register_workload, workload_class


@pytest.mark.parametrize(
    ("register", "taken"),
    [
        (register_topology, topology_kinds()["leaf-spine"]),
        (register_scheme, scheme_class("ecmp")),
        (register_planner, type(create_planner("ecmp"))),
        (register_algorithm, type(create_algorithm("ring"))),
        (register_placement, type(create_placement("fragmented"))),
        (register_workload, workload_class("incast")),
        (register_recovery, Recovery("none", frozenset({QpType.UC}), object, object)),
    ],
)
def test_a_name_is_taken_once(register: Callable[[Any], Any], taken: Any) -> None:
    with pytest.raises(ValueError, match=f"{taken.name!r} is registered twice"):
        register(taken)
