"""A send work request in execution: the PSNs it takes, and opcode and headers of each packet."""

from __future__ import annotations

import struct
from typing import Final

from traffic.opcodes import RC, UC, Operation
from traffic.verbs import QpType, SendFlags, SendWr, WcOpcode, WcStatus, WrOpcode

_RETH: Final = struct.Struct(">QII")
_IMMEDIATE: Final = struct.Struct(">I")
_EMPTY: Final = memoryview(b"")
_MAX_MESSAGE: Final = 1 << 31
"""Bytes in a message at most (IBTA vol. 1, 9.4.1)."""

# First, middle, last and only packet of a message.
_OPERATIONS: Final = {
    WrOpcode.SEND: (
        Operation.SEND_FIRST,
        Operation.SEND_MIDDLE,
        Operation.SEND_LAST,
        Operation.SEND_ONLY,
    ),
    WrOpcode.SEND_WITH_IMM: (
        Operation.SEND_FIRST,
        Operation.SEND_MIDDLE,
        Operation.SEND_LAST_WITH_IMMEDIATE,
        Operation.SEND_ONLY_WITH_IMMEDIATE,
    ),
    WrOpcode.RDMA_WRITE: (
        Operation.RDMA_WRITE_FIRST,
        Operation.RDMA_WRITE_MIDDLE,
        Operation.RDMA_WRITE_LAST,
        Operation.RDMA_WRITE_ONLY,
    ),
    WrOpcode.RDMA_WRITE_WITH_IMM: (
        Operation.RDMA_WRITE_FIRST,
        Operation.RDMA_WRITE_MIDDLE,
        Operation.RDMA_WRITE_LAST_WITH_IMMEDIATE,
        Operation.RDMA_WRITE_ONLY_WITH_IMMEDIATE,
    ),
}


class SendWqe:
    """One posted work request.

    It takes the extended PSNs ``first`` to ``last``, one per packet of ``path_mtu`` bytes (at least
    one, so an empty message is a packet too). ``view`` is its memory; None says that the protection
    domain refused the scatter/gather element. ``failure`` is the status with which the request will
    fail when its turn comes, if it can never be sent.
    """

    __slots__ = (
        "_first_extension",
        "_immediate",
        "_operations",
        "_transport",
        "failure",
        "first",
        "last",
        "middle",
        "solicited",
        "view",
        "wr",
    )

    def __init__(
        self, wr: SendWr, *, qp_type: QpType, first: int, path_mtu: int, view: memoryview | None
    ) -> None:
        length = wr.sge.length if wr.sge is not None else 0
        self.wr = wr
        self.first = first
        self.last = first + max(-(-length // path_mtu), 1) - 1
        self.failure: WcStatus | None = None
        if wr.sge is not None and view is None:
            self.failure = WcStatus.LOC_PROT_ERR
        elif length > _MAX_MESSAGE:
            self.failure = WcStatus.LOC_LEN_ERR
        self.view = _EMPTY if view is None else view
        self.solicited = bool(wr.send_flags & SendFlags.SOLICITED)
        self._transport = RC if qp_type is QpType.RC else UC
        self._operations = _OPERATIONS[wr.opcode]
        self.middle = self._transport | self._operations[1]
        self._first_extension = b""
        if wr.opcode in (WrOpcode.RDMA_WRITE, WrOpcode.RDMA_WRITE_WITH_IMM):
            self._first_extension = _RETH.pack(wr.remote_addr, wr.rkey, length)
        self._immediate = b"" if wr.imm_data is None else _IMMEDIATE.pack(wr.imm_data)

    @property
    def signaled(self) -> bool:
        """Whether success is to be reported, too."""
        return bool(self.wr.send_flags & SendFlags.SIGNALED)

    @property
    def wc_opcode(self) -> WcOpcode:
        """The opcode of its completion."""
        if self.wr.opcode in (WrOpcode.SEND, WrOpcode.SEND_WITH_IMM):
            return WcOpcode.SEND
        return WcOpcode.RDMA_WRITE

    def edge_packet(self, psn: int) -> tuple[int, bytes]:
        """Opcode and extension headers of the first, last or only packet."""
        first, _, last, only = self._operations
        if psn != self.last:
            return self._transport | first, self._first_extension
        if psn != self.first:
            return self._transport | last, self._immediate
        return self._transport | only, self._first_extension + self._immediate
