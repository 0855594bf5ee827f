"""Load a compiled BPF object through libbpf: programs by descriptor, maps by shared memory.

Only calls of libbpf 1.x with opaque handles are used, so no structure layout is assumed. Nothing is
pinned: when the process ends, the kernel frees programs and maps with the last interface.
"""

from __future__ import annotations

import ctypes
import enum
import errno
import mmap
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

_ARCHITECTURES = {"x86_64": "x86", "aarch64": "arm64"}


class BpfError(RuntimeError):
    """Compiling or loading a BPF program failed; the message carries the tool's own words."""


def compile_bpf(source: Path, output: Path) -> None:
    """Compile a BPF C file with clang. Raises BpfError."""
    clang = shutil.which("clang")
    if clang is None:
        raise BpfError("clang is not installed; apt-get install clang libbpf-dev")
    machine = os.uname().machine
    command = [
        clang, "-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3",
        f"-D__TARGET_ARCH_{_ARCHITECTURES.get(machine, machine)}",
        f"-I/usr/include/{machine}-linux-gnu",
        "-c", str(source), "-o", str(output),
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise BpfError(f"{source.name} does not compile: {result.stderr.strip()}")


def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libbpf.so.1", use_errno=True)
    except OSError as error:
        raise BpfError(f"libbpf is not installed; apt-get install libbpf1 ({error})") from error
    library.bpf_object__open_file.restype = ctypes.c_void_p
    library.bpf_object__open_file.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    library.bpf_object__load.argtypes = [ctypes.c_void_p]
    library.bpf_object__close.argtypes = [ctypes.c_void_p]
    library.bpf_object__close.restype = None
    library.bpf_object__find_map_fd_by_name.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    library.bpf_object__find_program_by_name.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    library.bpf_object__find_program_by_name.restype = ctypes.c_void_p
    library.bpf_program__fd.argtypes = [ctypes.c_void_p]
    library.bpf_object__find_map_by_name.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    library.bpf_object__find_map_by_name.restype = ctypes.c_void_p
    library.bpf_map__reuse_fd.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.bpf_xdp_attach.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p]
    library.bpf_xdp_query_id.argtypes = [
        ctypes.c_int,
        ctypes.c_int,
        ctypes.POINTER(ctypes.c_uint32),
    ]
    return library


class BpfObject:
    """One loaded object file.

    ``shared`` are descriptors of existing maps, by name, that the object uses in place of its own.
    Raises BpfError.
    """

    def __init__(self, path: Path, shared: Mapping[str, int] | None = None) -> None:
        self._library = _library()
        self._handle: int | None = self._library.bpf_object__open_file(str(path).encode(), None)
        if not self._handle:
            raise BpfError(f"{path}: {os.strerror(ctypes.get_errno())}")
        for name, descriptor in (shared or {}).items():
            found = self._library.bpf_object__find_map_by_name(self._handle, name.encode())
            if not found or self._library.bpf_map__reuse_fd(found, descriptor) != 0:
                raise BpfError(f"{path.name}: map {name} cannot be shared")
        result = self._library.bpf_object__load(self._handle)
        if result != 0:
            hint = " (root is needed)" if -result == errno.EPERM else ""
            raise BpfError(f"the kernel refuses {path.name}: {os.strerror(-result)}{hint}")

    def program(self, name: str) -> int:
        """Descriptor of a program; it stays owned by this object. Raises KeyError."""
        program = self._library.bpf_object__find_program_by_name(self._handle, name.encode())
        if not program:
            raise KeyError(name)
        return int(self._library.bpf_program__fd(program))

    def map(self, name: str) -> int:
        """Descriptor of a map; it stays owned by this object. Raises KeyError."""
        descriptor = self._library.bpf_object__find_map_fd_by_name(self._handle, name.encode())
        if descriptor < 0:
            raise KeyError(name)
        return int(descriptor)

    def map_memory(self, name: str, size: int) -> mmap.mmap:
        """The values of an mmapable array map, shared with the programs."""
        whole = (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE
        return mmap.mmap(self.map(name), whole)

    def close(self) -> None:
        """Release the object; attached programs live on with their interface. Idempotent."""
        if self._handle:
            self._library.bpf_object__close(self._handle)
            self._handle = None


class XdpMode(enum.IntEnum):
    """Where the kernel runs an XDP program (linux/if_link.h, XDP_FLAGS_*)."""

    GENERIC = 1 << 1
    """On a finished socket buffer, in any driver."""
    NATIVE = 1 << 2
    """In the driver's own receive path."""


def attach_xdp(ifindex: int, program: int, mode: XdpMode) -> None:
    """Run a program on what an interface of this network namespace receives. Raises BpfError."""
    result = _library().bpf_xdp_attach(ifindex, program, int(mode), None)
    if result != 0:
        raise BpfError(f"XDP on interface {ifindex}: {os.strerror(-result)}")


def attached_xdp(ifindex: int, mode: XdpMode) -> int:
    """The id of the XDP program that an interface runs in this mode; 0 if none. Raises BpfError."""
    found = ctypes.c_uint32()
    result = _library().bpf_xdp_query_id(ifindex, int(mode), ctypes.byref(found))
    if result != 0:
        raise BpfError(f"XDP of interface {ifindex}: {os.strerror(-result)}")
    return found.value


def program_id(program: int) -> int:
    """The kernel's id of a loaded program, given its descriptor."""
    for line in Path(f"/proc/self/fdinfo/{program}").read_text().splitlines():
        if line.startswith("prog_id:"):
            return int(line.split()[1])
    raise BpfError(f"descriptor {program} is not a BPF program")


class RingBuffer:
    """Reads a BPF ring buffer from its mapped pages (linux/bpf.h, BPF_MAP_TYPE_RINGBUF).

    ``size`` is the map's max_entries in bytes. Records come out in the order they were reserved.
    """

    _BUSY = 1 << 31
    _DISCARDED = 1 << 30
    _HEADER = 8

    def __init__(self, descriptor: int, size: int) -> None:
        page = mmap.PAGESIZE
        self._mask = size - 1
        self._consumer_page = mmap.mmap(descriptor, page)
        self._producer_pages = mmap.mmap(
            descriptor, page + 2 * size, prot=mmap.PROT_READ, offset=page
        )
        self._consumer = memoryview(self._consumer_page).cast("Q")
        self._producer = memoryview(self._producer_pages)[:8].cast("Q")
        self._data = memoryview(self._producer_pages)[page:]

    def read(self, most: int = 100_000) -> list[bytes]:
        """Take out up to ``most`` finished records."""
        records: list[bytes] = []
        position = self._consumer[0]
        end = self._producer[0]
        while position < end and len(records) < most:
            at = position & self._mask
            length = int.from_bytes(self._data[at : at + 4], "little")
            if length & self._BUSY:
                break
            size = length & ~(self._BUSY | self._DISCARDED)
            if not length & self._DISCARDED:
                records.append(bytes(self._data[at + self._HEADER : at + self._HEADER + size]))
            position += (size + self._HEADER + 7) // 8 * 8
            self._consumer[0] = position
        return records
