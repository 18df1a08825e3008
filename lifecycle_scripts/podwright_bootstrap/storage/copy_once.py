"""Folders that appear whole on a file system that many hosts share."""

from __future__ import annotations

import os
from pathlib import Path

from podwright_bootstrap.host import process
from podwright_bootstrap.host.errors import CommandError

SKELETON = Path("/etc/skel")
HOME_MODE = 0o750


def make_home(home: Path, uid: int) -> bool:
    """Make a user's home from ``/etc/skel``; return whether this host made it.

    Raises:
        CommandError: copying fails.
    """
    return copy_once(SKELETON, home, owner=uid, mode=HOME_MODE)


def copy_once(source: Path, target: Path, *, owner: int | None = None, mode: int | None = None) -> bool:
    """Make ``target`` a copy of a folder; whoever renames first has copied, the others take theirs away.

    Args:
        source: copied with everything in it.
        target: its parents are made if need be.
        owner: Id of the user and group that own all of it. Default: the source's owner.
        mode: Permissions of the folder itself. Default: the source's.

    Returns:
        Whether it was this host that made it.

    Raises:
        CommandError: copying it there fails.
    """
    if target.is_dir():
        return False
    candidate = target.with_name(f".{target.name}-from-{os.uname().nodename}")
    target.parent.mkdir(parents=True, exist_ok=True)
    process.run("rm", "-rf", candidate, timeout_s=60)  # A boot that was killed may have left it.
    try:
        process.run("cp", "--archive", "--no-target-directory", source, candidate, timeout_s=300, quiet=True)
    except CommandError:  # a full file system gets its space back
        process.run("rm", "-rf", candidate, timeout_s=60, check=False)
        raise
    if owner is not None:
        for path in (*candidate.rglob("*"), candidate):
            os.chown(path, owner, owner, follow_symlinks=False)
    if mode is not None:
        candidate.chmod(mode)
    try:
        candidate.rename(target)
    except OSError as error:  # it is there, and not empty
        process.run("rm", "-r", candidate, timeout_s=60)
        if not target.is_dir():
            raise CommandError(f"cannot make {target}: {error}") from error
        return False
    return True
