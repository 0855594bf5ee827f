"""scapy layers for every RoCEv2 header: the definition of the wire format, and the tests' oracle.

Extends ``scapy.contrib.roce``, which knows BTH, AETH and GRH only: all extension headers, chosen by
the BTH opcode; the pad count; the ICRC over the bytes as built; and 802.1Qbb pause frames. Far too
slow for traffic (``traffic.codec`` is the fast path), and shares no code with it.

Importing this module makes scapy dissect UDP destination port 4791 as RoCEv2 whatever the source
port is. Field layouts: IBTA specification vol. 1, 9.2 to 9.5; FETH as in Linux rxe_hdr.h.
"""

# scapy is not typed.
# mypy: disallow-subclassing-any=False

from __future__ import annotations

import zlib
from collections.abc import Mapping

from scapy.config import conf
from scapy.contrib import roce
from scapy.contrib.mac_control import MACControl, MACControlClassBasedFlowControl
from scapy.contrib.roce import GRH, CNPPadding
from scapy.fields import (
    BitField,
    ByteEnumField,
    IntField,
    XBitField,
    XByteField,
    XIntField,
    XLongField,
)
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw, bind_top_down

ROCE_UDP_PORT = 4791
DEFAULT_UDP_SOURCE_PORT = 49152
ICRC_LENGTH = 4

RC, UC, RD, UD = 0x00, 0x20, 0x40, 0x60
"""Transport services, to be ORed with an operation."""

_OPERATIONS = {
    0x00: "SEND_FIRST",
    0x01: "SEND_MIDDLE",
    0x02: "SEND_LAST",
    0x03: "SEND_LAST_WITH_IMMEDIATE",
    0x04: "SEND_ONLY",
    0x05: "SEND_ONLY_WITH_IMMEDIATE",
    0x06: "RDMA_WRITE_FIRST",
    0x07: "RDMA_WRITE_MIDDLE",
    0x08: "RDMA_WRITE_LAST",
    0x09: "RDMA_WRITE_LAST_WITH_IMMEDIATE",
    0x0A: "RDMA_WRITE_ONLY",
    0x0B: "RDMA_WRITE_ONLY_WITH_IMMEDIATE",
    0x0C: "RDMA_READ_REQUEST",
    0x0D: "RDMA_READ_RESPONSE_FIRST",
    0x0E: "RDMA_READ_RESPONSE_MIDDLE",
    0x0F: "RDMA_READ_RESPONSE_LAST",
    0x10: "RDMA_READ_RESPONSE_ONLY",
    0x11: "ACKNOWLEDGE",
    0x12: "ATOMIC_ACKNOWLEDGE",
    0x13: "COMPARE_SWAP",
    0x14: "FETCH_ADD",
    0x16: "SEND_LAST_WITH_INVALIDATE",
    0x17: "SEND_ONLY_WITH_INVALIDATE",
    0x1C: "FLUSH",
    0x1D: "ATOMIC_WRITE",
}

_UC_OPERATIONS = range(0x0C)
_UD_OPERATIONS = (0x04, 0x05)
_RESPONSES = range(0x0D, 0x13)


def _opcode_names() -> dict[int, str]:
    names = {RC | op: f"RC_{name}" for op, name in _OPERATIONS.items()}
    names |= {UC | op: f"UC_{_OPERATIONS[op]}" for op in _UC_OPERATIONS}
    names |= {RD | op: f"RD_{name}" for op, name in _OPERATIONS.items() if op <= 0x14}
    names |= {UD | op: f"UD_{_OPERATIONS[op]}" for op in _UD_OPERATIONS}
    names[roce.CNP_OPCODE] = "CNP"
    return names


OPCODE_NAMES = _opcode_names()
"""Every known BTH opcode and its name, such as "RC_RDMA_WRITE_FIRST"."""

OPCODES = {name: opcode for opcode, name in OPCODE_NAMES.items()}
"""Name to BTH opcode."""


