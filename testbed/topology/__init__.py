"""Topologies: what is wired to what. Pure data; each family is one file, registered by name."""

from __future__ import annotations

import importlib
import pkgutil

from testbed.topology.base import (
    Interface,
    Node,
    NodeKind,
    Rank,
    RankRole,
    Topology,
    TopologyError,
    TopologyKind,
    TopologyParameters,
    create_topology,
    register_topology,
    topology_kinds,
)
from testbed.topology.builder import TopologyBuilder
from testbed.topology.text_format import TopologyFormat, export_topology

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "Interface",
    "Node",
    "NodeKind",
    "Rank",
    "RankRole",
    "Topology",
    "TopologyBuilder",
    "TopologyError",
    "TopologyFormat",
    "TopologyKind",
    "TopologyParameters",
    "create_topology",
    "export_topology",
    "register_topology",
    "topology_kinds",
]
