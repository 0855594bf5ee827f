"""A flow as routing schemes see it: what its packets carry, where it enters and how large it is."""

from __future__ import annotations

from dataclasses import dataclass

from controllers.hashing import FiveTuple


@dataclass(frozen=True, slots=True)
class Flow:
    """One direction of one queue pair.

    ``destination_qp`` is the BTH's destination QP. ``source_interface`` names the NIC interface
    that transmits; empty means the only one with the source address. ``bytes`` is the payload to
    come, 0 for acknowledgements or when unknown. ``connection`` and ``reverse`` say which
    connection of a plan it belongs to and whether it is the way of its acknowledgements.
    """

    five_tuple: FiveTuple
    destination_qp: int = 0
    source_interface: str = ""
    bytes: int = 0
    connection: int = -1
    reverse: bool = False
