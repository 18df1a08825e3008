"""Make folders that only their owner may enter, also below one that all users share."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from podwright_training.errors import UserError

OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_private(path: Path) -> None:
    """Make a folder of mode 700, or use an existing one.

    Raises:
        UserError: The path is not a folder, belongs to another user, or is open to others.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise UserError(f"{path} is not a folder; remove it") from None
        if found.st_uid != os.geteuid() or found.st_mode & OTHERS:
            raise UserError(
                f"{path}: got owner uid {found.st_uid}, mode {found.st_mode & 0o777:o}; need your own folder of mode "
                "700; remove it"
            ) from None


def make_closed(path: Path) -> None:
    """Make a folder and its parents, or close an existing one of this user to others.

    Raises:
        UserError: It belongs to another user.
    """
    path.mkdir(parents=True, exist_ok=True)
    if (owner := path.lstat().st_uid) != os.geteuid():
        raise UserError(f"{path} belongs to uid {owner}, need your own: name another --run-dir")
    path.chmod(0o700)