class BTH(roce.BTH):
    """Base transport header, with the ICRC at the end of the packet.

    A ``padcount`` of None is computed on building, and the pad bytes are added; a given one says
    that the payload ends with that many pad bytes already. An ``icrc`` of None is computed.
    """

    name = "BTH"
    fields_desc = [  # noqa: RUF012 (scapy's interface)
        ByteEnumField("opcode", 0, OPCODE_NAMES),
        *(field for field in roce.BTH.fields_desc if field.name in ("solicited", "migreq")),
        BitField("padcount", None, 2),
        *roce.BTH.fields_desc[4:],
    ]

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        """The first extension header of the opcode, or plain payload."""
        return _layer_behind(self, 0)

    def post_build(self, p: bytes, pay: bytes) -> bytes:
        """Add pad and ICRC. ``pay`` ends with room for the ICRC."""
        body, icrc = pay[:-ICRC_LENGTH], pay[-ICRC_LENGTH:]
        if self.padcount is None:
            pad = -len(body) % 4
            p = p[:1] + bytes([p[1] & 0xCF | pad << 4]) + p[2:]
            body += bytes(pad)
        if self.icrc is None:
            icrc = self.compute_icrc(p + body + icrc)
        packet: bytes = p + body + icrc
        return packet

    def compute_icrc(self, p: bytes) -> bytes:
        """ICRC, as it stands in the packet, of ``p``: BTH, body and any 4 bytes.

        Raises ValueError below anything but IPv4/UDP, IPv6/UDP or GRH (RoCEv1).
        """
        below = self.underlayer
        udp = below if isinstance(below, UDP) else None
        network = below if udp is None else udp.underlayer
        if not isinstance(network, (IP, IPv6, GRH)):
            raise ValueError(f"no ICRC is defined below {network and network.name}")
        # The lengths in the headers must count p, so build them with p as their payload.
        copied = network.copy()
        (copied if udp is None else copied[UDP]).payload = Raw(p)
        packet = bytearray(copied.build())
        _mask_variant_fields(packet, len(packet) - len(p), has_udp=udp is not None)
        crc = zlib.crc32(b"\xff" * 8 + bytes(packet[:-ICRC_LENGTH]))
        return crc.to_bytes(ICRC_LENGTH, "little")


def _mask_variant_fields(packet: bytearray, bth: int, *, has_udp: bool) -> None:
    """Set to ones what a switch may change; ``bth`` is the offset of the BTH (annex A17.3)."""
    if packet[0] >> 4 == 4:
        variant = [1, 8, 10, 11]  # TOS, TTL, checksum
    else:
        packet[0] |= 0x0F
        variant = [1, 2, 3, 7]  # traffic class, flow label, hop limit
    if has_udp:
        variant += [bth - 2, bth - 1]  # UDP checksum
    for offset in (*variant, bth + 4):  # FECN, BECN and reserved bits
        packet[offset] = 0xFF


class _ExtensionHeader(Packet):
    """A header between BTH and payload; the BTH's opcode says what follows."""

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        depth = 1
        below = self.underlayer
        while isinstance(below, _ExtensionHeader):
            depth += 1
            below = below.underlayer
        return _layer_behind(below, depth)


class RETH(_ExtensionHeader):
    """RDMA extended transport header."""

    name = "RETH"
    fields_desc = [XLongField("va", 0), XIntField("rkey", 0), IntField("dmalen", 0)]  # noqa: RUF012


class ImmDt(_ExtensionHeader):
    """Immediate data."""

    name = "ImmDt"
    fields_desc = [XIntField("immediate", 0)]  # noqa: RUF012


class AETH(_ExtensionHeader):
    """ACK extended transport header."""

    name = "AETH"
    fields_desc = [XByteField("syndrome", 0), XBitField("msn", 0, 24)]  # noqa: RUF012


class AtomicETH(_ExtensionHeader):
    """Atomic extended transport header. ``swap`` is the addend of FETCH_ADD."""

    name = "AtomicETH"
    fields_desc = [  # noqa: RUF012
        XLongField("va", 0),
        XIntField("rkey", 0),
        XLongField("swap", 0),
        XLongField("compare", 0),
    ]


class AtomicAckETH(_ExtensionHeader):
    """The value before an atomic operation."""

    name = "AtomicAckETH"
    fields_desc = [XLongField("original", 0)]  # noqa: RUF012


