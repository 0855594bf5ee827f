"""Ranks and NICs on a perfect wire, in simulated time: no root, no socket, no clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from traffic.faults import LossInjector
from traffic.nic import Nic
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


def port_settings(rank: int) -> PortSettings:
    return PortSettings(
        rank=rank,
        interface=f"rank{rank}-leaf1",
        mac=f"02:00:0a:01:00:{rank + 1:02x}",
        address=f"10.1.0.{rank + 1}",
        gateway_mac="02:01:00:00:00:01",
        rate=RATE,
    )


class World:
    """All ranks of a plan. ``lose`` may drop a frame on the wire by looking at its bytes."""

    def __init__(
        self,
        plan: Plan,
        transport: TransportSettings = TRANSPORT,
        *,
        losses: Callable[[int], LossInjector | None] = lambda rank: None,
    ) -> None:
        self.now = 0.0
        self.ranks = []
        for number in range(plan.world_size):
            nic = Nic(rate=RATE, latency=lambda hops: LATENCY, lead=0.0, losses=losses(number))
            self.ranks.append(Rank(plan, port_settings(number), transport, nic, frozenset({0})))
        self.by_address = {
            bytes(int(part) for part in rank.port.address.split(".")): rank for rank in self.ranks
        }
        table = {(e.connection, e.rank): e for rank in self.ranks for e in rank.endpoints()}
        for rank in self.ranks:
            own = rank.port.rank
            rank.connect({c: e for (c, r), e in table.items() if r != own and (c, own) in table})
        self.sent: list[tuple[float, int, bytes]] = []

    def run(self, limit: float = 60.0) -> None:
        """Until nothing will ever happen again. Raises AssertionError beyond ``limit``."""
        for rank in self.ranks:
            rank.executor.start(0.0)
        while True:
            self._settle()
            event = min(rank.next_event() for rank in self.ranks)
            if event == math.inf:
                return
            assert event < limit, f"still busy at {event} s"
            self.now = max(self.now, event)

    def _settle(self) -> None:
        moving = True
        while moving:
            moving = False
            for rank in self.ranks:
                rank.nic.advance(self.now)
                rank.step(self.now)
                while (frame := rank.nic.next_frame(self.now)) is not None:
                    moving = True
                    data = bytearray(frame)
                    data[22] -= 1  # one switch on the way
                    self.sent.append((self.now, rank.port.rank, bytes(data)))
                    self.by_address[bytes(data[30:34])].nic.arrive(bytes(data), self.now)

    def wrong(self) -> list[int]:
        return [rank.verify() for rank in self.ranks]

    def counters(self, connection: int, rank: int) -> dict[str, Any]:
        for report in self.ranks[rank].connection_reports():
            if report.connection == connection:
                return report.counters
        raise KeyError(connection)
