"""Collective algorithms. Pure planning; each is one file, registered by name."""

from __future__ import annotations

import importlib
import pkgutil

from traffic.collectives.algorithms.base import (
    Algorithm,
    algorithm_names,
    algorithms_for,
    create_algorithm,
    register_algorithm,
)

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "Algorithm",
    "algorithm_names",
    "algorithms_for",
    "create_algorithm",
    "register_algorithm",
]
