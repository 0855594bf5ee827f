"""The ring all-reduce schedule: a reduce-scatter, then an all-gather, around one ring.

With n ranks the data are cut into n chunks. In step s of the reduce-scatter rank r sends chunk
r - 1 - s and adds the chunk it gets to its own; after n - 1 steps it holds the full sum of chunk r.
In step s of the all-gather it passes on chunk r - s. All modulo n, always to rank r + 1 (Patarasuk
and Yuan, "Bandwidth optimal all-reduce algorithms", 2009; chunk numbers as in NCCL's ring).
"""

from __future__ import annotations

from dataclasses import dataclass

from traffic.plan import Operation
from traffic.plan_builder import PlanBuilder


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of the data, in bytes."""

    offset: int
    length: int


def split(elements: int, parts: int, itemsize: int, offset: int = 0) -> list[Chunk]:
    """Cut elements into contiguous parts; sizes differ by at most one, the first are larger."""
    base, larger = divmod(elements, parts)
    chunks = []
    for part in range(parts):
        length = (base + (part < larger)) * itemsize
        chunks.append(Chunk(offset, length))
        offset += length
    return chunks


@dataclass(frozen=True, slots=True)
class Ring:
    """One channel: a ring over ``ranks`` that all-reduces ``chunks``, one per rank, in place.

    Positions in the ring take the part of ranks in the schedule above.

    ``scratch`` is the distance in bytes from a chunk to where its partial sums arrive. A rank may
    overwrite a chunk with its final value as soon as that arrives: the value cannot exist before
    the rank's partial sum has reached its neighbour.
    """

    ranks: tuple[int, ...]
    chunks: list[Chunk]
    scratch: int
    operation: Operation

    def fill(self, builder: PlanBuilder) -> None:
        """Add the ring's connections, one flow per edge, and all operations."""
        ranks = len(self.ranks)
        edges = zip(self.ranks, (*self.ranks[1:], self.ranks[0]), strict=True)
        flows = [builder.flow(builder.connect(rank, following)) for rank, following in edges]
        # holds[r] is the operation after which the r-th may pass on the chunk it sends next.
        holds: list[int | None] = [None] * ranks
        for step in range(ranks - 1):
            arrivals = self._send_all(
                builder, flows, step=step, lead=-1, target=self.scratch, holds=holds
            )
            for position, arrival in enumerate(arrivals):
                chunk = self.chunks[(position - 2 - step) % ranks]
                if arrival is not None:
                    arrivals[position] = builder.reduce(
                        self.ranks[position],
                        offset=chunk.offset,
                        source_offset=chunk.offset + self.scratch,
                        length=chunk.length,
                        depends_on=[arrival],
                    )
            holds = arrivals
        for step in range(ranks - 1):
            holds = self._send_all(builder, flows, step=step, lead=0, target=0, holds=holds)

    def _send_all(
        self,
        builder: PlanBuilder,
        flows: list[int],
        *,
        step: int,
        lead: int,
        target: int,
        holds: list[int | None],
    ) -> list[int | None]:
        """Each sends chunk position + lead - step; returns the RECEIVE of each position."""
        ranks = len(self.ranks)
        arrivals: list[int | None] = [None] * ranks
        for position in range(ranks):
            chunk = self.chunks[(position + lead - step) % ranks]
            if chunk.length == 0:
                continue
            after = holds[position]
            _, arrivals[(position + 1) % ranks] = builder.message(
                flows[position],
                operation=self.operation,
                length=chunk.length,
                offset=chunk.offset,
                remote_offset=chunk.offset + target,
                depends_on=[] if after is None else [after],
            )
        return arrivals
