"""Workloads: who sends what to whom. Pure planning; each is one file, registered by name."""

from __future__ import annotations

import importlib
import pkgutil

from traffic.workloads.base import (
    Reference,
    Workload,
    create_workload,
    register_workload,
    verify_rank,
    workload_class,
    workload_names,
)

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "Reference",
    "Workload",
    "create_workload",
    "register_workload",
    "verify_rank",
    "workload_class",
    "workload_names",
]
