"""Routing schemes: which path a flow takes. Each is one file here, registered by name."""

from __future__ import annotations

import importlib
import pkgutil

from controllers.schemes.base import (
    Entries,
    RoutingScheme,
    RoutingView,
    SchemeParameters,
    create_scheme,
    register_scheme,
    scheme_class,
    scheme_names,
)

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "Entries",
    "RoutingScheme",
    "RoutingView",
    "SchemeParameters",
    "create_scheme",
    "register_scheme",
    "scheme_class",
    "scheme_names",
]
