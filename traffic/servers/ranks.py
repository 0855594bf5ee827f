"""RANK, LOCAL_RANK and WORLD_SIZE: how a job's processes know themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankEnvironment:
    """The environment of one process as torchrun sets it."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    server: str

    def variables(self) -> dict[str, str]:
        """The variables by name."""
        return {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.local_rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
        }


def rank_environments(servers: Sequence[str]) -> tuple[RankEnvironment, ...]:
    """The environments of a job whose rank i runs on server ``servers[i]``.

    LOCAL_RANK counts the job's ranks of a server, in rank order; other jobs do not count.
    """
    totals = Counter(servers)
    seen: Counter[str] = Counter()
    environments = []
    for rank, server in enumerate(servers):
        environments.append(
            RankEnvironment(rank, seen[server], len(servers), totals[server], server)
        )
        seen[server] += 1
    return tuple(environments)
