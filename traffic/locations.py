"""Where ranks are: what a workload may know of the fabric when it decides who talks to whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from testbed.topology import RankRole, Topology


@dataclass(frozen=True, slots=True)
class RankLocation:
    """A rank's role and place. ``leaves`` are the switches of its NIC's ports, in port order."""

    role: RankRole = RankRole.GPU
    server: str = ""
    leaves: tuple[str, ...] = ("",)

    @property
    def nic_ports(self) -> int:
        """Ports of its NIC."""
        return len(self.leaves)


def rank_locations(topology: Topology) -> tuple[RankLocation, ...]:
    """The location of every rank, in rank order."""
    return tuple(
        RankLocation(
            rank.role,
            rank.server,
            tuple(topology.interfaces[name].peer_node for name in rank.interfaces),
        )
        for rank in topology.ranks
    )


def anywhere(world_size: int) -> tuple[RankLocation, ...]:
    """That many GPUs with NICs of one port, at places that do not matter."""
    return tuple(RankLocation() for _ in range(world_size))


def gpus_per_server(servers: Sequence[str]) -> int:
    """How many neighbouring ranks share a server, everywhere; 1 where that differs.

    ``servers`` has the server of every rank, in their order; empty where the place does not matter.
    """
    for count in range(len(servers), 1, -1):
        if len(servers) % count:
            continue
        blocks = [servers[begin : begin + count] for begin in range(0, len(servers), count)]
        if "" not in servers and all(len(set(block)) == 1 for block in blocks):
            return count
    return 1


def ranks_of(locations: Sequence[RankLocation], role: RankRole) -> tuple[int, ...]:
    """All ranks of a role, in rank order."""
    return tuple(rank for rank, location in enumerate(locations) if location.role is role)
