"""Whether what is in memory after an arranged trace is what must be there, bit for bit.

Memory is used again, so the results that can be looked at are those that nothing has overwritten:
the last in every region, and the largest message from every peer.
"""

from __future__ import annotations

from typing import Any

from traffic.collectives.communicators import Verifier
from traffic.lowering.arrangement import Arrangement
from traffic.payload import count_wrong, elements_of, initial_slice
from traffic.plan import Plan
from traffic.replay.trace import NodeKind


class ArrangementVerifier:
    """Compares with numpy's results in the schedules' own order of additions. For one plan only."""

    def __init__(self, arrangement: Arrangement) -> None:
        self._arrangement = arrangement
        self._verifiers: dict[int, Verifier] = {}

    @property
    def verified_share(self) -> float:
        """Results of collectives (one per call and rank) that are looked at, as a share of all."""
        total = sum(len(placed.call.nodes) for placed in self._arrangement.calls)
        return len(self._arrangement.intact) / total if total else 1.0

    def wrong_elements(self, plan: Plan, rank: int, memory: Any) -> int:
        """Wrong elements of ``plan.dtype`` in a rank's memory, any buffer of its bytes."""
        wrong = self._wrong_in_messages(plan, rank, memory)
        for placed in self._arrangement.calls:
            number = placed.call.number
            if (number, rank) not in self._arrangement.intact:
                continue
            if number not in self._verifiers:
                self._verifiers[number] = Verifier(placed.communicator)
            wrong += self._verifiers[number].wrong_elements(plan, rank, memory)
        return wrong

    def _wrong_in_messages(self, plan: Plan, rank: int, memory: Any) -> int:
        arranged, itemsize = self._arrangement, plan.dtype.itemsize
        largest: dict[tuple[int, int], int] = {}
        for sender, node in arranged.trace.nodes():
            if node.kind is NodeKind.SEND and arranged.ranks[node.peer] == rank:
                pair = sender, node.peer
                largest[pair] = max(largest.get(pair, 0), node.size // itemsize * itemsize)
        wrong = 0
        for (sender, receiver), size in largest.items():
            expected = initial_slice(plan, arranged.ranks[sender], 0, size)
            landing = arranged.landings[sender, receiver]
            wrong += count_wrong(elements_of(plan, memory, landing, size), expected)
        return wrong
