"""Read a file that somebody else may have put there: no pipe or device that waits, and no more than a limit.

Who may create a name may also make it a link, a FIFO, a folder, ``/dev/zero`` or a file that grows while it is read.
This is the one place that opens such names.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class UnreadableFileError(OSError):
    """A name that is no regular file, or a file that is too long or no text; the message names it and says why."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def open_regular(path: Path, *, follow_links: bool = False) -> BinaryIO:
    """Open a regular file for reading, without waiting.

    Args:
        path: the file.
        follow_links: whether the file may be a link, as where we act with the rights of whoever made it.

    Raises:
        OSError: it does not open, or is not a regular file.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ENXIO or (error.errno == errno.ELOOP and not follow_links):
            raise _refusal(path, _kind(path)) from error  # a socket, or a link
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise _refusal(path, KINDS.get(stat.S_IFMT(mode), "a special file"))
    return os.fdopen(descriptor, "rb")


def read(path: Path, *, limit_bytes: int, follow_links: bool = False, tail: bool = False) -> bytes:
    """Return the file's content.

    Args:
        path: the file.
        limit_bytes: largest size that is read; a file that grows meanwhile is read so far.
        follow_links: as in ``open_regular``.
        tail: return the end of a file that is longer. Default: refuse it.

    Raises:
        OSError: it does not open, is not a regular file, or is too long.
    """
    with open_regular(path, follow_links=follow_links) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit_bytes:
            if not tail:
                reason = f"has {size} bytes, more than {limit_bytes}"
                raise UnreadableFileError(errno.EFBIG, reason, str(path))
            file.seek(size - limit_bytes)
        return file.read(limit_bytes)


def read_text(path: Path, *, limit_bytes: int, follow_links: bool = False) -> str:
    """Return the text of a file in UTF-8; arguments and errors are those of ``read``.

    Raises:
        UnreadableFileError: it is not UTF-8; the message has the byte and its place.
    """
    content = read(path, limit_bytes=limit_bytes, follow_links=follow_links)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        reason = f"not UTF-8: byte 0x{content[error.start]:02x} at {error.start}"
        raise UnreadableFileError(errno.EILSEQ, reason, str(path)) from error


def _kind(path: Path) -> str:
    try:
        return KINDS.get(stat.S_IFMT(os.lstat(path).st_mode), "a special file")
    except OSError:  # it has gone
        return "a special file"


def _refusal(path: Path, kind: str) -> UnreadableFileError:
    return UnreadableFileError(errno.EINVAL, f"is {kind}, not a regular file", str(path))
