"""Enroot's folders: each user has some, which root makes, because in one like /tmp others could be first.

Run as ``python3 -m podwright_bootstrap.storage.user_folders UID``; a job's prolog does the same.
"""

from __future__ import annotations

import pwd
import sys
from pathlib import Path
from typing import Dict, Iterator

from podwright_bootstrap.host import shell
from podwright_bootstrap.host.shell import BootstrapError
from podwright_bootstrap.storage import own_folder
from podwright_bootstrap.storage.local_disk import local_disk

RUNTIME = Path("/run/enroot")
PARENT_MODE = 0o755  # Enroot looks for its folders as the user
OWN_MODE = 0o700


def parents(disk: Path) -> Dict[str, Path]:
    """Return the folder in which users have theirs, by the setting of Enroot that names it."""
    root = disk / "enroot"
    return {
        "ENROOT_RUNTIME_PATH": RUNTIME,
        "ENROOT_CACHE_PATH": root / "cache",
        "ENROOT_DATA_PATH": root / "data",
        "ENROOT_TEMP_PATH": root / "temporary",
    }


def make_parents(disk: Path) -> Iterator[str]:
    """Make them root's alone, also those that an older boot opened to everybody."""
    for folder in (disk / "enroot", *parents(disk).values()):
        yield from own_folder.make_own(folder, mode=PARENT_MODE)


def make(uid: int, gid: int) -> None:
    """Make a user's folders; one that cannot be made is said, and the node is sound all the same."""
    try:
        for parent in parents(local_disk()).values():
            for change in own_folder.make_for(parent / f"user-{uid}", uid=uid, gid=gid, mode=OWN_MODE):
                shell.say(f"containers: {change}")
    except (BootstrapError, OSError) as error:
        shell.say(f"containers: uid {uid} cannot run any: {error}")


if __name__ == "__main__":
    user = pwd.getpwuid(int(sys.argv[1]))
    make(user.pw_uid, user.pw_gid)
