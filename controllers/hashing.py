"""The 5-tuple of a flow and the hash that Open vSwitch takes of it.

Follows the behaviour of Open vSwitch 3.1: ``flow_hash_symmetric_l3l4`` (lib/flow.c) over
MurmurHash3's 32-bit mixing (lib/hash.h), and ``multipath_execute`` (lib/multipath.c).
Distributions build Open vSwitch for the baseline instruction set, hence Murmur; a build that
assumes SSE4.2 hashes with CRC32 instead and would not agree. The fabric tests compare the two.
"""

from __future__ import annotations

import ipaddress
import sys
from dataclasses import dataclass
from functools import lru_cache

from controllers.entries import HashAlgorithm, HashFields

IPPROTO_TCP = 6
IPPROTO_UDP = 17
IPPROTO_SCTP = 132

ROCE_PORT = 4791
"""UDP destination port of RoCEv2 (IBTA Annex A17)."""

_MASK = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class FiveTuple:
    """What identifies a flow to a switch. Addresses are dotted quads; the default is RoCEv2."""

    source_ip: str
    destination_ip: str
    source_port: int
    destination_port: int = ROCE_PORT
    protocol: int = IPPROTO_UDP


def mix(value: int, data: int) -> int:
    """Fold 32 bits of data into a hash (MurmurHash3_x86_32's body)."""
    data = data * 0xCC9E2D51 & _MASK
    data = (data << 15 | data >> 17) & _MASK
    value ^= data * 0x1B873593 & _MASK
    value = (value << 13 | value >> 19) & _MASK
    return value * 5 + 0xE6546B64 & _MASK


def finish(value: int) -> int:
    """Avalanche (MurmurHash3's fmix32)."""
    value ^= value >> 16
    value = value * 0x85EBCA6B & _MASK
    value ^= value >> 13
    value = value * 0xC2B2AE35 & _MASK
    return value ^ value >> 16


@lru_cache(maxsize=65536)
def _host_order(address: str) -> int:
    """An IPv4 address as the host's CPU reads its network-order bytes."""
    return int.from_bytes(ipaddress.IPv4Address(address).packed, sys.byteorder)


@lru_cache(maxsize=65536)
def address_number(address: str) -> int:
    """An IPv4 address as the number that its network-order bytes spell."""
    return int(ipaddress.IPv4Address(address))


def _swap16(port: int) -> int:
    return int.from_bytes(port.to_bytes(2, "big"), sys.byteorder)


def flow_hash(flow: FiveTuple, *, fields: HashFields, basis: int) -> int:
    """The 32-bit hash of a flow. Symmetric: both directions of a connection hash alike.

    Source and destination are combined by XOR, so pairs of NICs whose addresses differ in the same
    bits share a hash unless their ports differ; RoCEv2's source port is what tells them apart.
    """
    value = mix(basis, _host_order(flow.source_ip) ^ _host_order(flow.destination_ip))
    value = mix(value, flow.protocol)
    if flow.protocol in (IPPROTO_TCP, IPPROTO_SCTP) or (
        flow.protocol == IPPROTO_UDP and fields is HashFields.SYMMETRIC_L3L4_UDP
    ):
        value = mix(value, _swap16(flow.source_port ^ flow.destination_port))
    return finish(value ^ basis)


def link_of(value: int, *, algorithm: HashAlgorithm, links: int) -> int:
    """The link number, 0 .. ``links`` - 1, that a 32-bit hash selects."""
    if links == 1:
        return 0
    if algorithm is HashAlgorithm.MODULO_N:
        return value % links
    return value // (_MASK // links + 1)
