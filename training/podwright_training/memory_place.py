"""Say where a host has a run's checkpoints in memory: ``/dev/shm/podwright-<uid>-<run>/<host>/``. Needs no torch."""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from podwright_training.run_folder import write_atomically

PREFIX = "podwright"
RUN_ID = ".memory-id"  # in the folder of checkpoints: a run that begins anew never finds another's memory


def run_id(checkpoints: Path) -> str:
    """Return the run's id, which its folder of checkpoints keeps."""
    file = checkpoints / RUN_ID
    if not file.exists():
        write_atomically(file, secrets.token_hex(6))
    return file.read_text().strip()


def host_folder(parent: Path, *, run: str, host: str) -> Path:
    """Return a host's folder of a run, below a file system in memory; hosts of a rehearsal share ``parent``."""
    return parent / f"{PREFIX}-{os.geteuid()}-{run}" / host


def give_back(folder: Path) -> None:
    """Remove a host's folder, and the run's folder if no other host of this machine uses it."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        folder.parent.rmdir()
