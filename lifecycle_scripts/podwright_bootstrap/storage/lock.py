"""One at a time among all hosts: a lock on the shared file system, freed by the kernel when its holder dies."""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Callable, Iterator

from podwright_bootstrap.host import waits
from podwright_common.file_lock import open_lock, try_lock


@contextmanager
def locked(
    path: Path, *, limit_s: float, every_s: float, unless: Callable[[], bool] = lambda: False, hint: str = ""
) -> Iterator[bool]:
    """Hold ``path``'s lock for the block: gives True, or False without the lock as soon as ``unless()`` holds.

    A host that waits asks for it about each ``every_s``: all waiting hosts ask the same server.
    Lustre's ``flock`` option makes flock(2) hold among hosts; its server frees the locks of a client that died.

    Raises:
        BootstrapError: another process held it all the time; the message names the host.
    """
    descriptor = open_lock(path)
    try:
        mine = False

        def settled() -> bool:
            nonlocal mine
            if unless():
                return True
            mine = try_lock(descriptor)
            return mine

        holder = os.pread(descriptor, 256, 0).decode(errors="replace") or "another host"
        waits.wait_until(settled, event=f"{path}, held by {holder}", limit_s=limit_s, every_s=every_s, hint=hint)
        if mine:
            with suppress(OSError):  # a full file system has no place for the name, which is only for messages
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{socket.gethostname()} (process {os.getpid()})".encode(), 0)
        yield mine
    finally:
        os.close(descriptor)  # Closing frees the lock.
