"""A switch of a few lines, to see what a controller says to one."""

from __future__ import annotations

import socket
import struct
import threading

_CONTROL = {0: "open", 4: "commit", 6: "discard"}
"""Type of an ONF_ET_BUNDLE_CONTROL message (EXT-230)."""
_FLOW_MOD = {0: "add", 3: "delete", 4: "delete strict"}
"""Command of an OFPT_FLOW_MOD message."""
_BUNDLE_CONTROL, _BUNDLE_ADD = 2300, 2301

HEADER = struct.Struct("!BBHI")
VERSION = 4
HELLO, ERROR, FEATURES_REQUEST, EXPERIMENTER, BARRIER_REQUEST = 0, 1, 5, 4, 20
BAD_ACTION_BAD_OUT_PORT = struct.pack("!HH", 2, 4)


class FakeSwitch(threading.Thread):
    """Speaks the handshake of OpenFlow 1.3 and answers barriers.

    ``refuse`` is the number of the bundle message, from 0, that it answers with an error.
    """

    def __init__(self, port: int, datapath_id: int, *, refuse: int | None = None) -> None:
        super().__init__(daemon=True)
        self.datapath_id = datapath_id
        self.refuse = refuse
        self.experimenter_messages = 0
        self.said: list[tuple[int, str]] = []
        """Bundle and what was said about or in it, in order."""
        self.stream = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.start()

    def send(self, kind: int, xid: int, body: bytes = b"") -> None:
        self.stream.sendall(HEADER.pack(VERSION, kind, HEADER.size + len(body), xid) + body)

    def run(self) -> None:
        self.send(HELLO, 1)
        with self.stream, self.stream.makefile("rb") as reader:
            while header := reader.read(HEADER.size):
                _, kind, length, xid = HEADER.unpack(header)
                body = reader.read(length - HEADER.size)
                if kind == FEATURES_REQUEST:
                    features = struct.pack("!QIBB2xII", self.datapath_id, 0, 254, 0, 0, 0)
                    self.send(kind + 1, xid, features)
                elif kind == BARRIER_REQUEST:
                    self.send(kind + 1, xid)
                elif kind == EXPERIMENTER:
                    if self.experimenter_messages == self.refuse:
                        self.send(ERROR, xid, BAD_ACTION_BAD_OUT_PORT + header + body[:56])
                    self.experimenter_messages += 1
                    self.said.append(_decode(body))


def _decode(body: bytes) -> tuple[int, str]:
    kind, bundle = struct.unpack_from("!4xII", body)
    if kind == _BUNDLE_CONTROL:
        return bundle, _CONTROL[struct.unpack_from("!H", body, 12)[0]]
    assert kind == _BUNDLE_ADD
    inner = body[16:]
    return bundle, _FLOW_MOD[inner[25]]
