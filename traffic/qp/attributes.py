"""Attributes of a queue pair and the transitions between its states (ibv_modify_qp)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

from traffic.codec import ipv4_int, mac_bytes
from traffic.memory import AccessFlags
from traffic.psn import PSN_MASK
from traffic.qp.timers import MAX_TIMEOUT_EXPONENT
from traffic.verbs import QpState, QpType, VerbsError

PATH_MTUS: Final = (256, 512, 1024, 2048, 4096)
INFINITE_RNR_RETRY: Final = 7
MIN_SOURCE_PORT: Final = 0xC000
"""RoCEv2 sources use the dynamic ports 49152 to 65535; analysers guess other protocols below."""
TOS_DATA: Final = 0x6A
"""DSCP 26 with ECT(0): the lossless class of common RoCE deployments, able to be marked."""
TOS_CONTROL: Final = 0xC0
"""DSCP 48 (CS6), not ECN-capable: the class that ConnectX NICs give to CNPs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathAttributes:
    """How packets reach the peer: the part of ``struct ibv_ah_attr`` that RoCEv2 over IPv4 uses.

    ``control_tos`` is for ACKs and NAKs; give it the value of ``tos`` to let them share the queue
    of the data, as NICs do by default. Raises ValueError for addresses or numbers out of range.
    """

    source_mac: str
    dest_mac: str
    source_ip: str
    dest_ip: str
    udp_source_port: int = MIN_SOURCE_PORT
    tos: int = TOS_DATA
    control_tos: int = TOS_CONTROL
    ttl: int = 64

    def __post_init__(self) -> None:
        mac_bytes(self.source_mac)
        mac_bytes(self.dest_mac)
        ipv4_int(self.source_ip)
        ipv4_int(self.dest_ip)
        _check_range("udp_source_port", self.udp_source_port, MIN_SOURCE_PORT, 0xFFFF)
        _check_range("tos", self.tos, 0, 0xFF)
        _check_range("control_tos", self.control_tos, 0, 0xFF)
        _check_range("ttl", self.ttl, 1, 0xFF)


@dataclass(frozen=True, slots=True)
class Reordering:
    """How a requester tells late packets from lost ones.

    A packet is lost when one sent ``threshold`` packets later has arrived (1: as soon as any later
    one has; QUIC starts with 3, RFC 9002, 6.1.1), or has been known to be missing for ``timeout``
    seconds of emulated time (as by RACK's reordering window, RFC 8985, 6.2).
    """

    threshold: int = 1
    timeout: float = 100e-6

    def __post_init__(self) -> None:
        _check_range("reordering threshold", self.threshold, 1, 1 << 15)
        if not self.timeout > 0:
            raise ValueError(f"reordering timeout {self.timeout!r} s must be above 0")


@dataclass(slots=True, kw_only=True)
class QpAttributes:
    """The modifiable attributes, ``struct ibv_qp_attr``; defaults are NCCL's where it has one.

    ``timeout`` is the exponent n of 4.096 us * 2^n (0: none); ``rnr_retry`` 7 means without end;
    ``min_rnr_timer`` is the 5-bit code that this side puts into its RNR NAKs.
    """

    path: PathAttributes | None = None
    path_mtu: int = 4096
    dest_qp_num: int = 0
    rq_psn: int = 0
    sq_psn: int = 0
    min_rnr_timer: int = 12
    timeout: int = 20
    retry_cnt: int = 7
    rnr_retry: int = 7
    qp_access_flags: AccessFlags = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE


_RANGES: Final = {
    "dest_qp_num": (0, 0xFFFFFF),
    "rq_psn": (0, PSN_MASK),
    "sq_psn": (0, PSN_MASK),
    "min_rnr_timer": (0, 31),
    "timeout": (0, MAX_TIMEOUT_EXPONENT),
    "retry_cnt": (0, 7),
    "rnr_retry": (0, 7),
}

_ALL: Final = frozenset(QpType)
_RC: Final = frozenset({QpType.RC})

# (from, to) -> attribute -> (services it exists for, required). From ibv_modify_qp(3).
_TRANSITIONS: Final[dict[tuple[QpState, QpState], dict[str, tuple[frozenset[QpType], bool]]]] = {
    (QpState.RESET, QpState.INIT): {"qp_access_flags": (_ALL, False)},
    (QpState.INIT, QpState.INIT): {"qp_access_flags": (_ALL, False)},
    (QpState.INIT, QpState.RTR): {
        "path": (_ALL, True),
        "path_mtu": (_ALL, True),
        "dest_qp_num": (_ALL, True),
        "rq_psn": (_ALL, True),
        "min_rnr_timer": (_RC, True),
        "qp_access_flags": (_ALL, False),
    },
    (QpState.RTR, QpState.RTS): {
        "sq_psn": (_ALL, True),
        "timeout": (_RC, True),
        "retry_cnt": (_RC, True),
        "rnr_retry": (_RC, True),
        "min_rnr_timer": (_RC, False),
        "qp_access_flags": (_ALL, False),
    },
    (QpState.RTS, QpState.RTS): {
        "min_rnr_timer": (_RC, False),
        "qp_access_flags": (_ALL, False),
    },
    (QpState.SQE, QpState.RTS): {"qp_access_flags": (_ALL, False)},
}


def check_transition(
    qp_type: QpType, old: QpState, new: QpState, attributes: dict[str, Any]
) -> None:
    """Raise VerbsError unless ``old`` -> ``new`` exists and takes exactly these attributes.

    RESET and ERR can be reached from any state, without attributes. A value out of range raises
    ValueError.
    """
    name = f"{qp_type.name} queue pair {old.name} -> {new.name}"
    if new in (QpState.RESET, QpState.ERR):
        allowed: dict[str, tuple[frozenset[QpType], bool]] = {}
    elif (old, new) in _TRANSITIONS:
        allowed = _TRANSITIONS[old, new]
    else:
        raise VerbsError(f"{name}: no such transition")
    usable = {key for key, (types, _) in allowed.items() if qp_type in types}
    required = {key for key in usable if allowed[key][1]}
    if unknown := sorted(attributes.keys() - usable):
        raise VerbsError(f"{name}: does not take {', '.join(unknown)}")
    if missing := sorted(required - attributes.keys()):
        raise VerbsError(f"{name}: needs {', '.join(missing)}")
    for key, value in attributes.items():
        if key == "path_mtu" and value not in PATH_MTUS:
            raise ValueError(f"path_mtu {value!r}; allowed: {PATH_MTUS}")
        if key in _RANGES:
            _check_range(key, value, *_RANGES[key])


def apply_attributes(target: QpAttributes, attributes: dict[str, Any]) -> None:
    """Set the given attributes; ``check_transition`` has vetted them."""
    known = {field.name for field in fields(target)}
    for key, value in attributes.items():
        assert key in known
        setattr(target, key, value)


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name} {value!r} is not in {low}..{high}")
