"""The fast path and scapy agree, byte for byte and field for field."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from scapy.utils import rdpcap

from tests.interop.captures import CAPTURES
from traffic import codec
from traffic.packets import (
    AETH,
    BTH,
    OPCODE_NAMES,
    OPCODES,
    RETH,
    ImmDt,
    cnp,
    extension_headers,
    payload_of,
)

SOURCE_MAC, DEST_MAC = "02:00:00:00:00:01", "02:00:00:00:01:00"

# What the NIC model sends: SEND and RDMA WRITE over RC and UC, and acknowledgements.
EMITTED = sorted(
    opcode
    for name, opcode in OPCODES.items()
    if name.startswith(("RC_SEND", "RC_RDMA_WRITE", "UC_SEND", "UC_RDMA_WRITE", "RC_ACKNOWLEDGE"))
    and "INVALIDATE" not in name
)


@st.composite
def headers(draw, opcode):
    """The extension headers of an opcode, with any values."""
    made = []
    for header in extension_headers(opcode):
        values = {
            field.name: draw(st.integers(0, 2 ** round(field.sz * 8) - 1))
            for field in header.fields_desc
        }
        made.append(header(**values))
    return made


@st.composite
def packets(draw):
    opcode = draw(st.sampled_from(EMITTED))
    return {
        "opcode": opcode,
        "headers": draw(headers(opcode)),
        "payload": draw(st.binary(max_size=70)) if opcode != OPCODES["RC_ACKNOWLEDGE"] else b"",
        "dest_qp": draw(st.integers(0, 0xFFFFFF)),
        "psn": draw(st.integers(0, 0xFFFFFF)),
        "ackreq": draw(st.integers(0, 1)),
        "solicited": draw(st.integers(0, 1)),
        "becn": draw(st.integers(0, 1)),
        "sport": draw(st.integers(49152, 65535)),
        "tos": draw(st.integers(0, 255)),
        "ttl": draw(st.integers(1, 255)),
    }


def template(case, max_body=200):
    return codec.FrameTemplate(
        source_mac=SOURCE_MAC,
        dest_mac=DEST_MAC,
        source_ip="10.0.0.1",
        dest_ip="10.255.1.2",
        source_port=case["sport"],
        dest_qp=case["dest_qp"],
        tos=case["tos"],
        ttl=case["ttl"],
        max_body=max_body,
    )


def stamp(made, case):
    return bytes(
        made.stamp(
            case["opcode"],
            case["psn"] | (codec.ACK_REQUEST if case["ackreq"] else 0),
            b"".join(header.build() for header in case["headers"]),
            case["payload"],
            solicited=bool(case["solicited"]),
            becn=bool(case["becn"]),
        )
    )


def scapy_frame(case):
    network = IP(
        src="10.0.0.1", dst="10.255.1.2", id=0, flags="DF", tos=case["tos"], ttl=case["ttl"]
    )
    packet = Ether(src=SOURCE_MAC, dst=DEST_MAC) / network / UDP(sport=case["sport"])
    packet /= BTH(
        opcode=case["opcode"],
        solicited=case["solicited"],
        becn=case["becn"],
        dqpn=case["dest_qp"],
        ackreq=case["ackreq"],
        psn=case["psn"],
    )
    for header in case["headers"]:
        packet /= header
    return bytes(packet / Raw(case["payload"]) if case["payload"] else packet)


def assert_same_fields(parsed, packet):
    """A packet parsed by the codec holds what scapy dissects."""
    bth = packet[BTH]
    for ours, theirs in [
        (parsed.opcode, bth.opcode),
        (parsed.dest_qp, bth.dqpn),
        (parsed.psn, bth.psn),
        (parsed.ack_request, bth.ackreq),
        (parsed.solicited, bth.solicited),
        (parsed.becn, bth.becn),
        (parsed.source_ip, codec.ipv4_int(packet[IP].src)),
        (parsed.dest_ip, codec.ipv4_int(packet[IP].dst)),
        (parsed.source_port, packet[UDP].sport),
        (parsed.ttl, packet[IP].ttl),
        (parsed.ecn, packet[IP].tos & 3),
        (bytes(parsed.payload), payload_of(packet)),
    ]:
        assert ours == theirs
    reth, aeth, immediate = bth.getlayer(RETH), bth.getlayer(AETH), bth.getlayer(ImmDt)
    if reth is not None and not OPCODE_NAMES[bth.opcode].endswith("FLUSH"):
        assert (parsed.virtual_address, parsed.rkey, parsed.dma_length) == (
            reth.va,
            reth.rkey,
            reth.dmalen,
        )
    if aeth is not None:
        assert (parsed.syndrome, parsed.msn) == (aeth.syndrome, aeth.msn)
    if immediate is not None and not OPCODE_NAMES[bth.opcode].startswith("UD"):
        assert parsed.immediate == immediate.immediate


@given(packets())
def test_frames_are_the_same_byte_for_byte(case):
    frame = stamp(template(case), case)
    assert frame == scapy_frame(case)
    assert_same_fields(codec.parse(frame), Ether(frame))


@given(st.lists(packets(), min_size=2, max_size=6))
def test_a_reused_template_leaves_nothing_behind(cases):
    made = template(cases[0])
    shared = {name: cases[0][name] for name in ("dest_qp", "sport", "tos", "ttl")}
    for case in cases:
        assert stamp(made, case | shared) == scapy_frame(case | shared)


@given(packets(), st.integers(49152, 65535))
def test_a_template_whose_source_port_changes(case, port):
    made = template(case)
    stamp(made, case)
    made.source_port = port
    assert stamp(made, case) == scapy_frame(case | {"sport": port})


@given(st.integers(0, 0xFFFFFF))
def test_cnp(dest_qp):
    case = {"dest_qp": dest_qp, "sport": 49152, "tos": 0, "ttl": 64}
    frame = bytes(template(case).stamp(codec_cnp(), 0, bytes(16), b"", becn=True))
    network = IP(src="10.0.0.1", dst="10.255.1.2", id=0, flags="DF")
    assert frame == bytes(Ether(src=SOURCE_MAC, dst=DEST_MAC) / network / UDP() / cnp(dest_qp))
    assert codec.parse(frame).becn


def codec_cnp():
    return OPCODES["CNP"]


@given(packets(), st.integers(0, 4095), st.integers(0, 7))
@example({"opcode": 4, "headers": [], "payload": b"", "dest_qp": 0, "psn": 0, "ackreq": 0,
          "solicited": 0, "becn": 0, "sport": 49152, "tos": 0, "ttl": 1}, 46, 6)  # fmt: skip
def test_every_flipped_bit_is_masked_or_found(case, byte, bit):
    """What the codec still accepts after a bit error is exactly what the ICRC leaves out."""
    frame = bytearray(stamp(template(case), case))
    offset = 34 + byte % (len(frame) - 34)
    frame[offset] ^= 1 << bit
    variant = offset in (40, 41, 46)  # UDP checksum; FECN, BECN and reserved bits
    try:
        accepted = codec.parse(bytes(frame)) is not None
    except codec.CodecError:
        accepted = False
    assert accepted == variant


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_captures_parse_alike(path):
    for packet in rdpcap(str(path)):
        parsed = codec.parse(packet.original)
        assert parsed is not None
        assert_same_fields(parsed, packet)


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_captures_have_the_codecs_icrc(path):
    for packet in rdpcap(str(path)):
        wire = packet.original
        assert codec.compute_icrc(wire[14:-4]) == int.from_bytes(wire[-4:], "little")
