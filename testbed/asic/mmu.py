"""User space side of the switch's memory management unit: configuration, counters, drop records.

The program is ``mmu.bpf.c``. Depths and limits are bytes of Ethernet frame, without preamble, FCS
and inter-frame gap.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from testbed.asic.bpf import BpfObject, RingBuffer, compile_bpf
from testbed.topology import Interface, NodeKind, Topology
from testbed.topology.base import IFINDEX_BASE

UNLIMITED = 2**64 - 1
"""Configuration value for no limit or no marking."""

CLASSES = ("data", "control", "other")
"""Packet classes: RoCE requests; RoCE responses and CNPs; everything else."""

REASONS = ("port limit", "link down")
"""Drop reasons, in the order of the program's enum."""

LINK_DOWN = REASONS.index("link down")

_COUNT = [("packets", "<u8"), ("bytes", "<u8")]

PORT_DTYPE = np.dtype(
    [
        ("limit", "<u8"),
        ("ecn_threshold", "<u8"),
        ("peer", "<u4"),
        ("is_nic", "<u4"),
        ("down", "<u4"),
        ("unused", "<u4"),
        ("max_depth", "<u8"),
        ("marked", "<u8"),
        ("lost_records", "<u8"),
        ("enqueued", _COUNT, (3,)),
        ("dequeued", _COUNT, (3,)),
        ("dropped", _COUNT, (len(REASONS), 3)),
        ("enqueued_bytes", "<u8"),
        ("dequeued_bytes", "<u8"),
    ]
)
"""Layout of ``struct port`` in ports.bpf.h."""

MAX_PORTS = 8192
"""Interfaces of one fabric: the size of the maps in ports.bpf.h."""

_RING_BYTES = 8 << 20
_DROP = struct.Struct("<QII4s4sIIIIII")


@dataclass(frozen=True, slots=True)
class Drop:
    """One dropped frame. ``time`` is CLOCK_MONOTONIC in ns; ``opcode`` is None when not RoCE."""

    time: int
    interface: str
    reason: str
    source: str
    destination: str
    source_port: int
    opcode: int | None
    destination_qp: int
    psn: int
    bytes: int
    depth: int


@dataclass(frozen=True, slots=True)
class BufferPolicy:
    """Static per-port admission of every switch port: limit and marking threshold in bytes."""

    limit: int = UNLIMITED
    ecn_threshold: int = UNLIMITED


class Mmu:
    """The loaded program and its maps, for one fabric.

    ``directory`` receives the compiled object. Raises BpfError.
    """

    def __init__(self, topology: Topology, policy: BufferPolicy, directory: Path) -> None:
        if len(topology.interfaces) > MAX_PORTS:
            raise ValueError(f"{len(topology.interfaces)} interfaces; at most {MAX_PORTS}")
        source = Path(__file__).with_name("mmu.bpf.c")
        built = directory / "mmu.bpf.o"
        compile_bpf(source, built)
        self._object = BpfObject(built)
        self._interfaces: list[Interface] = list(topology.interfaces.values())
        memory = self._object.map_memory("ports", MAX_PORTS * PORT_DTYPE.itemsize)
        every = np.frombuffer(memory, dtype=PORT_DTYPE, count=MAX_PORTS)
        self.ports: NDArray[np.void] = every[: len(self._interfaces)]
        """One row per interface, in the topology's order; live."""
        self._ring = RingBuffer(self._object.map("drops"), _RING_BYTES)
        self._names = {i.ifindex: i.name for i in self._interfaces}
        self.enqueue_program = self._object.program("enqueue")
        self.dequeue_program = self._object.program("dequeue")
        self.ports_map = self._object.map("ports")
        """Descriptor, for programs that read the same counters."""
        self._configure(topology, policy)

    def _configure(self, topology: Topology, policy: BufferPolicy) -> None:
        for row, interface in enumerate(self._interfaces):
            if interface.ifindex - IFINDEX_BASE != row:
                raise ValueError(f"{interface.name}: interface index is not contiguous")
            on_switch = topology.nodes[interface.node].kind is NodeKind.SWITCH
            port = self.ports[row]
            port["limit"] = policy.limit if on_switch else UNLIMITED
            port["ecn_threshold"] = policy.ecn_threshold if on_switch else UNLIMITED
            port["peer"] = topology.interfaces[interface.peer].ifindex - IFINDEX_BASE
            port["is_nic"] = 0 if on_switch else 1

    def depths(self) -> NDArray[np.int64]:
        """Bytes in every queue now, in the topology's order of interfaces."""
        dequeued = self.ports["dequeued_bytes"].astype(np.int64)
        return self.ports["enqueued_bytes"].astype(np.int64) - dequeued

    def row(self, interface: str) -> np.void:
        """Counters of one interface, live. Raises KeyError."""
        for index, candidate in enumerate(self._interfaces):
            if candidate.name == interface:
                return self.ports[index]  # type: ignore[no-any-return]
        raise KeyError(interface)

    def set_link(self, interface: str, *, up: bool) -> None:
        """Let an interface take frames, or drop each one that comes. Raises KeyError."""
        self.row(interface)["down"] = 0 if up else 1

    def write_off(self, interface: str) -> int:
        """Count the frames that wait at an interface without link as lost; returns how many.

        They must have been thrown away. They have no drop records: nobody looks at them again.
        """
        row = self.row(interface)
        lost = {}
        for unit in ("packets", "bytes"):
            waiting = row["enqueued"][unit] - row["dequeued"][unit]
            row["enqueued"][unit] -= waiting
            row["dropped"][unit][LINK_DOWN] += waiting
            lost[unit] = int(waiting.sum())
        row["enqueued_bytes"] -= np.uint64(lost["bytes"])
        return lost["packets"]

    def reset(self) -> None:
        """Zero all counters; only while nothing is in flight."""
        for name in PORT_DTYPE.names or ():
            if name not in ("limit", "ecn_threshold", "peer", "is_nic", "down"):
                self.ports[name] = 0
        self._ring.read()

    def take_drops(self) -> list[Drop]:
        """Drop records since the last call."""
        return list(self._decode(self._ring.read()))

    def _decode(self, records: Iterable[bytes]) -> Iterable[Drop]:
        for record in records:
            (time, ifindex, reason, source, destination, port, opcode, qp, psn, size, depth) = (
                _DROP.unpack_from(record)
            )
            yield Drop(
                time=time,
                interface=self._names.get(ifindex, f"ifindex {ifindex}"),
                reason=REASONS[reason],
                source=socket.inet_ntoa(source),
                destination=socket.inet_ntoa(destination),
                source_port=port,
                opcode=None if opcode == 0xFFFFFFFF else opcode,
                destination_qp=qp,
                psn=psn,
                bytes=size,
                depth=depth,
            )

    def close(self) -> None:
        """Release the programs and maps. Idempotent."""
        self._object.close()