class DETH(_ExtensionHeader):
    """Datagram extended transport header."""

    name = "DETH"
    fields_desc = [  # noqa: RUF012
        XIntField("qkey", 0),
        BitField("reserved", 0, 8),
        XBitField("sqpn", 0, 24),
    ]


class RDETH(_ExtensionHeader):
    """Reliable datagram extended transport header: the end-to-end context."""

    name = "RDETH"
    fields_desc = [BitField("reserved", 0, 8), XBitField("eec", 0, 24)]  # noqa: RUF012


class IETH(_ExtensionHeader):
    """Invalidate extended transport header."""

    name = "IETH"
    fields_desc = [XIntField("rkey", 0)]  # noqa: RUF012


class FETH(_ExtensionHeader):
    """Flush extended transport header: selectivity level and placement type."""

    name = "FETH"
    fields_desc = [  # noqa: RUF012
        BitField("reserved", 0, 26),
        BitField("selectivity", 0, 2),
        BitField("placement", 0, 4),
    ]


_EXTENSIONS: dict[int, tuple[type[Packet], ...]] = {
    0x03: (ImmDt,),
    0x05: (ImmDt,),
    0x06: (RETH,),
    0x09: (ImmDt,),
    0x0A: (RETH,),
    0x0B: (RETH, ImmDt),
    0x0C: (RETH,),
    0x0D: (AETH,),
    0x0F: (AETH,),
    0x10: (AETH,),
    0x11: (AETH,),
    0x12: (AETH, AtomicAckETH),
    0x13: (AtomicETH,),
    0x14: (AtomicETH,),
    0x16: (IETH,),
    0x17: (IETH,),
    0x1C: (FETH, RETH),
    0x1D: (RETH,),
}


def extension_headers(opcode: int) -> tuple[type[Packet], ...]:
    """The headers between BTH and payload. Raises KeyError for an unknown opcode."""
    if opcode not in OPCODE_NAMES:
        raise KeyError(opcode)
    if opcode == roce.CNP_OPCODE:
        return (CNPPadding,)
    transport, operation = opcode & 0xE0, opcode & 0x1F
    headers = _EXTENSIONS.get(operation, ())
    if transport == UD:
        return (DETH, *headers)
    if transport == RD:
        return (RDETH, *headers) if operation in _RESPONSES else (RDETH, DETH, *headers)
    return headers


def _layer_behind(bth: Packet, depth: int) -> type[Packet]:
    headers = extension_headers(bth.opcode) if bth.opcode in OPCODE_NAMES else ()
    return headers[depth] if depth < len(headers) else conf.raw_layer


def payload_of(packet: Packet) -> bytes:
    """The payload of a dissected RoCE packet, without pad. Raises ValueError without a BTH."""
    bth = packet.getlayer(BTH)
    if bth is None:
        raise ValueError(f"{packet.summary()} has no BTH")
    load: bytes = bth[Raw].load if Raw in bth else b""
    return load[: len(load) - (bth.padcount or 0)]


def cnp(dest_qp: int) -> Packet:
    """BTH and padding of a congestion notification packet (IBTA annex A17.9.3)."""
    return BTH(opcode=roce.CNP_OPCODE, becn=1, dqpn=dest_qp) / CNPPadding()


def pfc(source_mac: str, pause_quanta: Mapping[int, int]) -> Packet:
    """An 802.1Qbb pause frame: priority -> pause in quanta of 512 bit times, 0 to resume."""
    fields: dict[str, int] = {}
    for priority, quanta in pause_quanta.items():
        fields[f"c{priority}_enabled"] = 1
        fields[f"c{priority}_pause_time"] = quanta
    ether = Ether(dst=MACControl.DEFAULT_DST_MAC, src=source_mac, type=0x8808)
    return ether / MACControlClassBasedFlowControl(**fields)


def _bind() -> None:
    """Put our BTH below UDP and GRH, ahead of whatever claims the source port."""
    bind_top_down(UDP, BTH, sport=DEFAULT_UDP_SOURCE_PORT, dport=ROCE_UDP_PORT, chksum=0)
    UDP.payload_guess.insert(0, ({"dport": ROCE_UDP_PORT}, BTH))
    GRH.payload_guess.insert(0, ({}, BTH))


_bind()
