"""The one import seam to the OpenFlow library: os-ken, or Ryu 4.34, which it descends from.

``ROCELAB_SDN`` chooses, "os-ken" or "ryu"; without it os-ken is used where it can be imported, else
Ryu. Everything that the two do not share is levelled here.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import select
import socket
from importlib import metadata
from types import ModuleType
from typing import Any

_PACKAGES = {"os-ken": "os_ken", "ryu": "ryu"}


def choose(requested: str | None) -> str:
    """The library's distribution name. Raises ImportError with one clear line."""
    if requested and requested not in _PACKAGES:
        raise ImportError(f"ROCELAB_SDN={requested!r} is unknown; allowed: {', '.join(_PACKAGES)}")
    for name in [requested] if requested else _PACKAGES:
        if importlib.util.find_spec(_PACKAGES[name]) is not None:
            return name
    wanted = requested or " or ".join(_PACKAGES)
    raise ImportError(f"no OpenFlow library: {wanted} is not installed for this Python")


def _level_ryu() -> None:
    """Give Ryu 4.34 (2020) the name that ryu.app.wsgi imports and eventlet 0.30.3 removed.

    Our own application serves no HTTP, but one loaded beside it may (ryu issue 169).
    """
    wsgi: Any = importlib.import_module("eventlet.wsgi")
    if not hasattr(wsgi, "ALREADY_HANDLED"):
        wsgi.ALREADY_HANDLED = object()


name = choose(os.environ.get("ROCELAB_SDN"))
"""Which library is in use, "os-ken" or "ryu"."""

version = metadata.version(name)

if name == "ryu":
    _level_ryu()


def _module(path: str) -> ModuleType:
    return importlib.import_module(f"{_PACKAGES[name]}.{path}")


_handler = _module("controller.handler")
_app_manager = _module("base.app_manager")
_controller = _module("controller.controller")

hub: Any = _module("lib.hub")
"""Threads and sockets as the library has them: native for os-ken, eventlet for Ryu."""
Event: Any = _module("controller.event").EventBase
"""Base class of events that applications handle."""
ofp_event: Any = _module("controller.ofp_event")
ofp_handler: Any = _module("controller.ofp_handler")
ofproto_v1_3: Any = _module("ofproto.ofproto_v1_3")
ofproto_v1_3_parser: Any = _module("ofproto.ofproto_v1_3_parser")
nicira_ext: Any = _module("ofproto.nicira_ext")
ofproto_protocol: Any = _module("ofproto.ofproto_protocol")

App: Any = getattr(_app_manager, "OSKenApp", None) or _app_manager.RyuApp
"""Base class of applications."""
AppManager: Any = _app_manager.AppManager
set_ev_cls: Any = _handler.set_ev_cls
HANDSHAKE_DISPATCHER: str = _handler.HANDSHAKE_DISPATCHER
CONFIG_DISPATCHER: str = _handler.CONFIG_DISPATCHER
MAIN_DISPATCHER: str = _handler.MAIN_DISPATCHER
serve_datapath: Any = _controller.datapath_connection_factory
"""Serve one switch's connection until it closes: ``serve_datapath(socket, address)``."""


def wait_readable(stream: socket.socket) -> None:
    """Wait until a socket can be read, while the library's other threads go on."""
    if name == "ryu":
        importlib.import_module("eventlet.hubs").trampoline(stream, read=True)
    else:
        select.select([stream], [], [])
