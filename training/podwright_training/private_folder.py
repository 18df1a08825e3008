"""Make and check folders that only their owner may enter or change, also below one that all users share."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from podwright_common.file_owner import numbered, user_name
from podwright_training.errors import UserError

OTHERS = stat.S_IRWXG | stat.S_IRWXO
ANY = getattr(os, "O_PATH", os.O_RDONLY)  # Linux's O_PATH also opens folders that may not be read.
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def make_private(path: Path) -> None:
    """Make a folder of mode 700, or use an existing one.

    Raises:
        UserError: The path is not a folder, belongs to another user, or is open to others; or others may put their own
            in its place.
    """
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    if problem := why_not_private(path):
        raise UserError(problem)


def why_not_private(path: Path) -> str:
    """Return why others may enter a folder, or have made it; empty for one that is its owner's alone."""
    try:
        status = _status(path)
    except OSError:
        return f"{path} is not a folder; remove it"
    if status.st_uid != os.geteuid() or status.st_mode & OTHERS:
        return (
            f"{path}: got owner {numbered(status.st_uid)}, mode {stat.S_IMODE(status.st_mode):o}; need your own folder "
            "of mode 700; remove it"
        )
    if may_be_exchanged(path):
        return f"{path.parent}: all users may rename what is in it; chmod +t {path.parent}"
    return ""


def why_not_trusted(path: Path) -> str:
    """Return why a folder's programs may be somebody else's; empty if only its user and root can write there.

    A link is followed to the folder, and has to be the user's or root's, too.
    """
    try:
        owners, status = {path.lstat().st_uid, path.stat().st_uid}, path.stat()
    except OSError as error:
        return f"{path}: {error.strerror}"
    if not stat.S_ISDIR(status.st_mode):
        return f"{path} is not a folder"
    strangers = owners - {os.geteuid(), 0}
    if strangers or status.st_mode & OTHERS_MAY_WRITE:
        uid = min(strangers or owners)
        return f"{path}: got owner {numbered(uid)}, mode {stat.S_IMODE(status.st_mode):o}; need your own"
    return (
        f"{path.parent}: all users may rename what is in it; chmod +t {path.parent}" if may_be_exchanged(path) else ""
    )


def other_owner(path: Path) -> str:
    """Return the owner of a folder, or of the link to it, if that is neither this user nor root; else empty."""
    try:
        owners = {path.lstat().st_uid, path.stat().st_uid} - {os.geteuid(), 0}
    except (FileNotFoundError, NotADirectoryError):
        return ""
    return user_name(min(owners)) if owners else ""


def who_may_change(path: Path) -> str:
    """Return a line on who may change a file or put another one in its place; empty for this user and root alone.

    Each folder on the way to it counts, and each link with the way to its target.
    """
    for place in _way_to(path):
        try:
            status = place.lstat()
        except OSError as error:
            return f"{place}: {error.strerror}"
        if status.st_uid not in {os.geteuid(), 0}:
            return f"{place} belongs to {user_name(status.st_uid)}"
        if stat.S_ISLNK(status.st_mode) or (stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX):
            continue
        is_shared = status.st_mode & stat.S_IWGRP and not _is_private_group(status.st_gid)
        if is_shared or status.st_mode & stat.S_IWOTH:
            return f"{place}: others may write it, it has mode {stat.S_IMODE(status.st_mode):o}"
    return ""


def _way_to(path: Path) -> Iterator[Path]:
    """Yield a path and the folders and links on the way to it, as far as links can be followed."""
    pending, visited = [Path(os.path.abspath(path))], set()  # noqa: PTH100 - resolve() would hide the links
    while pending:
        place = pending.pop()
        if place in visited:
            continue
        visited.add(place)
        yield place
        if place != place.parent:
            pending.append(place.parent)
        if place.is_symlink():
            pending.append(Path(os.path.normpath(place.parent.resolve() / place.readlink())))


def _is_private_group(gid: int) -> bool:
    """Return whether a group is this user's alone, as Linux makes one for each user: it has the user's name."""
    try:
        name, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == name and set(group.gr_mem) <= {name}


def refuse_prepared(path: Path) -> None:
    """Refuse to continue in a folder whose name was guessed: what is in it would be taken for this user's.

    Raises:
        UserError: Another user has made the folder, or could put another one in its place.
    """
    if owner := other_owner(path):
        raise UserError(f"{path} belongs to {owner}, who could change what is written there: remove it")
    if path.parent.is_dir() and may_be_exchanged(path):
        raise UserError(
            f"{path.parent}: all users may rename what is in it; chmod +t {path.parent}, or write elsewhere"
        )


def may_be_exchanged(path: Path) -> bool:
    """Return whether every user could put another folder in a path's place: its parent lacks the sticky bit."""
    mode = path.parent.stat().st_mode
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX


def _status(path: Path) -> os.stat_result:
    """Return the status of the folder itself: a link raises ``OSError``."""
    folder = os.open(path, ANY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return os.fstat(folder)
    finally:
        os.close(folder)


def make_closed(path: Path) -> None:
    """Make a folder and its parents, or close an existing one of this user to others.

    Raises:
        UserError: It belongs to another user, or is not a folder.
    """
    path.mkdir(parents=True, exist_ok=True)
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; need a folder of your own: name another --run-dir") from error
    try:
        if (owner := os.fstat(folder).st_uid) != os.geteuid():
            raise UserError(f"{path} belongs to {numbered(owner)}, need your own: name another --run-dir")
        os.fchmod(folder, 0o700)
    finally:
        os.close(folder)
