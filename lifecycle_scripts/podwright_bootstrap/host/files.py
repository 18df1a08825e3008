"""Write and remove files on a host, owned by one of its users."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator

from podwright_bootstrap.host import identity
from podwright_common import atomic_file


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
    uid, gid = identity.find_user(owner)[2:4] if owner else (os.geteuid(), os.getegid())
    return atomic_file.write_file(path, content, mode=mode, uid=uid, gid=gid)


def remove_files(*paths: Path) -> Iterator[str]:
    """Delete the existing ones of the files; yields a phrase for each."""
    for path in paths:
        if os.path.lexists(path):
            path.unlink()
            yield f"removed {path}"
