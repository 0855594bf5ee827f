"""ECMP: each switch hashes the 5-tuple, UDP ports included, over equal-cost ports (RFC 2992)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import ClassVar

from pydantic import Field

from controllers.entries import (
    Entry,
    GotoTable,
    HashAlgorithm,
    HashFields,
    LoadRegister,
    Multipath,
)
from controllers.schemes.base import (
    MEMBER_TABLE,
    RoutingScheme,
    RoutingView,
    SchemeParameters,
    register_scheme,
    route,
    to_switch,
)
from testbed.topology import Interface, Topology

LINK_REGISTER = 0
GROUP_REGISTER = 1

_BASIS_BITS = 16
_BASIS_STEP = 0x9E37
"""Odd, so that consecutive datapath ids map to distinct bases (2**16 over the golden ratio)."""


class EcmpParameters(SchemeParameters):
    """What the switches hash and how."""

    fields: HashFields = Field(
        HashFields.SYMMETRIC_L3L4_UDP, description="header fields that are hashed"
    )
    algorithm: HashAlgorithm = Field(
        HashAlgorithm.MODULO_N, description="how a hash selects a port"
    )
    hash_seed: int | None = Field(None, ge=0, description="default: the scenario's seed")
    per_switch_seed: bool = Field(
        True, description="false gives all switches one seed, and the fabric hash polarisation"
    )


@register_scheme
class Ecmp(RoutingScheme):
    """One ECMP group per distinct set of ports; a group's members are the ports in port order."""

    name = "ecmp"
    parameters_type: ClassVar[type[SchemeParameters]] = EcmpParameters

    def basis(self, datapath_id: int) -> int:
        """The 16-bit hash seed of a switch, distinct for up to 65 536 switches."""
        seed = self.seed if self.parameters.hash_seed is None else self.parameters.hash_seed
        digest = blake2b(str(seed).encode(), digest_size=_BASIS_BITS // 8).digest()
        offset = datapath_id * _BASIS_STEP if self.parameters.per_switch_seed else 0
        return (int.from_bytes(digest, "big") + offset) % (1 << _BASIS_BITS)

    def remote_entries(self, view: RoutingView, switch: str) -> Iterable[Entry]:
        """Prefixes to a port or a group, then the members of every group."""
        topology = view.topology
        basis = self.basis(topology.nodes[switch].datapath_id)
        groups: dict[tuple[str, ...], int] = {}
        members: list[Entry] = []
        for prefix, ports in view.hops[switch].items():
            if len(ports) == 1:
                yield route(topology, switch, prefix, to_switch(topology, ports[0]))
                continue
            names = tuple(port.name for port in ports)
            if names not in groups:
                groups[names] = len(groups) + 1
                members += _members(topology, groups[names], ports)
            select = Multipath(
                self.parameters.fields,
                basis,
                self.parameters.algorithm,
                len(ports),
                LINK_REGISTER,
            )
            actions = (LoadRegister(GROUP_REGISTER, groups[names]), select, GotoTable(MEMBER_TABLE))
            yield route(topology, switch, prefix, actions)
        yield from members


def _members(topology: Topology, group: int, ports: Sequence[Interface]) -> Iterable[Entry]:
    for link, port in enumerate(ports):
        match = {f"reg{LINK_REGISTER}": link, f"reg{GROUP_REGISTER}": group}
        yield Entry(MEMBER_TABLE, 1, match, to_switch(topology, port))
