"""Topologies that the routing tests share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from testbed.topology import Topology, TopologyBuilder, create_topology


@pytest.fixture(scope="session")
def family() -> Callable[..., Topology]:
    """Build a registered topology from its name and parameters."""
    return create_topology


@pytest.fixture(scope="session")
def leaf_spine() -> Callable[..., Topology]:
    """Build a leaf-spine fabric from its parameters."""
    return partial(create_topology, "leaf-spine")


@pytest.fixture(scope="session")
def three_tier() -> Callable[..., Topology]:
    """Build a folded Clos of pods below a core.

    ``leaves`` and ``aggregations`` are per pod, ``cores`` per aggregation plane, ``nics`` per leaf.
    """

    def build(*, pods: int, leaves: int, aggregations: int, cores: int, nics: int) -> Topology:
        builder = TopologyBuilder("three-tier", hop_latency=1e-6, nic_latency=1e-6)

        def switches(stem: str, tier: int, groups: int, size: int) -> list[list[str]]:
            return [
                [builder.switch(stem, tier=tier, index=group * size + i) for i in range(size)]
                for group in range(groups)
            ]

        below = switches("leaf", 1, pods, leaves)
        middle = switches("agg", 2, pods, aggregations)
        top = switches("core", 3, aggregations, cores)
        servers = 0
        for pod in range(pods):
            for leaf in below[pod]:
                for _ in range(nics):
                    builder.rank(builder.server(servers), 0, [leaf], rate=400e9)
                    servers += 1
                for aggregation in middle[pod]:
                    builder.link(leaf, aggregation, up_rate=400e9, down_rate=400e9)
            for plane, aggregation in enumerate(middle[pod]):
                for core in top[plane]:
                    builder.link(aggregation, core, up_rate=400e9, down_rate=400e9)
        return builder.build()

    return build
