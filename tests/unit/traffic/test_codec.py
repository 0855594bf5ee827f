"""The codec against vectors of other implementations, and against arbitrary bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traffic.codec import (
    ACK_REQUEST,
    CodecError,
    FrameTemplate,
    IcrcError,
    MalformedPacketError,
    compute_icrc,
    ipv4_checksum,
    ipv4_int,
    mac_bytes,
    parse,
)
from traffic.opcodes import CNP, LAYOUTS, Layout, Operation

ETHERNET = bytes.fromhex("020000000002020000000001" + "0800")

# From an independent encoder, and recomputed by scapy: 10.0.0.1:49152 -> 10.0.0.2:4791, TOS 0x68,
# TTL 64, identification 1, don't fragment, UDP checksum 0. From the IP header on.
WRITE_ONLY = (
    "45680044000140004011263e0a0000010a000002c00012b7003000000a00ffff0000001180000001"
    "000000000000100000001234000000080001020304050607a04adafb"
)
WRITE_ONLY_IMM = (
    "4568004000014000401126420a0000010a000002c00012b7002c00000b00ffff0000001180000002"
    "00000000000000000000000000000000deadbeefa9ec3eb0"
)
SEND_ONLY = (
    "4568003000014000401126520a0000010a000002c00012b7001c00000410ffff0000001180000003"
    "61626300e044344b"
)
ACK = (
    "4568003000014000401126520a0000010a000002c00012b7001c00001100ffff0000001200000001"
    "1f0000014b123a7a"
)
NAK = (
    "4568003000014000401126520a0000010a000002c00012b7001c00001100ffff0000001200000005"
    "600000014104e6bc"
)
RNR_NAK = (
    "4568003000014000401126520a0000010a000002c00012b7001c00001100ffff0000001200000005"
    "2c000001c4e3246d"
)
CNP_FRAME = (
    "4568003c00014000401126460a0000010a000002c00012b7002800008100ffff4000001200000000"
    "00000000000000000000000000000000e99ce797"
)
KNOWN = [WRITE_ONLY, WRITE_ONLY_IMM, SEND_ONLY, ACK, NAK, RNR_NAK, CNP_FRAME]

VECTORS = json.loads((Path(__file__).parents[2] / "data" / "icrc_vectors.json").read_text())


def frame(vector: str) -> bytes:
    return ETHERNET + bytes.fromhex(vector)


def template(dest_qp: int, **kwargs: int) -> FrameTemplate:
    arguments = {"source_port": 49152, "tos": 0x68, "max_body": 4200} | kwargs
    return FrameTemplate(
        source_mac="02:00:00:00:00:01",
        dest_mac="02:00:00:00:00:02",
        source_ip="10.0.0.1",
        dest_ip="10.0.0.2",
        dest_qp=dest_qp,
        **arguments,
    )


def with_identification_1(stamped: bytes) -> bytes:
    """The same packet as the vectors have it: identification 1, hence another checksum and ICRC."""
    packet = bytearray(stamped[14:-4])
    packet[4:6] = b"\x00\x01"
    packet[10:12] = bytes(2)
    packet[10:12] = ipv4_checksum(packet[:20]).to_bytes(2, "big")
    return stamped[:14] + bytes(packet) + compute_icrc(bytes(packet)).to_bytes(4, "little")


# parsing


def test_write_only():
    packet = parse(frame(WRITE_ONLY))
    assert packet is not None
    assert packet.opcode == Operation.RDMA_WRITE_ONLY
    assert (packet.dest_qp, packet.psn, packet.ack_request) == (0x11, 1, True)
    assert (packet.virtual_address, packet.rkey, packet.dma_length) == (0x1000, 0x1234, 8)
    assert bytes(packet.payload) == bytes(range(8))
    assert (packet.source_ip, packet.dest_ip) == (ipv4_int("10.0.0.1"), ipv4_int("10.0.0.2"))
    assert (packet.source_port, packet.ttl, packet.ecn) == (49152, 64, 0)
    assert not packet.solicited


def test_write_only_with_immediate():
    packet = parse(frame(WRITE_ONLY_IMM))
    assert packet is not None
    assert (packet.immediate, packet.dma_length, len(packet.payload)) == (0xDEADBEEF, 0, 0)


def test_pad_is_not_payload():
    packet = parse(frame(SEND_ONLY))
    assert packet is not None
    assert bytes(packet.payload) == b"abc"


@pytest.mark.parametrize(
    ("vector", "syndrome", "psn"), [(ACK, 0x1F, 1), (NAK, 0x60, 5), (RNR_NAK, 0x2C, 5)]
)
def test_acknowledge(vector, syndrome, psn):
    packet = parse(frame(vector))
    assert packet is not None
    assert (packet.opcode, packet.syndrome) == (Operation.ACKNOWLEDGE, syndrome)
    assert (packet.psn, packet.msn, packet.ack_request) == (psn, 1, False)


def test_cnp():
    packet = parse(frame(CNP_FRAME))
    assert packet is not None
    assert (packet.opcode, packet.becn, packet.dest_qp) == (CNP, True, 0x12)
    assert bytes(packet.payload) == bytes(16)


@pytest.mark.parametrize("vector", VECTORS, ids=[v["name"] for v in VECTORS])
def test_icrc_of_other_implementations(vector):
    data = bytes.fromhex(vector["frame_hex"])
    packet = data[14:] if vector["starts_at"] == "ethernet" else data
    matches = compute_icrc(packet[:-4]) == int.from_bytes(packet[-4:], "little")
    assert matches == vector["expect_valid"]


@pytest.mark.parametrize(
    "name", ["cnp_connectx4lx_capture", "rc_write_only_16B_driver_capture", "uc_send_only_v4_scapy"]
)
def test_frames_of_other_implementations_parse(name):
    (vector,) = (v for v in VECTORS if v["name"] == name)
    assert parse(bytes.fromhex(vector["frame_hex"])) is not None


# what a switch does and does not do to a packet


@pytest.mark.parametrize("vector", KNOWN)
def test_switches_may_change_tos_ttl_checksums_and_congestion_bits(vector):
    changed = bytearray(frame(vector))
    changed[15] ^= 0x6B
    changed[22] -= 5
    changed[24:26] = b"\x12\x34"
    changed[40:42] = b"\x56\x78"
    changed[46] ^= 0xC0
    packet = parse(changed)
    assert packet is not None
    assert packet.ecn == 3
    assert packet.ttl == 59


@given(st.sampled_from(KNOWN), st.data())
def test_any_other_damage_is_noticed(vector, data):
    damaged = bytearray(frame(vector))
    variant = {15, 22, 24, 25, 40, 41, 46}
    position = data.draw(st.integers(14, len(damaged) - 1).filter(lambda p: p not in variant))
    damaged[position] ^= data.draw(st.integers(1, 255))
    try:
        packet = parse(damaged)
    except CodecError:
        return
    assert packet is None, "damaged, and yet taken for valid"


def test_damaged_payload_raises_icrc_error():
    damaged = bytearray(frame(WRITE_ONLY))
    damaged[-6] ^= 1
    with pytest.raises(IcrcError):
        parse(damaged)
    assert parse(damaged, check_icrc=False) is not None


def test_ethernet_padding_is_ignored():
    empty = bytes(template(0x11).stamp(0x24, 1, b"", b""))
    assert len(empty) == 58
    packet = parse(empty + bytes(2))
    assert packet is not None
    assert len(packet.payload) == 0


# what is not RoCEv2


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        (12, b"\x08\x06"),
        (12, b"\x86\xdd"),
        (14, b"\x65"),
        (23, b"\x06"),
        (36, b"\x12\xb8"),
        (20, b"\x20"),
    ],
    ids=["arp", "ipv6", "version-6", "tcp", "other-port", "fragment"],
)
def test_other_traffic_is_none(offset, value):
    other = bytearray(frame(WRITE_ONLY))
    other[offset : offset + len(value)] = value
    assert parse(other) is None


@pytest.mark.parametrize("length", [0, 13, 14, 33, 41])
def test_what_is_too_short_to_tell_is_none(length):
    assert parse(frame(WRITE_ONLY)[:length]) is None


@pytest.mark.parametrize("length", [42, 50, 57, 60, 81])
def test_truncated_packet_is_malformed(length):
    with pytest.raises(MalformedPacketError):
        parse(frame(WRITE_ONLY)[:length])


def test_ip_options_are_malformed():
    options = bytearray(frame(WRITE_ONLY))
    options[14] = 0x46
    options[38:42] = b"\xc0\x00\x12\xb7"  # the ports, behind 4 bytes of options
    options[40:42] = b"\x12\xb7"
    with pytest.raises(MalformedPacketError):
        parse(options)


@pytest.mark.parametrize("opcode", [i for i in range(256) if LAYOUTS[i][0] is Layout.UNKNOWN])
def test_unknown_opcode_is_malformed(opcode):
    unknown = bytes(template(0x11).stamp(opcode, 1, b"", b"12345678"))
    with pytest.raises(MalformedPacketError):
        parse(unknown)


@pytest.mark.parametrize("opcode", [i for i in range(256) if LAYOUTS[i][1] > 0])
def test_missing_extension_headers_are_malformed(opcode):
    short = bytes(template(0x11).stamp(opcode, 1, b"", bytes(LAYOUTS[opcode][1] - 4)))
    with pytest.raises(MalformedPacketError):
        parse(short)


@settings(max_examples=300)
@given(st.binary(max_size=120), st.booleans())
def test_arbitrary_bytes_raise_nothing_else(data, check_icrc):
    try:
        parse(data, check_icrc=check_icrc)
    except CodecError:
        return


@settings(max_examples=500)
@given(st.sampled_from(KNOWN), st.data())
def test_arbitrary_damage_raises_nothing_else(vector, data):
    mangled = bytearray(frame(vector))
    for _ in range(data.draw(st.integers(1, 4))):
        mangled[data.draw(st.integers(0, len(mangled) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(mangled)))
    try:
        packet = parse(memoryview(mangled)[:cut], check_icrc=False)
    except CodecError:
        return
    if packet is not None:
        assert len(packet.payload) <= cut - 58


def test_unknown_header_version_is_malformed():
    versioned = bytearray(frame(WRITE_ONLY))
    versioned[43] |= 0x01
    with pytest.raises(MalformedPacketError):
        parse(versioned, check_icrc=False)


# stamping


def test_stamped_frames_equal_the_vectors():
    qp11, qp12 = template(0x11), template(0x12)
    reth = bytes.fromhex("00000000000010000000123400000008")
    stamped = [
        bytes(qp11.stamp(0x0A, 1 | ACK_REQUEST, reth, bytes(range(8)))),
        bytes(qp11.stamp(0x0B, 2 | ACK_REQUEST, bytes(16) + b"\xde\xad\xbe\xef", b"")),
        bytes(qp11.stamp(0x04, 3 | ACK_REQUEST, b"", b"abc")),
        bytes(qp12.stamp(0x11, 1, b"\x1f\x00\x00\x01", b"")),
        bytes(qp12.stamp(0x11, 5, b"\x60\x00\x00\x01", b"")),
        bytes(qp12.stamp(0x11, 5, b"\x2c\x00\x00\x01", b"")),
        bytes(qp12.stamp(CNP, 0, b"", bytes(16), becn=True)),
    ]
    assert [with_identification_1(f).hex() for f in stamped] == [frame(v).hex() for v in KNOWN]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0x00, 0x01, 0x04, 0x06, 0x07, 0x0A, 0x11, 0x25, 0x2B]),
            st.integers(0, (1 << 24) - 1),
            st.binary(max_size=200),
            st.booleans(),
            st.booleans(),
            st.integers(49152, 65535),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_what_is_stamped_is_parsed_again(packets):
    """One template, many packets: nothing of an earlier one, longer or shorter, may remain."""
    stamper = template(0xABCDEF, tos=0x6A)
    for opcode, psn, payload, ack_request, solicited, port in packets:
        extension = bytes(range(1, LAYOUTS[opcode][1] + 1))
        stamper.source_port = port
        word = psn | (ACK_REQUEST if ack_request else 0)
        stamped = bytes(stamper.stamp(opcode, word, extension, payload, solicited=solicited))
        assert compute_icrc(stamped[14:-4]) == int.from_bytes(stamped[-4:], "little")
        assert ipv4_checksum(stamped[14:34]) == 0
        packet = parse(stamped)
        assert packet is not None
        assert (packet.opcode, packet.psn, packet.dest_qp) == (opcode, psn, 0xABCDEF)
        assert (packet.ack_request, packet.solicited) == (ack_request, solicited)
        assert (packet.source_port, packet.ecn) == (port, 2)
        assert bytes(packet.payload) == payload


@given(
    st.lists(
        st.tuples(st.sampled_from([49152, 50000, 65535]), st.sampled_from([0, 8, 64])), min_size=2
    )
)
def test_ports_in_turn_give_the_frames_that_a_template_of_each_port_gives(packets):
    cycling = template(0x11)
    for psn, (port, length) in enumerate(packets):
        cycling.source_port = port
        assert cycling.source_port == port
        stamped = bytes(cycling.stamp(0x04, psn, b"", bytes(length)))
        assert stamped == bytes(
            template(0x11, source_port=port).stamp(0x04, psn, b"", bytes(length))
        )


def test_a_migrated_sender_sets_migreq_and_another_next_hop():
    """MigReq is bit 6 of the BTH's second byte, covered by the ICRC; MAC addresses are not."""
    stamper = template(0x11)
    before = bytes(stamper.stamp(0x04, 1, b"", b"abcd"))
    stamper.migrated, stamper.dest_mac = True, "02:01:00:00:00:07"
    assert (stamper.migrated, stamper.dest_mac) == (True, "02:01:00:00:00:07")
    after = bytes(stamper.stamp(0x04, 1, b"", b"abcd"))
    assert after[:6] == bytes.fromhex("020100000007")
    assert after[43] == before[43] | 0x40
    assert compute_icrc(after[14:-4]) == int.from_bytes(after[-4:], "little")
    assert parse(after) is not None
    differing = {i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b}
    assert differing - set(range(6)) - set(range(len(after) - 4, len(after))) == {43}


def test_pad_bytes_are_zero_whatever_was_there_before():
    stamper = template(0x11)
    stamper.stamp(0x04, 1, b"", b"\xff" * 8)
    assert bytes(stamper.stamp(0x04, 2, b"", b"\xff" * 5))[54:62] == b"\xff" * 5 + bytes(3)


def test_detached_payload_survives_the_buffer():
    buffer = bytearray(frame(WRITE_ONLY))
    packet = parse(buffer)
    assert packet is not None
    packet.detach()
    buffer[:] = bytes(len(buffer))
    assert bytes(packet.payload) == bytes(range(8))


# addresses


@pytest.mark.parametrize("text", ["", "02:00", "02:00:00:00:00:0g", "0200:00:00:00:00:1", "02-00"])
def test_bad_mac_address(text):
    with pytest.raises(ValueError):
        mac_bytes(text)


def test_addresses():
    assert mac_bytes("02:00:00:00:0a:ff") == b"\x02\x00\x00\x00\x0a\xff"
    assert ipv4_int("10.0.0.1") == 0x0A000001
