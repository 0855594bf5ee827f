"""The ports of one NIC, which share its queue pairs: which port each sends from, and when it moves.

A dual-ToR NIC is one device with one address, MAC and context of queue pairs, and two ports (HPN,
SIGCOMM 2024), so frames for a queue pair may arrive at either. A queue pair sends from one:

- A port that loses its link hands its queue pairs to another at once, with all that they have not
  sent. When the link comes back nothing moves: the paths in use work, and every move reorders.
  Only what sits at a dead port for want of another moves to the first one that lives.
- An ACK timeout moves the queue pair as well, for the loss may be anywhere on the path (automatic
  path migration, IBTA vol. 1, 17.2.8).
- A request with MigReq set tells the responder that the requester has moved; answers follow it to
  the port at which it arrived, the one that is known to work. A queue pair that is at the only
  port left asks for that too: in a fabric of two planes answers over the other one are lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from traffic.nic import Nic
from traffic.qp import QueuePair


class NicPorts:
    """All ports of one NIC. ``next_hops`` are the MAC addresses that each port sends to."""

    def __init__(self, nics: Sequence[Nic], next_hops: Sequence[str]) -> None:
        self.nics = tuple(nics)
        self._next_hops = tuple(next_hops)
        self._down = [False] * len(self.nics)
        self._queue_pairs: dict[int, QueuePair] = {}
        if len(self.nics) > 1:
            for port, nic in enumerate(self.nics):
                nic.join(self.nics, port, self._queue_pairs, self)

    def add_queue_pair(self, qp: QueuePair) -> None:
        """Serve this queue pair, from its own port."""
        self._queue_pairs[qp.qp_num] = qp
        self.nics[qp.port].add_queue_pair(qp)

    def activate(self, qp: QueuePair) -> None:
        """Say that a queue pair may have something to send, after post_send for instance."""
        self.nics[qp.port].activate(qp)

    def next_event(self) -> float:
        """Emulated time of the next event at any port; infinity if there is none."""
        nics = self.nics
        if len(nics) == 1:  # nearly always, and asked in every turn of the event loop
            return nics[0].next_event()
        return min(nic.next_event() for nic in nics)

    def set_down(self, port: int, down: bool) -> None:
        """A port has lost its link, or got it back."""
        if self._down[port] == down:
            return
        self._down[port] = down
        for qp in self._queue_pairs.values():
            if self._down[qp.port]:
                self._leave(qp)
            elif down:
                qp.ask_to_follow()

    def path_failed(self, qp: QueuePair) -> None:
        """Its requests were not acknowledged in time: they, or the acknowledgements, were lost."""
        if not self._leave(qp):
            qp.ask_to_follow()

    def follow(self, qp: QueuePair, port: int) -> None:
        """Its peer has moved, and what it sends now arrives at ``port``."""
        if not self._down[port]:
            self._move(qp, port)

    def _leave(self, qp: QueuePair) -> bool:
        """Move to the next port that has a link, if there is one; returns whether there is."""
        count = len(self.nics)
        for step in range(1, count):
            port = (qp.port + step) % count
            if not self._down[port]:
                self._move(qp, port)
                return True
        return False

    def _move(self, qp: QueuePair, port: int) -> None:
        self.nics[qp.port].withdraw(qp)
        qp.migrate(port, self._next_hops[port])
        self.nics[port].take_over(qp)
