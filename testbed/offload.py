"""Switch off the offloads that falsify a software network: checksum, segmentation, coalescing.

With them on, frames larger than the MTU and with unfinished checksums travel between veth ends, and
queue depths, captures and userspace switches see packets that no wire would carry.
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct

_SIOCETHTOOL = 0x8946

_OFF_COMMANDS = {
    "rx-checksumming": 0x15,
    "tx-checksumming": 0x17,
    "tcp-segmentation-offload": 0x1F,
    "generic-segmentation-offload": 0x24,
    "generic-receive-offload": 0x2C,
}
"""ETHTOOL_S* commands of linux/ethtool.h, each taking a struct ethtool_value."""

_GET_COMMANDS = {
    "tx-checksumming": 0x16,
    "tcp-segmentation-offload": 0x1E,
    "generic-segmentation-offload": 0x23,
    "generic-receive-offload": 0x2B,
}


def _ioctl(sock: socket.socket, interface: str, command: int, value: int) -> int:
    data = ctypes.create_string_buffer(struct.pack("II", command, value))
    request = struct.pack("16sP", interface.encode(), ctypes.addressof(data))
    fcntl.ioctl(sock.fileno(), _SIOCETHTOOL, request.ljust(40, b"\0"))
    return int(struct.unpack("II", data.raw[:8])[1])


def disable_offloads(interfaces: list[str]) -> None:
    """Switch offloads off on interfaces of the calling thread's network namespace.

    Raises OSError when an interface does not exist.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for interface in interfaces:
            for command in _OFF_COMMANDS.values():
                _ioctl(sock, interface, command, 0)


def enabled_offloads(interface: str) -> list[str]:
    """Names of the offloads that are still on; empty is what a fabric wants."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return [name for name, get in _GET_COMMANDS.items() if _ioctl(sock, interface, get, 0)]
