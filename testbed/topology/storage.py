"""Storage servers, on the GPUs' fabric or on a front-end network of their own.

Meta and HPN keep storage and ingest off the training fabric (SIGCOMM'24: Meta's front end and back
end; HPN's separate storage network); ``shared`` shows what that avoids.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from pydantic import Field

from testbed.topology.base import RankRole, TopologyParameters
from testbed.topology.builder import TopologyBuilder
from testbed.topology.wiring import check_leaves, check_ports, full_mesh, uplink_rate
from testbed.units import BitRate

FRONT_END = "front-end"
"""Group of the switches of a separate front-end network."""


class StorageNetwork(StrEnum):
    """Where storage servers hang."""

    NONE = "none"
    SHARED = "shared"
    SEPARATE = "separate"


class StorageParameters(TopologyParameters):
    """Fields of a family that can have storage servers."""

    storage: StorageNetwork = Field(
        StorageNetwork.NONE,
        description="storage servers: none, on the GPUs' leaves, or on a front-end network that "
        "every GPU server joins with a NIC of its own",
    )
    storage_servers: int = Field(2, ge=1, le=64, description="unless storage is none")
    storage_rate: BitRate | None = Field(
        None, description="rate of storage servers' and front-end NICs' links; default link_rate"
    )
    front_end_leaves: int = Field(
        1, ge=1, le=16, description="with storage: separate; several are joined by as many spines"
    )


def attach_storage(
    builder: TopologyBuilder,
    parameters: StorageParameters,
    *,
    leaves: Sequence[str],
    spines: int,
    servers: Sequence[str],
    link_rate: float,
) -> None:
    """Add the storage servers, after all GPUs; ``spines`` is how many the fabric has already.

    Raises TopologyError.
    """
    rate = link_rate if parameters.storage_rate is None else parameters.storage_rate
    if parameters.storage is StorageNetwork.SHARED:
        _add_storage_servers(builder, parameters.storage_servers, leaves, rate)
    elif parameters.storage is StorageNetwork.SEPARATE:
        _add_front_end(
            builder, parameters, leaves=len(leaves), spines=spines, servers=servers, rate=rate
        )


def _add_storage_servers(
    builder: TopologyBuilder, count: int, leaves: Sequence[str], rate: float
) -> None:
    for index in range(count):
        server = builder.server(index, stem="storage")
        builder.rank(server, 0, [leaves[index % len(leaves)]], rate=rate, role=RankRole.STORAGE)


def _add_front_end(
    builder: TopologyBuilder,
    parameters: StorageParameters,
    *,
    leaves: int,
    spines: int,
    servers: Sequence[str],
    rate: float,
) -> None:
    """A non-blocking leaf-spine fabric that shares no switch and no link with the back end."""
    count = parameters.front_end_leaves
    what = f"{count} front-end leaves besides {leaves} others"
    check_leaves("front_end_leaves", what, leaves + count)
    per_leaf = -(-len(servers) // count)
    below = per_leaf + -(-parameters.storage_servers // count)
    check_ports(
        "front_end_leaves",
        f"{len(servers)} servers and {parameters.storage_servers} storage servers on {count}",
        below + count,
    )
    front = [
        builder.switch("leaf", tier=1, index=leaves + i, group=FRONT_END) for i in range(count)
    ]
    for position, server in enumerate(servers):
        builder.rank(server, 0, [front[position // per_leaf]], rate=rate, role=RankRole.FRONT_END)
    _add_storage_servers(builder, parameters.storage_servers, front, rate)
    if count > 1:
        top = [
            builder.switch("spine", tier=2, index=spines + i, group=FRONT_END) for i in range(count)
        ]
        up = uplink_rate(down=below * rate, links=count, oversubscription=1)
        full_mesh(builder, front, top, up)
