"""Losses that an experiment asks for: single packets by number, and random loss from a seed.

A lost packet has left the queue pair and takes its time on the wire, but never arrives. Only data
packets (SEND and RDMA WRITE requests) are lost.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from traffic.psn import PSN_MASK


@dataclass(frozen=True, slots=True)
class PacketDrop:
    """Lose the packet with this PSN to queue pair ``qp_num``, ``times`` times."""

    qp_num: int
    psn: int
    times: int


class LossInjector:
    """Decides for one NIC which of its data packets are lost.

    ``probability`` is per packet; equal seeds give equal losses for equal sequences of packets.
    """

    def __init__(
        self, *, seed: str, probability: float = 0.0, drops: Iterable[PacketDrop] = ()
    ) -> None:
        self._random = random.Random(seed).random
        self._probability = probability
        self._pending = {(d.qp_num, d.psn & PSN_MASK): d.times for d in drops}
        self.active = bool(probability or self._pending)
        """False when no packet will ever be lost."""

    def loses(self, qp_num: int, psn: int) -> bool:
        """Whether this transmission is lost."""
        left = self._pending.get((qp_num, psn), 0)
        if left:
            self._pending[qp_num, psn] = left - 1
            return True
        return self._probability > 0 and self._random() < self._probability
