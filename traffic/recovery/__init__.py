"""Loss recovery of queue pairs: strategies, one per module, chosen by name.

Every module in this package is imported, so that a new strategy registers itself by being there.
"""

from __future__ import annotations

import importlib
import pkgutil

from traffic.recovery.base import (
    OutOfOrder,
    Recovery,
    RequesterRecovery,
    ResponderRecovery,
    create_recovery,
    recovery_names,
    register_recovery,
)

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "OutOfOrder",
    "Recovery",
    "RequesterRecovery",
    "ResponderRecovery",
    "create_recovery",
    "recovery_names",
    "register_recovery",
]
