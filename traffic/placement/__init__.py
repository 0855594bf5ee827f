"""Placement of jobs: strategies, one per module, chosen by name.

Every module in this package is imported, so that a new strategy registers itself by being there.
"""

from __future__ import annotations

import importlib
import pkgutil

from traffic.placement.base import (
    Job,
    Placement,
    PlacementError,
    RankSlot,
    create_placement,
    place,
    placement_names,
    rank_slots,
    register_placement,
)
from traffic.placement.cut import cut, groups_spanned, total_cut

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "Job",
    "Placement",
    "PlacementError",
    "RankSlot",
    "create_placement",
    "cut",
    "groups_spanned",
    "place",
    "placement_names",
    "rank_slots",
    "register_placement",
    "total_cut",
]
