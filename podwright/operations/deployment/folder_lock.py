"""The lock of a folder that one command at a time deploys from; its file says who has it."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

from podwright.errors import PodwrightError
from podwright_common.exit_status import WRONG_INPUT
from podwright_common.file_lock import try_lock
from podwright_common.process import is_alive


class FolderBusyError(PodwrightError):
    """Another command has the folder's lock; the message says which, the hint what to do."""

    exit_status = WRONG_INPUT


class FolderLock:
    """A lock that the kernel gives back when its process and the programs that it started have ended.

    Args:
        file: made if missing.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._stream: IO[str] | None = None

    @property
    def descriptors(self) -> list[int]:
        """The descriptor of the lock, for programs that are to keep it until they end; empty if it is not held."""
        return [self._stream.fileno()] if self._stream else []

    @contextmanager
    def of(self, command: str) -> Iterator[None]:
        """Hold the lock during the block; a block within it holds the same.

        Args:
            command: that holds it, for others to see.

        Raises:
            FolderBusyError: another process has it.
        """
        if self._stream:
            yield
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a+", encoding="utf-8") as stream:
            if not try_lock(stream):
                raise self._busy(stream)
            _write(stream, command)
            self._stream = stream
            try:
                yield
            finally:
                self._stream = None

    def _busy(self, stream: IO[str]) -> FolderBusyError:
        stream.seek(0)
        pid, _, holder = stream.read().partition(" ")
        problem = f"another podwright command runs in {self._file.parent.parent}: {holder or 'it has just begun'}"
        if pid.isdecimal() and f"@{socket.gethostname()} " in holder and not is_alive(int(pid)):
            return FolderBusyError(
                f"{problem}; it was killed, and Terraform finishes its changes and writes its state",
                "wait for the end of that, and repeat this command",
            )
        return FolderBusyError(problem, "wait for its end")


def _write(stream: IO[str], command: str) -> None:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # an id without an account
        user = str(os.getuid())
    since = f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    stream.truncate(0)
    with suppress(OSError):  # a full disk: the lock holds without a note
        stream.write(f"{os.getpid()} `podwright {command}` of {user}@{socket.gethostname()} since {since}")
        stream.flush()
