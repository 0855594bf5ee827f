"""Ranks and NICs on a perfect wire, in simulated time: no root, no socket, no clock."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from traffic.faults import LossInjector
from traffic.nic import Nic
from traffic.nvlink import NvlinkSettings, NvSwitch
from traffic.plan import Plan
from traffic.rank import Rank
from traffic.settings import PortSettings, TransportSettings

RATE = 400e9
LATENCY = 2e-6

TRANSPORT = TransportSettings(
    unreliable=False,
    recovery="go-back-n",
    path_mtu=4096,
    timeout=14,
    retry_cnt=7,
    rnr_retry=7,
    min_rnr_timer=12,
    ack_interval=64,
    send_window=None,
)


def port_settings(rank: int, port: int = 0) -> PortSettings:
    return PortSettings(
        rank=rank,
        interface=f"rank{rank}-leaf{port + 1}",
        mac=f"02:00:0a:01:00:{rank + 1:02x}",
        address=f"10.1.0.{rank + 1}",
        gateway_mac=f"02:01:00:00:00:{port + 1:02x}",
        rate=RATE,
        row=2 * rank + port,
    )


class World:
    """All ranks of a plan; what leaves a NIC by one of its ``ports`` arrives at the same port.

    ``fate`` sees every frame (sender's rank, its port, bytes) and gives the seconds that it takes
    beyond the latency of the wire, or None to lose it; a port in ``dead`` neither sends nor gets.
    """

    def __init__(
        self,
        plan: Plan,
        transport: TransportSettings = TRANSPORT,
        *,
        losses: Callable[[int], LossInjector | None] = lambda rank: None,
        fate: Callable[[int, int, bytes], float | None] = lambda rank, port, frame: 0.0,
        ports: int = 1,
    ) -> None:
        self.now = 0.0
        self.fate = fate
        self.dead: set[tuple[int, int]] = set()
        self.ranks: list[Rank] = []
        self.nics: list[list[Nic]] = []
        self.nvlinks = {server: NvSwitch(NvlinkSettings()) for server in plan.servers}
        for number in range(plan.world_size):
            nics = [
                Nic(rate=RATE, latency=lambda hops: LATENCY, lead=0.0, losses=losses(number))
                for _ in range(ports)
            ]
            settings = [port_settings(number, port) for port in range(ports)]
            self.nics.append(nics)
            nvlink = self.nvlinks[plan.servers[number]]
            self.ranks.append(Rank(plan, settings, transport, nics, frozenset({0}), nvlink))
        self.by_address = {
            bytes(int(part) for part in rank.address.split(".")): rank.rank for rank in self.ranks
        }
        table = {(e.connection, e.rank): e for rank in self.ranks for e in rank.endpoints()}
        for rank in self.ranks:
            own = rank.rank
            rank.connect({c: e for (c, r), e in table.items() if r != own and (c, own) in table})
        self.sent: list[tuple[float, int, bytes]] = []
        self.sent_from: list[tuple[int, int]] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Do something at a time."""
        self._count += 1
        heapq.heappush(self._events, (time, self._count, action))

    def set_link(self, rank: int, port: int, *, up: bool, noticed: bool = True) -> None:
        """Cut or mend the link of a port; its NIC may notice."""
        (self.dead.discard if up else self.dead.add)((rank, port))
        if noticed:
            self.ranks[rank].nic.set_down(port, not up)

    def run(self, limit: float = 60.0) -> None:
        """Until nothing will ever happen again. Raises AssertionError beyond ``limit``."""
        for rank in self.ranks:
            rank.executor.start(0.0)
        while True:
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
            self._settle()
            event = min(rank.next_event() for rank in self.ranks)
            event = min(event, *(nvlink.next_event() for nvlink in self.nvlinks.values()))
            if self._events:
                event = min(event, self._events[0][0])
            if event == math.inf:
                return
            assert event < limit, f"still busy at {event} s"
            self.now = max(self.now, event)

    def _settle(self) -> None:
        for nvlink in self.nvlinks.values():
            nvlink.advance(self.now)
        moving = True
        while moving:
            moving = False
            for rank, nics in zip(self.ranks, self.nics, strict=True):
                for nic in nics:
                    nic.advance(self.now)
                rank.step(self.now)
                for port, nic in enumerate(nics):
                    while (frame := nic.next_frame(self.now)) is not None:
                        moving = True
                        data = bytearray(frame)
                        data[22] -= 1  # one switch on the way
                        self._carry(rank.rank, port, bytes(data))

    def _carry(self, rank: int, port: int, frame: bytes) -> None:
        self.sent.append((self.now, rank, frame))
        self.sent_from.append((rank, port))
        target = self.by_address[frame[30:34]]
        extra = self.fate(rank, port, frame)
        if extra is None or not self.dead.isdisjoint({(rank, port), (target, port)}):
            return
        nic = self.nics[target][port]
        if extra:
            self.at(self.now + extra, lambda: nic.arrive(frame, self.now))
        else:
            nic.arrive(frame, self.now)

    def wrong(self) -> list[int]:
        return [rank.verify() for rank in self.ranks]

    def counters(self, connection: int, rank: int) -> dict[str, Any]:
        for report in self.ranks[rank].connection_reports():
            if report.connection == connection:
                return report.counters
        raise KeyError(connection)

    def finish(self) -> float:
        """When the last message was acknowledged."""
        return max(p.finish for rank in self.ranks for p in rank.flows.values())


def transport(**changes: Any) -> TransportSettings:
    """The usual transport with some attributes changed."""
    return replace(TRANSPORT, **changes)
