"""Reads trace files, packed or not, with a bound on what they may unfold to."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path

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
        if path.stat().st_size > FILE_LIMIT:
            raise TraceError(f"{path}: more than {FILE_LIMIT} bytes")
        return unpacked(path.read_bytes())
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    except TraceError as error:
        message = str(error)
        raise error if str(path) in message else TraceError(f"{path}: {message}") from error


def decoded(data: bytes) -> str:
    """The text of a file. Raises TraceError unless it is UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TraceError(f"no text: byte {error.start} is no UTF-8") from error
