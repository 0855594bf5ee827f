"""User space side of the leaf switches' hash engines: configuration, attachment, read-back.

The program is ``label.bpf.c``; what a label means is in ``controllers.labels``.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controllers.labels import SLOTS, LabelMode, LabelSettings
from testbed.asic.bpf import (
    BpfError,
    BpfObject,
    XdpMode,
    attach_xdp,
    attached_xdp,
    compile_bpf,
    program_id,
)
from testbed.asic.mmu import MAX_PORTS, Mmu
from testbed.topology import Interface, Topology
from testbed.topology.base import IFINDEX_BASE

XDP_MODE = XdpMode.GENERIC
"""Costs the same here as in veth's own receive path, which would drop frames beyond the 256 that
its ring holds, and switch receive offload on."""

_MODES = {
    LabelMode.HASH: 0,
    LabelMode.FLOWLET: 1,
    LabelMode.SPRAY: 2,
    LabelMode.ADAPTIVE: 3,
}
"""``enum mode`` of label.bpf.c."""

_MEMBER = [("port", "<u4"), ("delay", "<u4"), ("first_slot", "<u2"), ("slots", "<u2")]

ENGINE_DTYPE = np.dtype(
    [
        ("mode", "<u4"),
        ("seed", "<u4"),
        ("upper_seed", "<u4"),
        ("use_destination_qp", "<u4"),
        ("load_aware", "<u4"),
        ("members", "<u4"),
        ("upper_slots", "<u4"),
        ("reserved", "<u4"),
        ("gap", "<u8"),
        ("local", ">u4"),
        ("local_mask", ">u4"),
        ("member", _MEMBER, (SLOTS,)),
        ("slot", "u1", (SLOTS,)),
    ]
)
"""Layout of ``struct engine`` in label.bpf.c."""

_SETTINGS_DTYPE = np.dtype([("skipped", "<u8"), ("first_ifindex", "<u4"), ("reserved", "<u4")])
_STATE_DTYPE = np.dtype([("packets", "<u4", (2,)), ("last", "<u4"), ("failed", "<u4")])
_MAX_ENGINES = 512


class LabelEngine:
    """The loaded program and its maps, for one fabric.

    Usage: ``configure()``, ``attach()``, then ``configure()`` again whenever the member ports
    change. ``directory`` receives the compiled object; ``first_ifindex`` is the interface index of
    the topology's first interface. Raises BpfError.
    """

    def __init__(
        self,
        topology: Topology,
        mmu: Mmu,
        directory: Path,
        *,
        first_ifindex: int = IFINDEX_BASE,
    ) -> None:
        self._topology = topology
        self._rows = {name: row for row, name in enumerate(topology.interfaces)}
        self._numbers: dict[str, int] = {}
        self._spare: dict[str, int] = {}
        self._upper_slots = _most_upper_ports(topology)
        self._attached: list[Interface] = []
        built = directory / "label.bpf.o"
        compile_bpf(Path(__file__).with_name("label.bpf.c"), built)
        self._object = BpfObject(built, {"ports": mmu.ports_map})
        self.program = self._object.program("label")
        self._engines = self._map("engines", ENGINE_DTYPE, 2 * _MAX_ENGINES)
        self._engine_of_port = self._map("engine_of_port", np.dtype("<u8"), MAX_PORTS)
        self._states = self._map("states", _STATE_DTYPE, _MAX_ENGINES)
        self._settings = self._map("settings", _SETTINGS_DTYPE, 1)
        self._settings["first_ifindex"] = first_ifindex

    def _map(self, name: str, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
        memory = self._object.map_memory(name, count * dtype.itemsize)
        return np.frombuffer(memory, dtype=dtype, count=count)

    def configure(self, settings: Mapping[str, LabelSettings], dilation: float) -> None:
        """Set or change the engines of switches; each port changes over from one packet to the
        next. Switches that ``settings`` does not name keep theirs. Raises ValueError.
        """
        for switch, wanted in settings.items():
            number = self._number(switch)
            row = 2 * number + self._spare[switch]
            self._write(self._engines[row], switch, wanted, dilation)
            for interface in self._nic_facing(switch):
                self._engine_of_port[self._rows[interface.name]] = row + 1
            self._spare[switch] ^= 1

    def _number(self, switch: str) -> int:
        if switch not in self._numbers:
            if self._attached:
                raise ValueError(f"{switch}: has no hash engine; only leaves built with one do")
            if len(self._numbers) == _MAX_ENGINES:
                raise ValueError(f"more than {_MAX_ENGINES} switches with a hash engine")
            self._numbers[switch] = len(self._numbers)
            self._spare[switch] = 0
        return self._numbers[switch]

    def _write(
        self, engine: np.void, switch: str, settings: LabelSettings, dilation: float
    ) -> None:
        members = settings.members
        total = sum(len(member.slots) for member in members)
        if total > SLOTS or not all(member.slots for member in members):
            raise ValueError(f"{switch}: members need 1 to {SLOTS} slots together; got {total}")
        engine["mode"] = _MODES[settings.mode]
        engine["seed"] = settings.seed
        engine["upper_seed"] = settings.upper_seed
        engine["use_destination_qp"] = settings.use_destination_qp
        engine["load_aware"] = settings.load_aware
        engine["gap"] = round(settings.flowlet_gap * dilation * 1e9)
        engine["local"], engine["local_mask"] = self._local_prefix(switch)
        engine["upper_slots"] = self._upper_slots
        uplinks = [self._topology.interfaces[member.interface] for member in members]
        fastest = max((uplink.rate for uplink in uplinks), default=0.0)
        slots: list[int] = []
        for place, (uplink, member) in enumerate(zip(uplinks, members, strict=True)):
            # where a destination is out of this member's reach, its slots are dealt to the others:
            # so many are dealt evenly
            own = member.slots[: max(1, len(members) - 1)]
            delay = max(1, round(1000 * fastest / uplink.rate))
            engine["member"][place] = (self._rows[uplink.name], delay, len(slots), len(own))
            slots += own
        engine["slot"][: len(slots)] = slots
        engine["members"] = len(members)

    def _local_prefix(self, switch: str) -> tuple[int, int]:
        network = ipaddress.IPv4Network(self._topology.prefixes[switch])
        return int(network.network_address), int(network.netmask)

    def _nic_facing(self, switch: str) -> list[Interface]:
        return [
            interface
            for interface in self._topology.interfaces_of(switch)
            if self._topology.interfaces[interface.peer].address
        ]

    def attach(self) -> None:
        """Attach the program to every port of the configured switches that faces a NIC.

        Must run in the switches' network namespace. Raises BpfError.
        """
        for switch in self._numbers:
            for interface in self._nic_facing(switch):
                attach_xdp(interface.ifindex, self.program, XDP_MODE)
                self._attached.append(interface)

    def labels(self, interface: str) -> bool:
        """Whether what arrives at an interface gets a label there."""
        return any(attached.name == interface for attached in self._attached)

    def skip(self, seconds: float) -> None:
        """Let flows age by wall seconds that the emulated clock has jumped over."""
        self._settings["skipped"] += round(seconds * 1e9)

    def problems(self) -> list[str]:
        """Ports that do not run the program, packets that it could not label. Empty when none."""
        own = program_id(self.program)
        found = []
        for interface in self._attached:
            try:
                runs = attached_xdp(interface.ifindex, XDP_MODE)
            except BpfError as error:
                found.append(f"{interface.name}: {error}")
                continue
            if runs != own:
                found.append(f"{interface.name}: XDP runs program {runs}; planned {own} (label)")
        found += [
            f"{switch}: {failed} packets went without a label"
            for switch, number in self._numbers.items()
            if (failed := int(self._states[number]["failed"]))
        ]
        return found

    def close(self) -> None:
        """Release the program and its maps. Idempotent."""
        self._object.close()


def _most_upper_ports(topology: Topology) -> int:
    """The most ports that any tier-2 switch has to the tier above; at least 1."""
    tier = {node.name: node.tier for node in topology.nodes.values()}
    ports = Counter(
        interface.node
        for interface in topology.interfaces.values()
        if tier[interface.node] == 2 and tier[interface.peer_node] > 2
    )
    return max(1, min(SLOTS, max(ports.values(), default=1)))
