"""Every frame of every capture decodes completely, and is rebuilt byte for byte from its fields."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw
from scapy.utils import rdpcap

from tests.interop.captures import CAPTURES, VECTORS
from traffic.packets import BTH, OPCODE_NAMES, RETH, extension_headers, payload_of

# Fields that the layers must be able to compute again from everything else.
COMPUTED = {
    "Ethernet": set(),
    "IP": {"ihl", "len", "chksum"},
    "UDP": {"len"},
    "BTH": {"padcount", "icrc"},
}


def layers(packet: Packet) -> Iterator[Packet]:
    while packet:
        yield packet
        packet = packet.payload


def rebuild(packet: Packet) -> bytes:
    """A new frame from the field values, without anything that can be computed."""
    made = None
    for layer in layers(packet):
        if isinstance(layer, Raw):
            fresh = Raw(payload_of(packet))
        else:
            given = {k: v for k, v in layer.fields.items() if k not in COMPUTED.get(layer.name, ())}
            fresh = type(layer)(**given)
        made = fresh if made is None else made / fresh
    return bytes(made)


@pytest.fixture(scope="module", params=CAPTURES, ids=lambda path: path.stem)
def frames(request):
    return list(rdpcap(str(request.param)))


def test_there_are_captures():
    assert len(CAPTURES) == 32


def test_all_headers_are_known(frames):
    assert frames
    for frame in frames:
        bth = frame[BTH]
        assert bth.opcode in OPCODE_NAMES
        expected = [Ether, IP, UDP, BTH, *extension_headers(bth.opcode)]
        found = [type(layer) for layer in layers(frame) if not isinstance(layer, Raw)]
        assert found == expected


def test_lengths_agree(frames):
    for frame in frames:
        bth = frame[BTH]
        assert len(frame) == 14 + frame[IP].len
        assert frame[IP].len == 20 + frame[UDP].len
        headers = sum(len(header().build()) for header in extension_headers(bth.opcode))
        assert frame[UDP].len == 8 + 12 + headers + len(payload_of(frame)) + bth.padcount + 4
        if OPCODE_NAMES[bth.opcode].endswith("ONLY") and RETH in frame:
            assert frame[RETH].dmalen == len(payload_of(frame))


def test_every_frame_is_rebuilt_byte_for_byte(frames):
    for frame in frames:
        assert rebuild(frame) == frame.original


def test_icrc_is_right_and_notices_a_flipped_bit(frames):
    for frame in frames:
        wire = frame.original[42:]
        assert frame[BTH].compute_icrc(wire) == wire[-4:]
        damaged = bytearray(frame.original)
        damaged[-5] ^= 1
        assert Ether(bytes(damaged))[BTH].compute_icrc(bytes(damaged[42:])) != wire[-4:]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_icrc_vectors(vector):
    outer = Ether if vector["starts_at"] == "ethernet" else IP
    packet = outer(bytes.fromhex(vector["frame_hex"]))
    if BTH not in packet:
        assert not vector["expect_valid"]
        return
    computed = packet[BTH].compute_icrc(bytes(packet[BTH]))
    assert (computed.hex() == vector["icrc_wire_bytes"]) == vector["expect_valid"]
