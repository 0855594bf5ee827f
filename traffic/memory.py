"""Registered memory: regions, their keys, and the protection domain that checks every access."""

from __future__ import annotations

import enum
import mmap
from typing import Final, NamedTuple

_ADDRESS_BASE: Final = 0x10_0000_0000
_ADDRESS_ALIGNMENT: Final = 1 << 21  # a 2 MiB page, so regions never share one
_KEY_STEP: Final = 0x100  # an index in the upper 24 bits, as mlx5 keys are built


class AccessFlags(enum.IntFlag):
    """``enum ibv_access_flags`` of libibverbs."""

    LOCAL_WRITE = 1
    REMOTE_WRITE = 2
    REMOTE_READ = 4
    REMOTE_ATOMIC = 8


class Sge(NamedTuple):
    """A scatter/gather element, ``struct ibv_sge``: local memory by address, length and key."""

    addr: int
    length: int
    lkey: int


class MemoryRegion:
    """Memory that a NIC may access, addressed by virtual address and key.

    ``buffer`` is any writable contiguous buffer; it is neither copied nor owned.
    """

    __slots__ = ("access", "length", "lkey", "rkey", "view", "virtual_address")

    def __init__(
        self,
        buffer: bytearray | mmap.mmap | memoryview,
        *,
        virtual_address: int,
        lkey: int,
        rkey: int,
        access: AccessFlags,
    ) -> None:
        self.view = memoryview(buffer).cast("B")
        self.length = self.view.nbytes
        self.virtual_address = virtual_address
        self.lkey = lkey
        self.rkey = rkey
        self.access = access

    def slice(self, addr: int, length: int) -> memoryview | None:
        """The memory at [addr, addr + length), or None unless it lies wholly inside the region."""
        offset = addr - self.virtual_address
        if offset < 0 or length < 0 or offset + length > self.length:
            return None
        return self.view[offset : offset + length]

    def sge(self, offset: int = 0, length: int | None = None) -> Sge:
        """A scatter/gather element for ``length`` bytes (default: the rest) from ``offset``."""
        if length is None:
            length = self.length - offset
        return Sge(self.virtual_address + offset, length, self.lkey)

    def __repr__(self) -> str:
        return (
            f"MemoryRegion(virtual_address={self.virtual_address:#x}, length={self.length}, "
            f"lkey={self.lkey:#x}, rkey={self.rkey:#x})"
        )


class ProtectionDomain:
    """The memory regions that the queue pairs of one domain may use.

    Keys and addresses are handed out in the order of registration, so equal runs get equal ones.
    """

    def __init__(self) -> None:
        self._by_lkey: dict[int, MemoryRegion] = {}
        self._by_rkey: dict[int, MemoryRegion] = {}
        self._next_key = _KEY_STEP
        self._next_address = _ADDRESS_BASE

    def reg_mr(
        self,
        buffer: bytearray | mmap.mmap | memoryview,
        access: AccessFlags = AccessFlags.LOCAL_WRITE,
        *,
        virtual_address: int | None = None,
    ) -> MemoryRegion:
        """Register ``buffer``. Raises ValueError for remote write without local write.

        (libibverbs: REMOTE_WRITE and REMOTE_ATOMIC require LOCAL_WRITE.) ``virtual_address`` is the
        address peers will use; by default a free one is chosen.
        """
        remote_write = AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_ATOMIC
        if access & remote_write and not access & AccessFlags.LOCAL_WRITE:
            raise ValueError(f"access {access!r}: remote write needs LOCAL_WRITE as well")
        key = self._next_key
        self._next_key += _KEY_STEP
        length = memoryview(buffer).nbytes
        if virtual_address is None:
            virtual_address = self._next_address
            pages = -(-max(length, 1) // _ADDRESS_ALIGNMENT)
            self._next_address += pages * _ADDRESS_ALIGNMENT
        # lkey and rkey differ so that using one for the other is caught.
        region = MemoryRegion(
            buffer, virtual_address=virtual_address, lkey=key, rkey=key | 1, access=access
        )
        self._by_lkey[region.lkey] = region
        self._by_rkey[region.rkey] = region
        return region

    def dereg_mr(self, region: MemoryRegion) -> None:
        """Take the region's keys back. Raises KeyError if it is not registered here."""
        del self._by_lkey[region.lkey]
        del self._by_rkey[region.rkey]

    def local(self, sge: Sge, *, write: bool = False) -> memoryview | None:
        """Memory of a scatter/gather element, or None if key, range or right are wrong."""
        region = self._by_lkey.get(sge.lkey)
        if region is None or (write and not region.access & AccessFlags.LOCAL_WRITE):
            return None
        return region.slice(sge.addr, sge.length)

    def remote(self, rkey: int, addr: int, length: int, access: AccessFlags) -> memoryview | None:
        """Memory a peer may reach with ``access``; None if key, range or right are wrong."""
        region = self._by_rkey.get(rkey)
        if region is None or region.access & access != access:
            return None
        return region.slice(addr, length)
