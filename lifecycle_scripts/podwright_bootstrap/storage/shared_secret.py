"""A secret that controllers alone may ask AWS for, in a file of the shared file system that root alone may read."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Iterator, Optional

from podwright_bootstrap import contract
from podwright_bootstrap.host import files, log, waits
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.node import Node
from podwright_bootstrap.storage import own_folder
from podwright_common import regular_file

LIMIT_BYTES = 1 << 16
CONTROLLER_LIMIT_S = 900  # a controller boots like we do
FULL = {errno.ENOSPC, errno.EDQUOT}
HINT = (
    "a controller writes it when it boots: did its boot get as far (podwright doctor), with this version's scripts "
    "(podwright update-software)?"
)


def hand_over(node: Node, name: str, *, arn: str, text: str) -> Iterator[str]:
    """Write the secret for the other nodes; where users have filled the file system, those keep the former one.

    Raises:
        BootstrapError: a folder on the way is not root's alone.
    """
    path = _path(node, name)
    try:
        _refuse_roots(node)
        yield from own_folder.make_own(path.parent, mode=0o700)
        if files.write_file(path, f"{arn}\n{text}\n", mode=0o600):
            yield f"wrote {path}"
    except OSError as error:
        if error.errno not in FULL:
            raise
        log.say(f"warning: other nodes have the former secret, boot again when there is space: {error}")


def receive(node: Node, name: str, *, arn: str) -> str:
    """Return the secret as soon as a controller has written it.

    Raises:
        BootstrapError: none did in time, or others than root could have.
    """
    text = ""

    def is_there() -> bool:
        nonlocal text
        text = find(node, name, arn=arn) or ""
        return bool(text)

    event = f"the value of {arn} in {_path(node, name)}"
    waits.wait_until(is_there, event=event, limit_s=CONTROLLER_LIMIT_S, every_s=node.poll_s, hint=HINT)
    return text


def find(node: Node, name: str, *, arn: str) -> Optional[str]:
    """Return the secret; None if no controller has written the secret of this ARN.

    Raises:
        BootstrapError: a folder on the way, or the file, is not root's alone.
    """
    path = _path(node, name)
    _refuse_roots(node)
    try:
        own_folder.refuse_writable(path.parent)
        _refuse_readable(path)
        owner, _, text = regular_file.read(path, limit_bytes=LIMIT_BYTES).decode(errors="replace").partition("\n")
    except FileNotFoundError:
        return None
    return text.rstrip("\n") if owner == arn else None


def forget(node: Node, name: str) -> Iterator[str]:
    """Remove the secret."""
    yield from files.remove_files(_path(node, name))


def _path(node: Node, name: str) -> Path:
    return node.shared(contract.SECRETS_DIRECTORY) / name


def _refuse_roots(node: Node) -> None:
    """Refuse folders that others can write: they could replace our folder with theirs."""
    for folder in (node.mount_path, node.shared(contract.SHARED_DIRECTORY)):
        own_folder.refuse_writable(folder)


def _refuse_readable(path: Path) -> None:
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise BootstrapError(
            f"{path}: got owner uid {status.st_uid}, mode {stat.S_IMODE(status.st_mode):o}; need root, mode 600",
            hint=f"rm {path}; then, on a controller, sudo systemctl start podwright-users",
        )
