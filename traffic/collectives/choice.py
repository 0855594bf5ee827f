"""Which algorithm carries out a collective when the user leaves the choice: a table by size."""

from __future__ import annotations

from dataclasses import dataclass

from traffic.collectives.request import Collective, ScheduleError


@dataclass(frozen=True, slots=True)
class AlgorithmRule:
    """``collective`` of at most ``up_to`` bytes (None: any size) takes ``algorithm``.

    ``within_servers`` restricts the rule to communicators with (True) or without (False) several
    GPUs per server.
    """

    collective: Collective
    algorithm: str
    up_to: int | None = None
    within_servers: bool | None = None

    def fits(self, collective: Collective, size: int, gpus_per_server: int) -> bool:
        """Whether the rule speaks of such a collective of ``size`` bytes."""
        return (
            collective is self.collective
            and (self.up_to is None or size <= self.up_to)
            and self.within_servers in (None, gpus_per_server > 1)
        )


@dataclass(frozen=True, slots=True)
class AlgorithmTable:
    """Rules in order; the first that fits decides."""

    rules: tuple[AlgorithmRule, ...]

    def choose(self, collective: Collective, size: int, gpus_per_server: int = 1) -> str:
        """Name of the algorithm. Raises ScheduleError when no rule fits."""
        for rule in self.rules:
            if rule.fits(collective, size, gpus_per_server):
                return rule.algorithm
        raise ScheduleError(f"algorithm: no rule for {collective} of {size} bytes")

    def overridden(self, rules: tuple[AlgorithmRule, ...]) -> AlgorithmTable:
        """The table with further rules in front of its own."""
        return AlgorithmTable(rules + self.rules)


DEFAULT_TABLE = AlgorithmTable(
    (
        AlgorithmRule(Collective.ALL_REDUCE, "double-binary-tree", up_to=2**20),
        AlgorithmRule(Collective.ALL_REDUCE, "hierarchical", within_servers=True),
        AlgorithmRule(Collective.ALL_REDUCE, "ring"),
        AlgorithmRule(Collective.BARRIER, "recursive-halving-doubling"),
        AlgorithmRule(Collective.ALL_GATHER, "recursive-halving-doubling", up_to=2**20),
        AlgorithmRule(Collective.ALL_GATHER, "hierarchical", within_servers=True),
        AlgorithmRule(Collective.ALL_GATHER, "ring"),
        AlgorithmRule(Collective.REDUCE_SCATTER, "recursive-halving-doubling", up_to=2**20),
        AlgorithmRule(Collective.REDUCE_SCATTER, "hierarchical", within_servers=True),
        AlgorithmRule(Collective.REDUCE_SCATTER, "ring"),
        AlgorithmRule(Collective.BROADCAST, "binary-tree", up_to=4 * 2**20),
        AlgorithmRule(Collective.BROADCAST, "ring"),
        AlgorithmRule(Collective.REDUCE, "binary-tree", up_to=4 * 2**20),
        AlgorithmRule(Collective.REDUCE, "ring"),
        AlgorithmRule(Collective.ALL_TO_ALL, "pxn", within_servers=True),
        AlgorithmRule(Collective.ALL_TO_ALL, "direct"),
        AlgorithmRule(Collective.ALL_TO_ALLV, "pxn", within_servers=True),
        AlgorithmRule(Collective.ALL_TO_ALLV, "direct"),
        AlgorithmRule(Collective.GATHER, "direct"),
        AlgorithmRule(Collective.SCATTER, "direct"),
        AlgorithmRule(Collective.SEND_RECV, "direct"),
    )
)
"""Like NCCL's tuner: trees where latency counts, rings where bandwidth does. With several GPUs per
server, what uses all their NICs and keeps to the rails.

The sizes are where the alpha-beta model sees them cross with some 10 ranks, 2 us and 400 Gb/s.
"""
