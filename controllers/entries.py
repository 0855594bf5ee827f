"""Flow table entries as plain data: what a scheme computes, a switch holds and the app sends.

Field names are those of OpenFlow 1.3 (``eth_type``, ``ipv4_dst``) plus Open vSwitch's registers
(``reg0`` ...). Only the standard library is imported, so that the controller's process needs
nothing but its OpenFlow library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

MatchValue = int | str
"""An integer, a MAC address, an IPv4 address with a prefix length ("10.1.0.0/16"), or a hexadecimal
value with a mask ("0x1000/0x1000")."""

TAGGED = "0x1000/0x1000"
"""The ``vlan_vid`` of any packet with an 802.1Q tag (OFPVID_PRESENT, OpenFlow 1.3.5, 7.2.3.8)."""


class HashFields(Enum):
    """What a multipath hash covers, by the names of ovs-actions(7)."""

    SYMMETRIC_L3L4 = "symmetric_l3l4"
    """IPv4 addresses, protocol and TCP ports; UDP ports are left out."""
    SYMMETRIC_L3L4_UDP = "symmetric_l3l4+udp"
    """The same with UDP ports: the 5-tuple that RoCEv2's source port entropy needs."""


class HashAlgorithm(Enum):
    """How a hash becomes a link number, by the names of ovs-actions(7)."""

    MODULO_N = "modulo_n"
    HASH_THRESHOLD = "hash_threshold"


@dataclass(frozen=True, slots=True)
class DecrementTtl:
    """Decrement the IPv4 TTL; a packet whose TTL is used up is dropped."""


@dataclass(frozen=True, slots=True)
class SetEthSrc:
    """Rewrite the source MAC address."""

    mac: str


@dataclass(frozen=True, slots=True)
class SetEthDst:
    """Rewrite the destination MAC address."""

    mac: str


@dataclass(frozen=True, slots=True)
class PopVlan:
    """Remove the 802.1Q tag. OpenFlow wants its entry to match a ``vlan_vid`` that is present."""


@dataclass(frozen=True, slots=True)
class MoveVlanToRegister:
    """Copy ``bits`` bits of the VLAN id, from ``first_bit`` on, to a register's low bits.

    A packet without a tag counts as VLAN id 0.
    """

    register: int
    first_bit: int
    bits: int


@dataclass(frozen=True, slots=True)
class LoadRegister:
    """Set a 32-bit register of the packet's pipeline context."""

    register: int
    value: int


@dataclass(frozen=True, slots=True)
class Multipath:
    """Hash the packet and store a link number in 0 .. ``links`` - 1 in a register.

    ``basis`` seeds the hash; the wire format (struct nx_action_multipath) gives it 16 bits.
    """

    fields: HashFields
    basis: int
    algorithm: HashAlgorithm
    links: int
    register: int


@dataclass(frozen=True, slots=True)
class Output:
    """Send the packet out of a port. Never the port it came in by: OpenFlow drops that."""

    port: int


@dataclass(frozen=True, slots=True)
class GotoTable:
    """Continue in a later table, after all other actions of the entry."""

    table: int


@dataclass(frozen=True, slots=True)
class Drop:
    """End the pipeline; stands alone."""


Action = (
    DecrementTtl
    | SetEthSrc
    | SetEthDst
    | PopVlan
    | MoveVlanToRegister
    | LoadRegister
    | Multipath
    | Output
    | GotoTable
    | Drop
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """One flow table entry; the highest priority among those that match wins.

    Actions are applied in order. Raises ValueError when they cannot be: a ``Drop`` with company,
    or a ``GotoTable`` that is not last or does not lead onwards.
    """

    table: int
    priority: int
    match: Mapping[str, MatchValue]
    actions: tuple[Action, ...]

    def __post_init__(self) -> None:
        for position, action in enumerate(self.actions):
            if isinstance(action, Drop) and len(self.actions) > 1:
                raise ValueError("an entry that drops has no other action")
            if isinstance(action, GotoTable):
                if position != len(self.actions) - 1:
                    raise ValueError("GotoTable must be the last action of an entry")
                if action.table <= self.table:
                    raise ValueError(
                        f"GotoTable({action.table}) in table {self.table}; only later tables"
                    )


def value_and_mask(text: str) -> tuple[int, int]:
    """The two numbers of a match value such as "0x1000/0x1000"."""
    value, mask = text.split("/")
    return int(value, 16), int(mask, 16)
