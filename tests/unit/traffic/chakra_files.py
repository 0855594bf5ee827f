"""A small encoder of Chakra execution traces, independent of the reader, for tests."""

from __future__ import annotations

COMP, SEND, RECV, COLL = 4, 5, 6, 7


def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field, value):
    """A varint field, absent if zero as proto3 has it."""
    return varint(field << 3) + varint(value) if value else b""


def text(field, value):
    data = value if isinstance(value, bytes) else value.encode()
    return varint(field << 3 | 2) + varint(len(data)) + data


def attribute(name, value, *, value_field=9):
    """AttributeProto: int64_val unless another field is named; zero is absent."""
    content = text(29, value) if isinstance(value, str) else number(value_field, value)
    return text(10, text(1, name) + content)


def node(node_id, kind, name="", *, duration=0, deps=(), ctrl_deps=(), packed=True, **attributes):
    message = number(1, node_id) + (text(2, name) if name else b"") + number(3, kind)
    for field, ids in ((4, ctrl_deps), (5, deps)):
        if ids and packed:
            message += text(field, b"".join(varint(i) for i in ids))
        else:
            message += b"".join(varint(field << 3) + varint(i) for i in ids)
    message += number(7, duration)
    for key, value in attributes.items():
        message += attribute(key, value)
    return message


def et(*nodes, metadata=None):
    """A file: GlobalMetadata and the nodes, each behind its length."""
    first = text(1, "0.0.4") if metadata is None else metadata
    return b"".join(varint(len(message)) + message for message in (first, *nodes))
