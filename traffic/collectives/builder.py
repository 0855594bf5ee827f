"""Builds schedules: algorithms say what moves where; what must wait for what follows from that."""

from __future__ import annotations

from collections.abc import Sequence

from traffic.collectives.request import Chunking, CollectiveRequest, ScheduleError
from traffic.collectives.schedule import Instruction, InstructionKind, Layout, Schedule
from traffic.plan_builder import OPERATION_LIMIT


class ScheduleBuilder:
    """Collects the programs of all ranks.

    Instructions of one rank depend on each other where they touch the same slots, one of them
    writing, in the order in which they were added. Empty slots are left out. Raises ScheduleError
    for more instructions than a plan may have operations, of which each becomes one at least.
    """

    def __init__(
        self,
        request: CollectiveRequest,
        algorithm: str,
        chunking: Chunking,
        layouts: Sequence[Layout],
    ) -> None:
        self.request = request
        self._algorithm = algorithm
        self._chunking = chunking
        self._layouts = list(layouts)
        self._sizes = [list(layout.sizes) for layout in layouts]
        self._programs: list[list[Instruction]] = [[] for _ in layouts]
        self._writer: list[dict[int, int]] = [{} for _ in layouts]
        self._readers: list[dict[int, list[int]]] = [{} for _ in layouts]
        self._count = 0

    def layout(self, rank: int) -> Layout:
        """A rank's input and output; scratch memory as far as it was given at the start."""
        return self._layouts[rank]

    def sizes(self, rank: int, slots: Sequence[int]) -> list[int]:
        """Elements of some of a rank's slots."""
        return [self._sizes[rank][slot] for slot in slots]

    def scratch(self, rank: int, sizes: Sequence[int]) -> list[int]:
        """Give a rank more scratch memory; returns the numbers of the new slots."""
        first = len(self._sizes[rank])
        self._sizes[rank] += sizes
        return list(range(first, first + len(sizes)))

    def transfer(
        self,
        channel: int,
        source: int,
        source_slots: Sequence[int],
        destination: int,
        destination_slots: Sequence[int],
        *,
        after: Sequence[int] = (),
    ) -> tuple[list[int], list[int]]:
        """Send slots to another rank, one message per run of neighbours.

        ``after`` are further instructions of the source to wait for. Returns the positions of the
        SENDs at the source and of the RECEIVEs at the destination.
        """
        local = self.request.is_local(source, destination)
        sends, receives = [], []
        for first, second, count in self._runs(source, source_slots, destination_slots):
            sends.append(
                self._add(
                    source, InstructionKind.SEND, channel, first, count,
                    peer=destination, local=local, after=after,
                )
            )  # fmt: skip
            receives.append(
                self._add(
                    destination, InstructionKind.RECEIVE, channel, second, count,
                    peer=source, local=local,
                )
            )  # fmt: skip
        return sends, receives

    def reduce(self, rank: int, channel: int, slots: Sequence[int], source: Sequence[int]) -> None:
        """Combine ``source`` into ``slots``."""
        for first, second, count in self._runs(rank, slots, source):
            self._add(rank, InstructionKind.REDUCE, channel, first, count, source=second)

    def copy(self, rank: int, channel: int, slots: Sequence[int], source: Sequence[int]) -> None:
        """Copy ``source`` to ``slots``."""
        for first, second, count in self._runs(rank, slots, source):
            self._add(rank, InstructionKind.COPY, channel, first, count, source=second)

    def build(self) -> Schedule:
        """The finished schedule."""
        layouts = tuple(
            Layout(layout.input, layout.output, tuple(sizes[layout.first_scratch :]))
            for layout, sizes in zip(self._layouts, self._sizes, strict=True)
        )
        return Schedule(
            request=self.request,
            algorithm=self._algorithm,
            chunking=self._chunking,
            layouts=layouts,
            programs=tuple(tuple(program) for program in self._programs),
        )

    def _runs(
        self, rank: int, slots: Sequence[int], others: Sequence[int]
    ) -> list[tuple[int, int, int]]:
        """(slot, other slot, count) of the longest runs that are neighbours on both sides."""
        sizes = self._sizes[rank]
        begin, last = 0, len(slots)
        if last == 1:  # as most are
            return [(slots[0], others[0], 1)] if sizes[slots[0]] else []
        found = []
        for end in range(1, last + 1):
            if (
                end < last
                and slots[end] == slots[end - 1] + 1
                and others[end] == others[end - 1] + 1
            ):
                continue
            first = slots[begin]
            if any(sizes[first : first + end - begin]):
                found.append((first, others[begin], end - begin))
            begin = end
        return found

    def _add(
        self,
        rank: int,
        kind: InstructionKind,
        channel: int,
        slot: int,
        count: int,
        *,
        source: int = -1,
        peer: int = -1,
        local: bool = False,
        after: Sequence[int] = (),
    ) -> int:
        self._count += 1
        if self._count > OPERATION_LIMIT:
            raise ScheduleError(
                f"chunk: messages of {self._chunking.slice_bytes} bytes make more than "
                f"{OPERATION_LIMIT} operations; allowed: larger ones, less data or fewer ranks"
            )
        program, writer, readers = self._programs[rank], self._writer[rank], self._readers[rank]
        position = len(program)
        needed = set(after)
        read = slot if kind is InstructionKind.SEND else source
        if read >= 0:
            for place in range(read, read + count):
                if place in writer:
                    needed.add(writer[place])
                readers.setdefault(place, []).append(position)
        if kind is not InstructionKind.SEND:
            for place in range(slot, slot + count):
                # a message lands whenever it is sent; waiting at the receiver would not stop it
                if kind is not InstructionKind.RECEIVE:
                    if place in writer:
                        needed.add(writer[place])
                    needed.update(readers.get(place, ()))
                writer[place] = position
                readers.pop(place, None)
        needed.discard(position)
        depends_on = tuple(sorted(needed)) if needed else ()
        program.append(Instruction(kind, channel, slot, count, source, peer, depends_on, local))
        return position
