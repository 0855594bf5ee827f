"""The label that a leaf's hash engine puts on packets from NICs, and the settings it works by.

A label is an 802.1Q tag (PCP 0) that exists inside the fabric only; the last leaf pops it. Its VLAN
id holds two slots of 6 bits: bits 0-5 choose among a leaf's member ports, bits 6-11 among those of
a tier-2 switch. A member table maps each of the 64 slots to a port, as switch chips do, so that a
failed link changes only its own slots. The engine itself is a BPF program; this module says what
it computes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from controllers.hashing import FiveTuple, address_number, finish, mix

SLOT_BITS = 6
SLOTS = 1 << SLOT_BITS
"""Entries of a member table."""

Member = TypeVar("Member")


class LabelMode(StrEnum):
    """How the engine chooses the two slots.

    ``hash``: both by ``label_hash``. ``flowlet``: chosen when a flow has been idle for the gap,
    then kept: the first slot by load or, without load awareness, by a hash of the flow and of the
    flowlet's number; the second by such a hash. ``spray``: packet n takes member n mod the number
    of members and second slot n div that number, counted per switch. ``adaptive``: a slot of the
    member whose queue is shortest, per flowlet or, with gap 0, per packet.
    """

    HASH = "hash"
    FLOWLET = "flowlet"
    SPRAY = "spray"
    ADAPTIVE = "adaptive"


@dataclass(frozen=True, slots=True)
class LabelMember:
    """An uplink and those of the 64 slots that lead to it while all links are up."""

    interface: str
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LabelSettings:
    """What one leaf's engine is configured with.

    ``seed`` and ``upper_seed`` are the 32-bit seeds of the first and the second slot; if they are
    equal, both tiers make the same choice and the fabric polarises. ``flowlet_gap`` is in seconds
    of emulated time; 0 chooses anew for every packet. ``members`` are the uplinks that are up, in
    port order.
    """

    mode: LabelMode
    seed: int
    upper_seed: int
    use_destination_qp: bool
    flowlet_gap: float
    load_aware: bool
    members: tuple[LabelMember, ...]


def label_hash(
    five_tuple: FiveTuple, destination_qp: int, *, seed: int, use_destination_qp: bool
) -> int:
    """The engine's 32-bit hash: MurmurHash3_x86_32 over words of header fields.

    The words are the source address, the destination address, both ports (source in the upper
    half), the protocol and, if used, the destination QP, each as the number that the header's
    network-order bytes spell. Unlike Open vSwitch's hash it tells the two directions apart.
    """
    words = [
        address_number(five_tuple.source_ip),
        address_number(five_tuple.destination_ip),
        five_tuple.source_port << 16 | five_tuple.destination_port,
        five_tuple.protocol,
    ]
    if use_destination_qp:
        words.append(destination_qp)
    value = seed
    for word in words:
        value = mix(value, word)
    return finish(value ^ 4 * len(words))


def make_label(slot: int, upper_slot: int) -> int:
    """The VLAN id of two slots."""
    return slot | upper_slot << SLOT_BITS


def label_of(
    five_tuple: FiveTuple,
    destination_qp: int,
    *,
    seed: int,
    upper_seed: int,
    use_destination_qp: bool,
) -> int:
    """The VLAN id that an engine in ``hash`` mode gives a packet."""
    slot, upper_slot = (
        label_hash(five_tuple, destination_qp, seed=each, use_destination_qp=use_destination_qp)
        % SLOTS
        for each in (seed, upper_seed)
    )
    return make_label(slot, upper_slot)


def deal_slots(members: Sequence[Member], live: Sequence[Member]) -> list[Member]:
    """Slot -> member, for the 64 slots of a member table, ``live`` being those in use now.

    While all members are live, slot s goes to member s mod their number. The slots of a member that
    is not live are dealt to the live ones in turn; all other slots stay where they are. Raises
    ValueError if there are none or none is live.
    """
    if not members or not live:
        raise ValueError("no member to deal slots to")
    turn = itertools.cycle(live)
    usable = set(live)
    dealt = [members[slot % len(members)] for slot in range(SLOTS)]
    return [member if member in usable else next(turn) for member in dealt]
