"""A folder that is built once and kept until its sources change."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from podwright_common.file_lock import locked

KEY = "key"


def is_current(directory: Path, key: str) -> bool:
    """Return True if the folder was built for this key."""
    key_file = directory / KEY
    return key_file.is_file() and key_file.read_text() == key


def build_once(directory: Path, key: str, fill: Callable[[Path], None]) -> bool:
    """Build a folder unless it exists and is current. Of two builds at the same time, one waits for the other.

    Args:
        directory: replaced as a whole, so a reader sees the old folder or the new one.
        key: names what the folder is made of.
        fill: called with an empty folder beside ``directory``. What it leaves there becomes the content.

    Returns:
        True if it was built, False if it existed.
    """
    with locked(directory.with_name(directory.name + ".lock")):
        if is_current(directory, key):
            return False
        _remove_torsos(directory)
        work = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
        try:
            fill(work)
            (work / KEY).write_text(key)
            work.chmod(0o755)
            if directory.exists():
                directory.rename(work / "old")
            work.rename(directory)
            shutil.rmtree(directory / "old", ignore_errors=True)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return True


def _remove_torsos(directory: Path) -> None:
    """Remove leftovers of killed builds: no other process builds while we hold the lock."""
    for torso in directory.parent.glob(f".{directory.name}-*"):
        shutil.rmtree(torso, ignore_errors=True)
