"""Start the application in this process: ``python -m controllers.launch --program FILE ...``.

os-ken has shipped no manager command since 4.0, and ``ryu-manager`` loads more than we need.
"""

from __future__ import annotations

import argparse
import errno
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from controllers import sdn
from controllers.app import ProgramChanged, RoutingApp, StatusReporter
from controllers.port_owner import port_owner
from controllers.program import ProgramError, load_program
from testbed.syscalls import die_with_parent

EXIT_USAGE = 2
EXIT_PORT_BUSY = 3


class Handshake(sdn.ofp_handler.OFPHandler):  # type: ignore[misc]
    """The library's OpenFlow handshake, served on a socket that is already bound.

    The library itself would bind in a background thread, where a busy port is only a line in a log.
    """

    def __init__(self, *args: Any, listener: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._listener = listener

    def start(self) -> Any:
        """Start handling events, and accept switches."""
        super(sdn.ofp_handler.OFPHandler, self).start()
        return sdn.hub.spawn(self._accept)

    def _accept(self) -> None:
        while True:
            connection, address = self._listener.accept()
            sdn.hub.spawn(sdn.serve_datapath, connection, address)


def connect_status(address: str) -> socket.socket:
    """Connect to the status socket; a leading "@" means the abstract namespace (unix(7))."""
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.connect("\0" + address[1:] if address.startswith("@") else address)
    return stream


def obey(stream: socket.socket, application: Any, report: StatusReporter) -> None:
    """Take commands, one JSON object a line, from the status socket until its other end closes.

    ``{"command": "update", "program": FILE, "version": N}`` is the only one there is.
    """
    pending = b""
    while True:
        sdn.wait_readable(stream)
        data = stream.recv(65536)
        if not data:
            return
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            command = json.loads(line)
            try:
                program = load_program(Path(command["program"]))
            except ProgramError as error:
                report("error", text=str(error))
                continue
            change = ProgramChanged(program, command["version"])
            application.send_event(application.name, change)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; usage errors exit with status 2."""
    parser = argparse.ArgumentParser(
        prog="controllers.launch",
        description="Install a program's entries in the switches that connect.",
    )
    parser.add_argument("--program", type=Path, required=True, help="JSON file of entries")
    parser.add_argument("--status", required=True, help="Unix socket that takes JSON lines")
    parser.add_argument("--listen", default="127.0.0.1:6653", help="HOST:PORT; port 0: any free")
    parser.add_argument("--parent", type=int, help="die when this process, our parent, ends")
    parsed = parser.parse_args(arguments)
    host, _, port = parsed.listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        parser.error(f"--listen {parsed.listen!r} is not HOST:PORT")
    parsed.address = (host, int(port))
    return parsed


def main(arguments: Sequence[str]) -> int:
    """Run until SIGTERM. Returns an exit status after one clear line on stderr."""
    options = parse_arguments(arguments)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # the library's threads never end
    if options.parent is not None:
        die_with_parent()
        if os.getppid() != options.parent:
            return EXIT_USAGE  # the parent ended before we could ask to die with it
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    try:
        program = load_program(options.program)
        stream = connect_status(options.status)
        report = StatusReporter(stream)
        listener = sdn.hub.listen(options.address, reuse_port=False)
    except ProgramError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:
        return _explain(error, options)
    host, port = listener.getsockname()[:2]
    report("listening", address=host, port=port, library=sdn.name, version=sdn.version)
    manager = sdn.AppManager.get_instance()
    for application, given in (
        (Handshake, {"listener": listener}),
        (RoutingApp, {"program": program, "report": report}),
    ):
        manager.instantiate(application, **given)
    for application in manager.applications.values():
        application.start()
    routing = manager.applications[RoutingApp.__name__]
    sdn.hub.spawn(obey, stream, routing, report)
    while True:
        sdn.hub.sleep(3600)


def _explain(error: OSError, options: argparse.Namespace) -> int:
    if error.errno == errno.EADDRINUSE:
        owner = port_owner(options.address[1])
        by = f"; process {owner} listens there" if owner else ""
        print(f"controller: port {options.listen} is busy{by}", file=sys.stderr)
        return EXIT_PORT_BUSY
    print(f"controller: {error}", file=sys.stderr)
    return EXIT_USAGE


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(status)
