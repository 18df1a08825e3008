"""People's homes, with SSH between the nodes."""

from __future__ import annotations

import os
import stat
from functools import partial
from pathlib import Path
from typing import Iterator

from podwright_bootstrap.features import User
from podwright_bootstrap.host import shell
from podwright_bootstrap.host.shell import BootstrapError
from podwright_bootstrap.node import Node
from podwright_bootstrap.steps import Step
from podwright_bootstrap.steps.ssh import KEY_NAME
from podwright_bootstrap.steps.users import home_of
from podwright_bootstrap.storage.copy_once import copy_once
from podwright_bootstrap.storage.lock import locked

SKELETON = Path("/etc/skel")
HOME_MODE = 0o750
OTHERS_MAY_WRITE = 0o022  # sshd lets nobody in whose home is so (StrictModes)
BEGIN, END = "# podwright: from cluster.yaml, written anew at every boot", "# podwright: end"


class Homes(Step):
    """Each user in cluster.yaml has a home that is the user's own, and can log in from each node to each other one."""

    name = "homes"
    whose = "clusters with users"
    hint = "is the file system of the homes writable by root, and has it space left (df -h)?"
    time_limit_s = 1200

    def applies(self, node: Node) -> bool:
        """Run with nodes.users."""
        return bool(node.parameters.nodes.users)

    def apply(self, node: Node) -> Iterator[str]:
        """One node makes what is missing, the others wait until they see it."""
        homes = {user: home_of(user, node) for user in node.parameters.nodes.users}
        _refuse_foreign(homes)
        node.homes.mkdir(parents=True, exist_ok=True)
        for user, home in homes.items():
            if _is_ready(user, home):
                continue
            lock = node.homes / ".podwright.lock"
            with locked(lock, limit_s=600, every_s=node.poll_s, unless=partial(_is_ready, user, home)) as mine:
                if mine:
                    yield from _make(user, home)

    def verify(self, node: Node) -> None:
        """Homes are their user's, and nobody else can write there."""
        for user in node.parameters.nodes.users:
            home = home_of(user, node)
            status = home.stat()
            mode = stat.S_IMODE(status.st_mode)
            if status.st_uid != user.uid or mode & OTHERS_MAY_WRITE:
                raise BootstrapError(
                    f"{home} is uid {status.st_uid}'s with mode {mode:o}, not {user.name}'s alone",
                    hint=f"chown {user.uid}:{user.uid} {home}; chmod go-w {home}",
                )


def _refuse_foreign(homes: dict[User, Path]) -> None:
    """Ids that differ between clusters show here: a home whose files belong to another id."""
    owners = {user: home.stat().st_uid for user, home in homes.items() if home.is_dir()}
    foreign = [
        f"{homes[user]} belongs to uid {owner}, {user.name} has {user.uid} in cluster.yaml"
        for user, owner in owners.items()
        if owner != user.uid
    ]
    if foreign:
        hint = "give in cluster.yaml the uid that the files belong to, or chown -R the home to the new one"
        raise BootstrapError("; ".join(foreign), hint=hint)


def _is_ready(user: User, home: Path) -> bool:
    """Return whether nothing is left to do; read as the user, whose home may be a link."""
    if not home.is_dir():
        return False
    with shell.acting_as(shell.find_user(user.name)):
        folder = home / ".ssh"
        return (folder / KEY_NAME).exists() and _text(folder / "authorized_keys") == _authorized(user, folder)


def _make(user: User, home: Path) -> Iterator[str]:
    if copy_once(SKELETON, home, owner=user.uid, mode=HOME_MODE):
        yield f"made {home}"
    with shell.acting_as(shell.find_user(user.name)):
        folder = home / ".ssh"
        folder.mkdir(mode=0o700, exist_ok=True)
        if not (folder / KEY_NAME).exists():
            _make_key(folder, comment=f"{user.name}@{os.uname().nodename}")
            yield f"made {user.name}'s key pair"
        if shell.write_file(folder / "authorized_keys", _authorized(user, folder), mode=0o600):
            yield f"wrote {folder / 'authorized_keys'}"


def _make_key(folder: Path, *, comment: str) -> None:
    """A pair without a passphrase, for jobs: it opens the nodes of clusters with this home, and nothing else."""
    key = ("-t", "ed25519", "-N", "", "-C", comment, "-f", folder / KEY_NAME)
    shell.run("ssh-keygen", "-q", *key, timeout_s=60, quiet=True)


def _authorized(user: User, folder: Path) -> str:
    """The user's own lines as they are, and ours between two marks: a key that is no longer listed goes."""
    own, ours = [], False
    for line in _text(folder / "authorized_keys").splitlines():
        ours = line == BEGIN or (ours and line != END)
        if not ours and line != END:
            own.append(line)
    public = _text(folder / f"{KEY_NAME}.pub").strip()
    keys = [key.strip() for key in (public, *user.ssh_keys) if key]
    return "\n".join([*own, BEGIN, *keys, END]) + "\n"


def _text(path: Path) -> str:
    return path.read_text() if path.is_file() else ""
