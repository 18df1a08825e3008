"""People's homes, with SSH between the nodes.

In a home directory root acts with the user's rights, so that a link there cannot make root change other files. If a
user has made their home unusable, the boot logs a warning and continues.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Iterator, List

from podwright_bootstrap.features import User
from podwright_bootstrap.host import files, identity, log, process
from podwright_bootstrap.host.errors import BootstrapError, CommandError
from podwright_bootstrap.node import Node
from podwright_bootstrap.steps import Step
from podwright_bootstrap.steps.ssh import KEY_NAME
from podwright_bootstrap.steps.users import home_of
from podwright_bootstrap.storage import mounts, own_folder
from podwright_bootstrap.storage.copy_once import make_home
from podwright_bootstrap.storage.lock import locked
from podwright_common import regular_file

OTHERS_MAY_WRITE = 0o022  # sshd lets nobody in whose home is so (StrictModes)
KEYS_LIMIT_BYTES = 1 << 20
BEGIN, END = "# podwright: from cluster.yaml, written anew at every boot", "# podwright: end"


class HomesStep(Step):
    """Each user in cluster.yaml has a home that is the user's own, and can log in from each node to each other one."""

    name = "homes"
    audience = "clusters with users"
    hint = "is the file system of the homes writable by root, and has it space left (df -h)?"
    time_limit_s = 1200

    def applies(self, node: Node) -> bool:
        """Run with nodes.users."""
        return bool(node.parameters.nodes.users)

    def apply(self, node: Node) -> Iterator[str]:
        """Make missing homes on one node; the others wait until they see them."""
        homes = {user: home_of(user, node) for user in node.parameters.nodes.users}
        _refuse_foreign(homes)
        node.homes.mkdir(parents=True, exist_ok=True)
        own_folder.refuse_writable(node.homes)
        lock = node.homes / ".podwright.lock"
        for user, home in homes.items():
            if home.is_dir() and _is_broken(user, home):
                continue
            ready = partial(_is_ready, user, home)
            if ready():
                continue
            with locked(lock, limit_s=600, every_s=node.poll_s, unless=ready) as mine:
                if mine:
                    yield from _make(user, home)

    def verify(self, node: Node) -> None:
        """Every home is its user's; one is missing only where the file system is full, as the log says."""
        for user in node.parameters.nodes.users:
            home = home_of(user, node)
            if home.is_dir() and home.stat().st_uid != user.uid:
                raise BootstrapError(f"{home} belongs to uid {home.stat().st_uid}, not to {user.name}")


def _refuse_foreign(homes: dict[User, Path]) -> None:
    """Ids that differ between clusters show here: a home whose files belong to another id."""
    owners = {user: home.stat().st_uid for user, home in homes.items() if home.is_dir()}
    foreign = [
        f"{homes[user]} belongs to uid {owner}, {user.name} has {user.uid} in cluster.yaml"
        for user, owner in owners.items()
        if owner != user.uid
    ]
    if foreign:
        hint = "set in cluster.yaml the uid that owns the files, or chown -R the home to the new uid"
        raise BootstrapError("; ".join(foreign), hint=hint)


def _is_broken(user: User, home: Path) -> bool:
    """Return whether a user has made the home unusable; other users keep the node, and the log has the reason."""
    with _as_owner(user, home):
        folder = home / ".ssh"
        if os.path.lexists(folder) and not os.access(folder / ".", os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
            raise PermissionError(f"{folder} is not a folder that {user.name} may write to")
        _read(folder / "authorized_keys")
        mode = stat.S_IMODE(home.stat().st_mode)
        if mode & OTHERS_MAY_WRITE:
            log.say(f"warning: {home} has mode {mode:o}, so sshd refuses {user.name}'s keys: chmod go-w {home}")
        return False
    return True


def _is_ready(user: User, home: Path) -> bool:
    """Return whether the home is complete; read as the user, because the home may be a link."""
    if not home.is_dir():
        return False
    with _as_owner(user, home):
        folder = home / ".ssh"
        return (folder / KEY_NAME).exists() and _read(folder / "authorized_keys") == _authorized(user, folder)
    return True


def _make(user: User, home: Path) -> Iterator[str]:
    try:
        if make_home(home, user.uid):
            yield f"made {home}"
    except (CommandError, OSError) as error:
        if not mounts.is_full(error):
            raise
        log.say(f"warning: {user.name} has no home {home} until a boot finds space: {error}")
        return
    changes: List[str] = []
    with _as_owner(user, home):
        folder = home / ".ssh"
        folder.mkdir(mode=0o700, exist_ok=True)
        if not (folder / KEY_NAME).exists():
            _make_key(folder, comment=f"{user.name}@{os.uname().nodename}")
            changes.append(f"made {user.name}'s key pair")
        if files.write_file(folder / "authorized_keys", _authorized(user, folder), mode=0o600):
            changes.append(f"wrote {folder / 'authorized_keys'}")
    yield from changes


@contextmanager
def _as_owner(user: User, home: Path) -> Iterator[None]:
    """Act as the user in the block; a failure in the user's own home ends the block with one warning."""
    account = identity.find_user(user.name)
    try:
        with identity.acting_as(account):
            yield
    except (OSError, CommandError) as error:
        log.say(f"warning: {user.name}'s home {home} is left as it is: {error}")


def _make_key(folder: Path, *, comment: str) -> None:
    """Make a key pair without a passphrase, for jobs: it opens only nodes of clusters with this home."""
    key = ("-t", "ed25519", "-N", "", "-C", comment, "-f", folder / KEY_NAME)
    process.run("ssh-keygen", "-q", *key, timeout_s=60, quiet=True)


def _authorized(user: User, folder: Path) -> bytes:
    """Return the user's own lines unchanged, and ours between two marks: keys that are no longer listed are removed."""
    user_lines, is_ours = [], False
    for line in _read(folder / "authorized_keys").splitlines():
        is_ours = line == BEGIN.encode() or (is_ours and line != END.encode())
        if not is_ours and line != END.encode():
            user_lines.append(line)
    public = _read(folder / f"{KEY_NAME}.pub").strip()
    keys = [key.strip() for key in (public, *(key.encode() for key in user.ssh_keys)) if key]
    return b"\n".join([*user_lines, BEGIN.encode(), *keys, END.encode()]) + b"\n"


def _read(path: Path) -> bytes:
    """Return the text of a user's file, in any encoding; empty if the file does not exist."""
    try:
        return regular_file.read(path, limit_bytes=KEYS_LIMIT_BYTES, follow_links=True)
    except FileNotFoundError:
        return b""
