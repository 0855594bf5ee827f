"""Steps that several families share: full meshes, rates that follow from a ratio, limits.

Oversubscription is a switch's capacity downwards over its capacity upwards: 1 is non-blocking, 7 is
what Meta writes as 1:7 and HPN as 7:1, and 16/18 is a leaf with spare uplinks (Meta's 1:1.125).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from testbed.topology.base import SWITCH_PORT_LIMIT, NodeKind, Topology, TopologyError
from testbed.topology.builder import LEAF_LIMIT, TopologyBuilder


def _refuse_notation(value: Any) -> Any:
    """Who writes 1:7 may mean more below than above, as Meta does, or the opposite."""
    if isinstance(value, str):
        raise ValueError(
            f"{value!r} is no number; write capacity down over capacity up: 7 is Meta's 1:7, "
            "0.889 its 1:1.125"
        )
    return value


Oversubscription = Annotated[float, BeforeValidator(_refuse_notation), Field(gt=0.01, le=1000)]
"""Pydantic field type: capacity down over capacity up."""


def full_mesh(
    builder: TopologyBuilder, lower: Sequence[str], upper: Sequence[str], rate: float
) -> None:
    """Wire each lower switch to each upper one, at ``rate`` bit/s both ways."""
    for below in lower:
        for above in upper:
            builder.link(below, above, up_rate=rate, down_rate=rate)


def uplink_rate(*, down: float, links: int, oversubscription: float) -> float:
    """Bit/s of each of a switch's ``links`` uplinks, given ``down`` bit/s of downlinks in all."""
    return down / (oversubscription * links)


def oversubscription(
    topology: Topology, tier: int, *, apart_from: Container[str] = ()
) -> float | None:
    """The ratio as built: capacity down over capacity up of all switches of a tier that have both.

    None if no switch of the tier has uplinks. Switches of another network may be left out.
    """
    down = up = 0.0
    for switch in topology.switches:
        if switch.tier != tier or switch.name in apart_from:
            continue
        ports = topology.interfaces_of(switch.name)
        above = [i.rate for i in ports if topology.nodes[i.peer_node].tier > tier]
        if above:
            up += sum(above)
            down += sum(i.rate for i in ports) - sum(above)
    return down / up if up else None


def uplinks(topology: Topology, tier: int) -> list[str]:
    """The interfaces at which a tier's switches transmit upwards, in build order."""
    return [
        interface.name
        for interface in topology.interfaces.values()
        if topology.nodes[interface.node].kind is NodeKind.SWITCH
        and topology.nodes[interface.node].tier == tier
        and topology.nodes[interface.peer_node].tier > tier
    ]


def check_ports(field: str, what: str, ports: int) -> None:
    """Raise TopologyError unless a switch can have so many ports; ``what`` needs them."""
    if ports > SWITCH_PORT_LIMIT:
        raise TopologyError(
            f"topology.{field}: {what} need {ports} ports on one switch; "
            f"a switch has at most {SWITCH_PORT_LIMIT}"
        )


def check_leaves(field: str, what: str, leaves: int) -> None:
    """Raise TopologyError unless so many leaves can have a prefix each; ``what`` needs them."""
    if leaves > LEAF_LIMIT:
        raise TopologyError(
            f"topology.{field}: {what} need {leaves} leaves; a fabric has at most {LEAF_LIMIT}"
        )


def check_joined(field: str, what: str, switches: int) -> None:
    """Raise TopologyError for 0 switches, where at least one has to join ``what``."""
    if switches == 0:
        raise TopologyError(f"topology.{field}: 0 leaves {what} unconnected; at least 1")
