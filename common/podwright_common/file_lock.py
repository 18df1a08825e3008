"""Locks on files, flock(2): the kernel frees them when their holder closes the file or dies, however it dies.

They hold among processes of a host, and among all hosts of a shared file system that has such locks, as Lustre mounted
with ``flock``.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Callable, Iterator

# Opening a lock must not empty what a link leads to, nor follow the link.
FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def open_lock(path: Path, *, mode: int = 0o600) -> int:
    """Open a lock's file, and make it and its folder if need be; return the descriptor.

    Args:
        path: the lock's file.
        mode: permissions of a new file. Who can open a lock can hold it.

    Raises:
        OSError: it does not open, or it is a link.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, FLAGS, mode)


def try_lock(file: int | IO[Any]) -> bool:
    """Take a file's lock, unless another process has it; return whether this one has it now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _ignore() -> None:
    """Wait without a word."""


@contextmanager
def locked(path: Path, *, mode: int = 0o600, before_waiting: Callable[[], object] = _ignore) -> Iterator[None]:
    """Hold the lock of a file or folder during the block; wait for it if another process has it.

    Args:
        path: the lock's file, which is made if need be, or an existing folder.
        mode: permissions of a new file.
        before_waiting: called if another process has the lock; may raise an error instead of waiting.
    """
    folder_flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    descriptor = os.open(path, folder_flags) if path.is_dir() else open_lock(path, mode=mode)
    try:
        if not try_lock(descriptor):
            before_waiting()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)  # Closing frees the lock.
