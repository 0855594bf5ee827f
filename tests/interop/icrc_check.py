"""Checks the ICRC of every RoCEv2 frame of a capture, independently of the project's code.

Usage: python tests/interop/icrc_check.py FILE.pcap [FILE.pcapng ...]

Reads classic pcap of either byte order and pcapng itself, with nothing but struct and zlib. Prints
"N frames, B bad" per file and where the bad ones are. Exit status: 0 all good, 1 some bad,
2 unreadable file or no RoCEv2 frame at all.

Source of the rule: InfiniBand architecture specification, annex A17.3.3.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

ETHERNET = 1  # LINKTYPE_ETHERNET
ROCE_PORT = 4791
CLASSIC_MAGICS = (0xA1B2C3D4, 0xA1B23C4D)  # microseconds, nanoseconds
SECTION_HEADER, INTERFACE_DESCRIPTION, SIMPLE_PACKET, ENHANCED_PACKET = 0x0A0D0D0A, 1, 3, 6


class CaptureError(ValueError):
    """Not a capture that this tool reads."""


def frames(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Captured bytes and original length of every frame of a capture file."""
    if len(data) < 24:
        raise CaptureError("too short for a capture")
    for order in "<>":
        magic = struct.unpack_from(order + "I", data)[0]
        if magic in CLASSIC_MAGICS:
            return _classic(data, order)
        if magic == SECTION_HEADER and struct.unpack_from(order + "I", data, 8)[0] == 0x1A2B3C4D:
            return _next_generation(data, order)
    raise CaptureError("neither pcap nor pcapng")


def _classic(data: bytes, order: str) -> Iterator[tuple[bytes, int]]:
    _require_ethernet(struct.unpack_from(order + "I", data, 20)[0] & 0x0FFFFFFF)
    offset = 24
    while offset < len(data):
        if offset + 16 > len(data):
            raise CaptureError(f"cut off at byte {offset}")
        captured, original = struct.unpack_from(order + "8xII", data, offset)
        offset += 16
        if offset + captured > len(data):
            raise CaptureError(f"cut off at byte {offset}")
        yield data[offset : offset + captured], original
        offset += captured


def _next_generation(data: bytes, order: str) -> Iterator[tuple[bytes, int]]:
    offset = 0
    while offset + 12 <= len(data):
        kind, length = struct.unpack_from(order + "II", data, offset)
        if length < 12 or length % 4 or offset + length > len(data):
            raise CaptureError(f"cut off at byte {offset}")
        body = data[offset + 8 : offset + length - 4]
        if kind == INTERFACE_DESCRIPTION:
            _require_ethernet(struct.unpack_from(order + "H", body)[0])
        elif kind == ENHANCED_PACKET:
            captured, original = struct.unpack_from(order + "II", body, 12)
            yield body[20 : 20 + captured], original
        elif kind == SIMPLE_PACKET:
            original = struct.unpack_from(order + "I", body)[0]
            yield body[4 : 4 + original], original
        offset += length


def _require_ethernet(link_type: int) -> None:
    if link_type != ETHERNET:
        raise CaptureError(f"link type {link_type}; only Ethernet ({ETHERNET}) is read")


def roce_packet(frame: bytes) -> bytes | None:
    """The IP packet of a frame if it is RoCEv2, without Ethernet padding; None otherwise."""
    offset = 12
    while frame[offset : offset + 2] in (b"\x81\x00", b"\x88\xa8"):
        offset += 4
    ether_type = frame[offset : offset + 2]
    packet = frame[offset + 2 :]
    if ether_type == b"\x08\x00" and len(packet) >= 20:
        protocol, udp = packet[9], (packet[0] & 15) * 4
        length = struct.unpack_from("!H", packet, 2)[0]
    elif ether_type == b"\x86\xdd" and len(packet) >= 40:
        protocol, udp = packet[6], 40
        length = 40 + struct.unpack_from("!H", packet, 4)[0]
    else:
        return None
    if protocol != 17 or len(packet) < udp + 8:
        return None
    if struct.unpack_from("!H", packet, udp + 2)[0] != ROCE_PORT:
        return None
    return packet[:length]


def icrc_is_right(packet: bytes) -> bool:
    """Whether an IP packet, complete from the IP header on, ends with its ICRC."""
    udp = (packet[0] & 15) * 4 if packet[0] >> 4 == 4 else 40
    if len(packet) < udp + 8 + 12 + 4:
        return False
    ones = bytearray(packet)
    if packet[0] >> 4 == 4:
        ones[1] = ones[8] = ones[10] = ones[11] = 0xFF
    else:
        ones[0] |= 0x0F
        ones[1] = ones[2] = ones[3] = ones[7] = 0xFF
    ones[udp + 6] = ones[udp + 7] = ones[udp + 12] = 0xFF
    expected = zlib.crc32(bytes(ones[:-4]), zlib.crc32(b"\xff" * 8))
    return struct.unpack_from("<I", packet, len(packet) - 4)[0] == expected


def check(data: bytes) -> tuple[int, list[int]]:
    """Number of RoCEv2 frames in a capture, and the positions (from 1) of the bad ones."""
    count, bad = 0, []
    for number, (frame, original) in enumerate(frames(data), start=1):
        packet = roce_packet(frame)
        if packet is None:
            continue
        count += 1
        if len(frame) < original or not icrc_is_right(packet):
            bad.append(number)
    return count, bad


def main(paths: list[str]) -> int:
    """Check files and report; returns the exit status."""
    if not paths:
        print(__doc__, file=sys.stderr)
        return 2
    status = 0
    for path in paths:
        try:
            count, bad = check(Path(path).read_bytes())
        except (OSError, CaptureError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 2
        prefix = f"{path}: " if len(paths) > 1 else ""
        print(f"{prefix}{count} frames, {len(bad)} bad")
        if bad:
            print(f"{prefix}bad: {', '.join(map(str, bad[:20]))}", file=sys.stderr)
            status = 1
        if count == 0:
            print(f"{path}: no RoCEv2 frame", file=sys.stderr)
            status = max(status, 2)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
