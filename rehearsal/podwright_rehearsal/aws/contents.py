"""Files of file systems and backups: a folder of this machine for each, where a rehearsal asks for one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


class Contents:
    """The folders.

    Args:
        folder: where they are, each named by its file system's or backup's id. Default: no files.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def make(self, name: str, *, like: str | None = None) -> None:
        """Make a folder: empty, or with the files of another one, their owners, modes and times.

        Links to one file stay links to one file.
        """
        if self._folder is None:
            return
        target = self._folder / name
        target.mkdir(parents=True, mode=0o755)
        if like is not None:
            source = self._folder / like
            command = ["cp", "--archive", "--reflink=auto", "--no-target-directory", str(source), str(target)]
            subprocess.run(command, check=True)

    def remove(self, name: str) -> None:
        """Delete a folder, if there is one."""
        if self._folder is not None and (self._folder / name).is_dir():
            shutil.rmtree(self._folder / name)

    def size(self, name: str) -> int:
        """Return the bytes of all files."""
        if self._folder is None:
            return 0
        files = (path.lstat() for path in (self._folder / name).rglob("*"))
        return sum(status.st_size for status in files)
