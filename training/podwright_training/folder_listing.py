"""List the files of a folder, or say that it cannot be read.

``Path.glob`` and ``Path.rglob`` skip a folder that they cannot read: its checkpoints, claims or records look deleted.
"""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NoReturn


def paths_in(folder: Path, pattern: str) -> list[Path]:
    """Return the paths in a folder whose names match a pattern such as ``*.json``, sorted; none if it does not exist.

    Raises:
        OSError: The folder cannot be read; the error names it.
    """
    try:
        return sorted(path for path in folder.iterdir() if fnmatchcase(path.name, pattern))
    except FileNotFoundError:
        return []


def paths_below(folder: Path, pattern: str) -> list[Path]:
    """Return the paths of files in a folder and its subfolders whose names match a pattern, sorted.

    Raises:
        OSError: The folder or a subfolder cannot be read; the error names it.
    """
    return sorted(
        Path(parent, name)
        for parent, _, names in os.walk(folder, onerror=_raise)
        for name in names
        if fnmatchcase(name, pattern)
    )


def _raise(error: OSError) -> NoReturn:
    raise error
