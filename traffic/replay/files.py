"""Reads trace files, packed or not, with a bound on what they may unfold to."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path

from testbed.plain_file import PlainFileError, read_plain_file
from traffic.replay.trace import TraceError

FILE_LIMIT = 2**30
"""Bytes of an unpacked trace; more is a slip or a decompression bomb."""

_GZIP_MAGIC = b"\x1f\x8b"


def unpacked(data: bytes) -> bytes:
    """The data, gunzipped if they begin as gzip does. Raises TraceError."""
    if not data.startswith(_GZIP_MAGIC):
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            plain = file.read(FILE_LIMIT + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"gzip: {error}") from error
    if len(plain) > FILE_LIMIT:
        raise TraceError(f"gzip: unpacks to more than {FILE_LIMIT} bytes")
    return plain


def read_file(path: Path) -> bytes:
    """A file's contents, unpacked. Raises TraceError that names it."""
    try:
        return unpacked(read_plain_file(path, FILE_LIMIT))
    except (PlainFileError, TraceError) as error:
        raise TraceError(f"{path}: {error}") from error


def decoded(data: bytes) -> str:
    """The text of a file. Raises TraceError unless it is UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TraceError(f"no text: byte {error.start} is no UTF-8") from error
