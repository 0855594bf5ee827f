"""Files that a scenario names: a device, a pipe or one of a silly size is refused, not read.

Nothing here imports from the rest of the project.
"""

from __future__ import annotations

import stat
from pathlib import Path


class PlainFileError(ValueError):
    """The file is none, or is too large, or cannot be read; the message does not name it."""


def read_plain_file(path: Path, limit: int) -> bytes:
    """The contents of a plain file of at most ``limit`` bytes. Raises PlainFileError."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise PlainFileError("is no file")
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except PlainFileError:
        raise
    except OSError as error:
        raise PlainFileError(f"cannot be read: {error.strerror}") from error
    except ValueError as error:  # a name with a NUL byte
        raise PlainFileError(f"cannot be read: {error}") from error
    if len(content) > limit:
        raise PlainFileError(f"is larger than {limit // 2**20} MiB")
    return content
