"""Find the file that is written behind a link, such as to another disk; a stranger's link leads nowhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Type

from podwright_common.file_owner import user_name


def link_target(path: Path, *, error_class: Type[Exception]) -> Path:
    """Return where a file or folder is written: behind the link that its user may have put there, else ``path``.

    A temporary name beside that place is on the same file system, so a rename there is atomic.

    Raises:
        error_class: Another user made the link, as in a folder like /tmp, or it leads into a missing folder.
    """
    if not path.is_symlink():
        return path
    link = f"{path} is a link to {os.readlink(path)}"  # noqa: PTH115 (Path has it from Python 3.9 on)
    uid = path.lstat().st_uid
    if uid not in {os.geteuid(), 0}:
        raise error_class(f"{link} that {user_name(uid)} made: remove it, or write elsewhere")
    target = Path(os.path.realpath(path))
    if target.is_symlink() or not target.parent.is_dir():
        raise error_class(f"{link}, where there is no folder: make it, or remove the link")
    return target
