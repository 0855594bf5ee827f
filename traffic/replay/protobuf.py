"""Reads the protobuf wire format: just what execution traces need, without generated code.

Encoding: protobuf.dev/programming-guides/encoding. A proto3 field of value zero is absent.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from traffic.replay.trace import TraceError

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
"""Wire types; 3 and 4 (groups) are of proto2 only."""

_VARINT_BYTES = 10
"""Longest varint: 64 bits in groups of 7."""

Value = int | bytes
"""A number (of wire types 0, 1 and 5, unsigned) or the bytes of wire type 2."""


def read_varint(data: bytes, offset: int) -> tuple[int, int]:
    """The unsigned number at an offset and the offset behind it. Raises TraceError."""
    value = 0
    for index in range(_VARINT_BYTES):
        if offset + index >= len(data):
            raise TraceError(f"offset {offset}: the data end within a varint")
        byte = data[offset + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if value >= 2**64:
                raise TraceError(f"offset {offset}: a varint of more than 64 bits")
            return value, offset + index + 1
    raise TraceError(f"offset {offset}: a varint of more than {_VARINT_BYTES} bytes")


def delimited(data: bytes) -> Iterator[bytes]:
    """The messages of a stream, each behind its length as a varint. Raises TraceError."""
    offset = 0
    while offset < len(data):
        message, offset = _bytes_at(data, offset)
        yield message


def fields(message: bytes) -> Iterator[tuple[int, int, Value]]:
    """(number, wire type, value) of every field in order. Raises TraceError."""
    offset = 0
    while offset < len(message):
        start = offset
        key, offset = read_varint(message, offset)
        number, wire_type = key >> 3, key & 7
        if number == 0:
            raise TraceError(f"offset {start}: field number 0")
        value: Value
        if wire_type == VARINT:
            value, offset = read_varint(message, offset)
        elif wire_type == LENGTH:
            value, offset = _bytes_at(message, offset)
        elif wire_type in (FIXED32, FIXED64):
            width = 4 if wire_type == FIXED32 else 8
            if offset + width > len(message):
                raise TraceError(f"offset {start}: the data end within field {number}")
            value = int.from_bytes(message[offset : offset + width], "little")
            offset += width
        else:
            raise TraceError(f"offset {start}: field {number} has wire type {wire_type}")
        yield number, wire_type, value


def packed_varints(data: bytes) -> list[int]:
    """The numbers of a packed repeated field. Raises TraceError."""
    values, offset = [], 0
    while offset < len(data):
        value, offset = read_varint(data, offset)
        values.append(value)
    return values


def signed(value: int) -> int:
    """The number behind an int32 or int64, which are sign-extended to 64 bits."""
    return value - 2**64 if value >= 2**63 else value


def zigzag(value: int) -> int:
    """The number behind a sint32 or sint64."""
    return (value >> 1) ^ -(value & 1)


def double(value: int) -> float:
    """The number behind a double's bits."""
    return float(struct.unpack("<d", value.to_bytes(8, "little"))[0])


def single(value: int) -> float:
    """The number behind a float's bits."""
    return float(struct.unpack("<f", value.to_bytes(4, "little"))[0])


def _bytes_at(data: bytes, offset: int) -> tuple[bytes, int]:
    length, start = read_varint(data, offset)
    if start + length > len(data):
        raise TraceError(f"offset {offset}: {length} bytes announced, {len(data) - start} are left")
    return data[start : start + length], start + length
