"""Read a file that a user may have put there: never a pipe or a device that waits, never more than a limit."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def read(path: Path, *, limit_bytes: int, follow_links: bool = False, tail: bool = False) -> bytes:
    """Return the file's content.

    Args:
        path: the file.
        limit_bytes: of what is read.
        follow_links: whether the file may be a link, as where we act as its owner.
        tail: return the end of a file that is longer. Default: refuse it.

    Raises:
        OSError: it does not open, is not a regular file, or is too long.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW)
    with os.fdopen(os.open(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is not a regular file")
        if status.st_size > limit_bytes:
            if not tail:
                raise OSError(f"{path} has {status.st_size} bytes, more than {limit_bytes}")
            file.seek(status.st_size - limit_bytes)
        return file.read(limit_bytes)
