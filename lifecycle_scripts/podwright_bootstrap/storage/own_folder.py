"""Root's folders in places where users may write: links are not followed, and users' files are never used.

Root trusts a folder on a shared file system only if it is root's and nobody else may write there, because whoever may
write could exchange what root reads or runs. ``tests/rehearsal/attack.sh`` attacks a host as a user from a job, and
``attack_by_login.sh`` from a login node or controller: no node may drain or fail its next boot after them.
"""

from __future__ import annotations

import os
import secrets
import stat
import time
from pathlib import Path
from typing import Iterator

from podwright_bootstrap.host.errors import BootstrapError

_NO_LINK = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def make_own(path: Path, *, mode: int) -> Iterator[str]:
    """Make ``path`` a folder of ours with this mode; whatever a user put in its place is moved aside.

    Its parent is a trusted folder. If all users may write there, from now on each can remove only their own files.
    """
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield from _make_sticky(path.parent, parent)
        yield from _make(path, parent, owner=os.geteuid(), group=-1, mode=mode)
    finally:
        os.close(parent)


def make_for(path: Path, *, uid: int, gid: int, mode: int) -> Iterator[str]:
    """Make ``path`` a user's folder, in a parent where only root writes; the user's existing folder stays as it is.

    Files of others at ``path``, from a time when others could write there, are moved aside.

    Raises:
        BootstrapError: others than root can write to the parent.
    """
    parent = os.open(path.parent, _NO_LINK)
    try:
        status = os.fstat(parent)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            owner_and_mode = f"got owner uid {status.st_uid}, mode {stat.S_IMODE(status.st_mode):o}"
            raise BootstrapError(f"{path.parent}: {owner_and_mode}; need a folder that only root can write to")
        yield from _make(path, parent, owner=uid, group=gid, mode=mode)
    finally:
        os.close(parent)


def refuse_writable(path: Path) -> None:
    """Refuse a folder that root's programs rely on if others can change it.

    Raises:
        BootstrapError: it is a link, not root's, or writable by others; the hint is the command that repairs it.
    """
    status = path.lstat()
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022:
        return
    if not stat.S_ISDIR(status.st_mode):
        raise BootstrapError(f"{path} is not a folder", hint=f"ls -ld {path}; remove it, and boot again")
    owner_and_mode = f"got owner uid {status.st_uid}, mode {stat.S_IMODE(status.st_mode):o}"
    raise BootstrapError(
        f"{path}: {owner_and_mode}; need a folder that only root can write to",
        hint=f"chown root:root {path} && chmod go-w {path}",
    )


def open_folder(folder: Path) -> int:
    """Open the folder itself, so that its owner can be changed: a user may have put a link in its place.

    Raises:
        BootstrapError: it is a link, or no folder.
    """
    try:
        return os.open(folder, _NO_LINK)
    except NotADirectoryError as error:
        kind = f"a link to {folder.resolve()}" if folder.is_symlink() else "not a folder"
        raise BootstrapError(
            f"{folder} is {kind}", hint=f"move it away, and boot again: mv {folder} {folder}.old"
        ) from error


def _make_sticky(path: Path, folder: int) -> Iterator[str]:
    mode = stat.S_IMODE(os.fstat(folder).st_mode)
    if mode & 0o022 and not mode & stat.S_ISVTX:
        os.fchmod(folder, mode | stat.S_ISVTX)
        yield f"gave {path} mode {mode | stat.S_ISVTX:o}"


def _make(path: Path, parent: int, *, owner: int, group: int, mode: int) -> Iterator[str]:
    folder = _open(path.name, parent, owner)
    if folder is None and _exists(path.name, parent):
        folder = _open(path.name, parent, owner)  # another host may have made it just now
        if folder is None:
            aside = f".{path.name}.not-podwrights-{time.time_ns()}"
            os.rename(path.name, aside, src_dir_fd=parent, dst_dir_fd=parent)
            yield f"moved {path} aside, to {aside}"
    if folder is None:
        folder = _put(path.name, parent, owner=owner, group=group, mode=mode)
        yield f"made {path}"
    try:
        if stat.S_IMODE(os.fstat(folder).st_mode) != mode and owner == os.geteuid():
            os.fchmod(folder, mode)
            yield f"gave {path} mode {mode:o}"
    finally:
        os.close(folder)


def _put(name: str, parent: int, *, owner: int, group: int, mode: int) -> int:
    """Make a folder under another name, and rename it: other hosts never see it with another owner."""
    new = f".{name}.{secrets.token_hex(8)}"
    os.mkdir(new, 0o700, dir_fd=parent)
    folder = os.open(new, _NO_LINK, dir_fd=parent)
    os.fchown(folder, owner, group)
    os.fchmod(folder, mode)
    try:
        os.rename(new, name, src_dir_fd=parent, dst_dir_fd=parent)
    except OSError:  # another host was first, and its folder is in use
        os.close(folder)
        os.rmdir(new, dir_fd=parent)
        theirs = _open(name, parent, owner)
        if theirs is None:
            raise
        return theirs
    return folder


def _open(name: str, parent: int, owner: int) -> "int | None":
    """Open a real folder of this owner; return None if the name is missing or is something else."""
    try:
        folder = os.open(name, _NO_LINK, dir_fd=parent)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:  # ELOOP: a link
        if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            return None
        raise
    if os.fstat(folder).st_uid == owner:
        return folder
    os.close(folder)
    return None


def _exists(name: str, parent: int) -> bool:
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
