"""Write files that readers never see half-written: whole under a temporary name beside the file, then renamed.

A killed writer leaves the old file, and two writers never mix.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Iterator, Tuple

from podwright_common import regular_file
from podwright_common.file_lock import try_lock

# What opening a name for writing says of links, pipes, folders, and files of other people.
NO_FILE_OF_OURS = {errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EACCES, errno.EPERM}


def write_file(path: Path, content: str | bytes, *, mode: int = 0o644, uid: int = -1, gid: int = -1) -> bool:
    """Make ``path`` a file of this content, mode and owner, unless it is one already.

    Args:
        path: its folder is made if need be.
        content: text is written as UTF-8.
        mode: permissions.
        uid: the owner. Default: whoever runs this.
        gid: the group. Default: as the folder gives it to new files.

    Returns:
        Whether anything had to be changed.
    """
    data = content.encode() if isinstance(content, str) else content
    if path.is_file() and path.stat().st_size == len(data) and _content(path, len(data)) == data:
        status = path.stat()
        if (status.st_mode & 0o7777, status.st_uid) == (mode, os.geteuid() if uid == -1 else uid):
            return False
    with new_file(path, mode=mode, uid=uid, gid=gid) as file:
        file.write(data)
    return True


@contextmanager
def new_file(path: Path, *, mode: int | None = None, uid: int = -1, gid: int = -1) -> Iterator[BinaryIO]:
    """Open a file that becomes ``path`` after the block, durably; if the block fails, ``path`` stays as it was.

    Args:
        path: its folder is made if need be. A link is replaced, not followed.
        mode: permissions. Default: as the umask gives them to new files.
        uid: the owner. Default: whoever runs this.
        gid: the group. Default: as the folder gives it to new files.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, descriptor = _create_random(path, 0o666) if mode is None else _create_beside(path)
    with os.fdopen(descriptor, "wb") as file:  # closed last: until then it is locked
        try:
            yield file
            file.flush()
            if mode is not None:
                os.fchmod(descriptor, mode)
            if (uid, gid) != (-1, -1):
                os.fchown(descriptor, uid, gid)
            os.fsync(descriptor)
            temporary.replace(path)
        except BaseException:  # a signal too: no half file stays
            temporary.unlink(missing_ok=True)
            raise
    sync_folder(path.parent)


def rename_durably(temporary: Path, path: Path) -> Path:
    """Give a file that another program wrote its final name, so that file and name outlive a loss of power."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)
    return path


def replace_link(path: Path, target: str | Path) -> None:
    """Make ``path`` a link to ``target`` by a rename, so that the name never is missing."""
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}")
    temporary.unlink(missing_ok=True)  # A killed process may have left it.
    temporary.symlink_to(target)
    temporary.replace(path)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder outlive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _content(path: Path, limit_bytes: int) -> bytes:
    """Return a file's content; empty if it has just become something else."""
    try:
        return regular_file.read(path, limit_bytes=limit_bytes, follow_links=True)
    except OSError:
        return b""


def _create_beside(path: Path) -> Tuple[Path, int]:
    """Create an empty private file with a unique name beside ``path``, and open it.

    Its name is this host's, so that what a killed writer left goes without a search. Whoever writes it holds its flock:
    a second writer, and a host where somebody else's file has that name, take a random one.
    """
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in NO_FILE_OF_OURS:
            return _create_random(path, 0o600)
        raise
    with suppress(OSError):  # renamed, not to be removed, or a file system without locks
        if try_lock(descriptor):
            status = os.fstat(descriptor)
            if os.path.samestat(status, os.lstat(temporary)):  # Its writer may have renamed it since it was opened.
                if (status.st_size, status.st_mode, status.st_uid, status.st_nlink) == _fresh():
                    return temporary, descriptor
                temporary.unlink()
    os.close(descriptor)
    return _create_random(path, 0o600)


def _fresh() -> Tuple[int, int, int, int]:
    """Size, mode, owner and number of links of a file that we have just created."""
    return 0, stat.S_IFREG | 0o600, os.geteuid(), 1


def _create_random(path: Path, mode: int) -> Tuple[Path, int]:
    """Create an empty file beside ``path`` with a name that no other host or process takes, and open it.

    Permissions are ``mode`` without those that the umask takes away.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    return temporary, os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
