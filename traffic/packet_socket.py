"""The NIC's wire: a packet socket bound to one interface, receiving RoCEv2 frames only."""

from __future__ import annotations

import ctypes
import socket
import struct
from typing import Final

from traffic.codec import ROCE_UDP_PORT

_ETH_P_ALL: Final = 0x0003
_ETH_P_IP: Final = 0x0800
_SOL_PACKET: Final = 263
_PACKET_STATISTICS: Final = 6
_PACKET_IGNORE_OUTGOING: Final = 23
_SO_ATTACH_FILTER: Final = 26
_SO_SNDBUFFORCE: Final = 32
_SO_RCVBUFFORCE: Final = 33
_RECEIVE_BUFFER: Final = 256 << 20
_SEND_BUFFER: Final = 16 << 20
_LARGEST_FRAME: Final = 9216

# Classic BPF (linux/filter.h): accept IPv4 packets that are UDP to the RoCEv2 port.
_LDH, _LDB, _LDX_MSH, _LDH_IND, _JEQ, _RET = 0x28, 0x30, 0xB1, 0x48, 0x15, 0x06
_FILTER: Final = [
    (_LDH, 0, 0, 12),  # EtherType
    (_JEQ, 0, 6, _ETH_P_IP),
    (_LDB, 0, 0, 23),  # IP protocol
    (_JEQ, 0, 4, socket.IPPROTO_UDP),
    (_LDX_MSH, 0, 0, 14),  # X = length of the IP header
    (_LDH_IND, 0, 0, 16),  # UDP destination port
    (_JEQ, 0, 1, ROCE_UDP_PORT),
    (_RET, 0, 0, 0x40000),
    (_RET, 0, 0, 0),
]


class PacketSocket:
    """Sends and receives whole Ethernet frames on one interface, without blocking.

    Must be opened in the interface's network namespace; it stays there. Raises OSError.
    """

    def __init__(self, interface: str) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self._socket.setblocking(False)
        program = b"".join(struct.pack("HBBI", *instruction) for instruction in _FILTER)
        self._program = ctypes.create_string_buffer(program)
        self._socket.setsockopt(
            socket.SOL_SOCKET,
            _SO_ATTACH_FILTER,
            struct.pack("HP", len(_FILTER), ctypes.addressof(self._program)),
        )
        self._socket.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _SEND_BUFFER)
        # ETH_P_ALL: only such sockets get their copy before tc's ingress hook (testbed/asic)
        self._socket.bind((interface, _ETH_P_ALL))
        self.send = self._socket.send
        """Send one frame. Raises BlockingIOError when 16 MiB wait already."""

    def fileno(self) -> int:
        """For select()."""
        return self._socket.fileno()

    def receive(self, most: int = 64) -> list[bytes]:
        """Up to ``most`` frames that have arrived, in order."""
        frames: list[bytes] = []
        receive = self._socket.recv
        try:
            while len(frames) < most:
                frames.append(receive(_LARGEST_FRAME))
        except BlockingIOError:  # that was all
            pass
        return frames

    def take_dropped(self) -> int:
        """Frames that the kernel dropped because this socket was full, since the last call."""
        statistics = self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
        return int(struct.unpack("II", statistics)[1])

    def close(self) -> None:
        """Close the socket. Idempotent."""
        self._socket.close()
