"""BTH opcodes (IBTA vol. 1, table 38) and what the fast path needs to know about each."""

from __future__ import annotations

import enum
from typing import Final

RC: Final = 0x00
UC: Final = 0x20
TRANSPORT_SHIFT: Final = 5
CNP: Final = 0x81
"""Congestion notification packet (RoCEv2 annex A17.9.3)."""


class Operation(enum.IntEnum):
    """The lower five bits of a BTH opcode; the transport service is in the upper three."""

    SEND_FIRST = 0x00
    SEND_MIDDLE = 0x01
    SEND_LAST = 0x02
    SEND_LAST_WITH_IMMEDIATE = 0x03
    SEND_ONLY = 0x04
    SEND_ONLY_WITH_IMMEDIATE = 0x05
    RDMA_WRITE_FIRST = 0x06
    RDMA_WRITE_MIDDLE = 0x07
    RDMA_WRITE_LAST = 0x08
    RDMA_WRITE_LAST_WITH_IMMEDIATE = 0x09
    RDMA_WRITE_ONLY = 0x0A
    RDMA_WRITE_ONLY_WITH_IMMEDIATE = 0x0B
    RDMA_READ_REQUEST = 0x0C
    RDMA_READ_RESPONSE_FIRST = 0x0D
    RDMA_READ_RESPONSE_MIDDLE = 0x0E
    RDMA_READ_RESPONSE_LAST = 0x0F
    RDMA_READ_RESPONSE_ONLY = 0x10
    ACKNOWLEDGE = 0x11
    ATOMIC_ACKNOWLEDGE = 0x12
    CMP_SWAP = 0x13
    FETCH_ADD = 0x14
    SEND_LAST_WITH_INVALIDATE = 0x16
    SEND_ONLY_WITH_INVALIDATE = 0x17
    FLUSH = 0x1C
    ATOMIC_WRITE = 0x1D


class Layout(enum.IntEnum):
    """Which extension headers follow the BTH, as far as the codec decodes them."""

    NONE = 0
    RETH = 1
    RETH_IMMEDIATE = 2
    IMMEDIATE = 3
    AETH = 4
    OPAQUE = 5
    UNKNOWN = 6


IMMEDIATE_LENGTH: Final = 4
AETH_LENGTH: Final = 4
RETH_LENGTH: Final = 16

_RC_LAYOUTS: Final[dict[int, tuple[Layout, int]]] = {
    Operation.SEND_FIRST: (Layout.NONE, 0),
    Operation.SEND_MIDDLE: (Layout.NONE, 0),
    Operation.SEND_LAST: (Layout.NONE, 0),
    Operation.SEND_LAST_WITH_IMMEDIATE: (Layout.IMMEDIATE, IMMEDIATE_LENGTH),
    Operation.SEND_ONLY: (Layout.NONE, 0),
    Operation.SEND_ONLY_WITH_IMMEDIATE: (Layout.IMMEDIATE, IMMEDIATE_LENGTH),
    Operation.RDMA_WRITE_FIRST: (Layout.RETH, RETH_LENGTH),
    Operation.RDMA_WRITE_MIDDLE: (Layout.NONE, 0),
    Operation.RDMA_WRITE_LAST: (Layout.NONE, 0),
    Operation.RDMA_WRITE_LAST_WITH_IMMEDIATE: (Layout.IMMEDIATE, IMMEDIATE_LENGTH),
    Operation.RDMA_WRITE_ONLY: (Layout.RETH, RETH_LENGTH),
    Operation.RDMA_WRITE_ONLY_WITH_IMMEDIATE: (
        Layout.RETH_IMMEDIATE,
        RETH_LENGTH + IMMEDIATE_LENGTH,
    ),
    Operation.RDMA_READ_REQUEST: (Layout.RETH, RETH_LENGTH),
    Operation.RDMA_READ_RESPONSE_FIRST: (Layout.AETH, AETH_LENGTH),
    Operation.RDMA_READ_RESPONSE_MIDDLE: (Layout.NONE, 0),
    Operation.RDMA_READ_RESPONSE_LAST: (Layout.AETH, AETH_LENGTH),
    Operation.RDMA_READ_RESPONSE_ONLY: (Layout.AETH, AETH_LENGTH),
    Operation.ACKNOWLEDGE: (Layout.AETH, AETH_LENGTH),
    Operation.ATOMIC_ACKNOWLEDGE: (Layout.AETH, AETH_LENGTH + 8),
    Operation.CMP_SWAP: (Layout.OPAQUE, 28),
    Operation.FETCH_ADD: (Layout.OPAQUE, 28),
    Operation.SEND_LAST_WITH_INVALIDATE: (Layout.OPAQUE, 4),
    Operation.SEND_ONLY_WITH_INVALIDATE: (Layout.OPAQUE, 4),
    Operation.FLUSH: (Layout.OPAQUE, 20),
    Operation.ATOMIC_WRITE: (Layout.RETH, RETH_LENGTH),
}
_UD: Final = 0x60


def _layout_table() -> list[tuple[Layout, int]]:
    table = [(Layout.UNKNOWN, 0)] * 256
    for operation, layout in _RC_LAYOUTS.items():
        table[RC | operation] = layout
        if operation <= Operation.RDMA_WRITE_ONLY_WITH_IMMEDIATE:
            table[UC | operation] = layout
    table[_UD | Operation.SEND_ONLY] = (Layout.OPAQUE, 8)
    table[_UD | Operation.SEND_ONLY_WITH_IMMEDIATE] = (Layout.OPAQUE, 12)
    table[CNP] = (Layout.NONE, 0)
    return table


LAYOUTS: Final = _layout_table()
"""For each of the 256 opcodes: the extension headers and their length in bytes."""

FIRST: Final = 1
LAST: Final = 2
IS_SEND: Final = 4
IS_WRITE: Final = 8
HAS_IMMEDIATE: Final = 16


def _request_flags() -> list[int]:
    table = [0] * 256
    for operation in range(Operation.RDMA_WRITE_ONLY_WITH_IMMEDIATE + 1):
        name = Operation(operation).name
        flags = IS_SEND if name.startswith("SEND") else IS_WRITE
        flags |= FIRST if "FIRST" in name or "ONLY" in name else 0
        flags |= LAST if "LAST" in name or "ONLY" in name else 0
        flags |= HAS_IMMEDIATE if name.endswith("IMMEDIATE") else 0
        table[RC | operation] = table[UC | operation] = flags
    return table


REQUEST_FLAGS: Final = _request_flags()
"""For each opcode: FIRST, LAST, IS_SEND, IS_WRITE, HAS_IMMEDIATE; 0 if it is not a data packet."""
