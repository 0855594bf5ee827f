"""Schemes over arrays of flows. Each is one file here, registered by the scheme's name."""

from __future__ import annotations

import importlib
import pkgutil

from controllers.planning.schemes.base import (
    HopByHopPlanner,
    SchemePlanner,
    create_planner,
    planner_names,
    register_planner,
)

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "HopByHopPlanner",
    "SchemePlanner",
    "create_planner",
    "planner_names",
    "register_planner",
]
