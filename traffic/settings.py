"""What a server process is told: its NICs, the transport's attributes, losses. Plain values."""

from __future__ import annotations

from dataclasses import dataclass, field

from traffic.faults import PacketDrop
from traffic.nvlink import NvlinkSettings
from traffic.qp.attributes import Reordering


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """Attributes of every queue pair; names and units as in libibverbs' ibv_qp_attr.

    ``send_window`` is in packets, None for no limit.
    """

    unreliable: bool
    recovery: str
    path_mtu: int
    timeout: int
    retry_cnt: int
    rnr_retry: int
    min_rnr_timer: int
    ack_interval: int
    send_window: int | None
    reordering: Reordering = field(default_factory=Reordering)


@dataclass(frozen=True, slots=True)
class PortSettings:
    """One rank's NIC port. ``rate`` is in bit/s, emulated; ``gateway_mac`` is the leaf's.

    ``row`` is where the activity board says whether it has a link.
    """

    rank: int
    interface: str
    mac: str
    address: str
    gateway_mac: str
    rate: float
    row: int = 0


@dataclass(frozen=True, slots=True)
class LossSettings:
    """Losses on purpose. ``drops`` are on the requester's side, by the rank that sends."""

    seed: int
    probability: float
    drops: dict[int, tuple[PacketDrop, ...]]


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """One server process. ``lead`` is in emulated seconds (see traffic.nic).

    ``ranks`` holds for each rank of the server the ports of its NIC.
    """

    name: str
    index: int
    network_namespace: str
    ranks: tuple[tuple[PortSettings, ...], ...]
    transport: TransportSettings
    losses: LossSettings
    lead: float
    latencies: tuple[float, ...]
    """One-way latency in emulated seconds by number of switch hops."""
    traced_connections: frozenset[int]
    nvlink: NvlinkSettings = field(default_factory=NvlinkSettings)
