"""Write and remove files on a host. Readers never see a half-written file.

A host writes to a temporary name of its own, holds a lock on it, and renames it: a killed boot leaves no partial file,
and two writers never mix.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Iterator, Tuple

from podwright_bootstrap.host import identity, regular_file

# What opening a name for writing says of links, pipes, folders, and files of other people.
NO_FILE_OF_OURS = {errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EACCES, errno.EPERM}


def write_file(path: Path, content: str | bytes, *, mode: int = 0o644, owner: str = "") -> bool:
    """Make ``path`` a file of this content, mode and owner; readers see the old or the new one, never a part.

    Args:
        path: its folder is made if need be.
        content: text is written as UTF-8.
        mode: permissions.
        owner: a user's name; whoever runs this, which is root on a node, if it is empty.

    Returns:
        Whether anything had to be changed.
    """
    data = content.encode() if isinstance(content, str) else content
    uid, gid = identity.find_user(owner)[2:4] if owner else (os.geteuid(), os.getegid())
    if path.is_file() and path.stat().st_size == len(data) and _content(path, len(data)) == data:
        status = path.stat()
        if (status.st_mode & 0o7777, status.st_uid) == (mode, uid):
            return False
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, descriptor = _create_beside(path)
    with os.fdopen(descriptor, "wb") as file:  # closed last: until then it is locked
        try:
            file.write(data)
            file.flush()
            os.fchmod(descriptor, mode)
            os.fchown(descriptor, uid, gid)
            os.fsync(descriptor)
            temporary.replace(path)
        except BaseException:  # a signal too: no half file stays
            temporary.unlink(missing_ok=True)
            raise
    _sync_folder(path.parent)
    return True


def _content(path: Path, limit_bytes: int) -> bytes:
    """Return a file's content; empty if it has just become something else."""
    try:
        return regular_file.read(path, limit_bytes=limit_bytes, follow_links=True)
    except OSError:
        return b""


def remove_files(*paths: Path) -> Iterator[str]:
    """Delete the existing ones of the files; yields a phrase for each."""
    for path in paths:
        if os.path.lexists(path):
            path.unlink()
            yield f"removed {path}"


def _create_beside(path: Path) -> Tuple[Path, int]:
    """Create an empty file with a unique name beside ``path``, and open it.

    Its name is this host's, so that what a killed boot left goes without a search. Whoever writes it holds its flock:
    a second writer, and a host where somebody else's file has that name, take a random one.
    """
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in NO_FILE_OF_OURS:
            return _create_random(path)
        raise
    with suppress(OSError):  # locked, renamed, not to be removed, or a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = os.fstat(descriptor)
        if os.path.samestat(status, os.lstat(temporary)):  # Its writer may have renamed it since it was opened.
            if (status.st_size, status.st_mode, status.st_uid, status.st_nlink) == _fresh():
                return temporary, descriptor
            temporary.unlink()
    os.close(descriptor)
    return _create_random(path)


def _fresh() -> Tuple[int, int, int, int]:
    """Size, mode, owner and number of links of a file that we have just created."""
    return 0, stat.S_IFREG | 0o600, os.geteuid(), 1


def _create_random(path: Path) -> Tuple[Path, int]:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    return Path(name), descriptor


def _sync_folder(folder: Path) -> None:
    """Make a rename in the folder outlive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
