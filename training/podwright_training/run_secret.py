"""The secret of a run, by which its processes know each other: sockets of a cluster's nodes ask nobody for a password.

It is a file in the run's folder that only the run's user can read, so that no argument and no variable has it.
"""

from __future__ import annotations

import hmac
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

from podwright_common.file_owner import is_unmapped, numbered
from podwright_training.errors import UserError
from podwright_training.private_folder import OTHERS
from podwright_training.run_folder import RunFolder

SECRET_BYTES = 32
TAG_BYTES = 32  # HMAC-SHA256 has this size.


def run_secret(folder: RunFolder) -> bytes:
    """Return the run's secret; create it if it does not exist.

    Raises:
        UserError: Another user could have written or read it.
    """
    path = folder.secret
    if not path.exists():
        _create(path)
    status = path.lstat()
    if is_unmapped(status.st_uid):
        raise UserError(f"{path} belongs to {numbered(status.st_uid)}")
    if status.st_uid != os.geteuid() or status.st_mode & OTHERS or path.is_symlink():
        raise UserError(
            f"{path} must be your own file, which others may not read: remove it, and end what else trains in this "
            "folder; on a file system without owners and modes, name a --run-dir on another"
        )
    text = path.read_text(errors="replace")
    if not re.fullmatch(rf"[0-9a-f]{{{2 * SECRET_BYTES}}}", text):
        raise UserError(f"{path} has no {2 * SECRET_BYTES} hexadecimal digits, it is damaged: remove it")
    return bytes.fromhex(text)


def tag(secret: bytes, *parts: bytes) -> bytes:
    """Return what only those can compute who know the secret; parts cannot run into each other."""
    lengths = b"".join(len(part).to_bytes(8, "big") for part in parts)
    digest = hmac.new(secret, lengths, "sha256")
    for part in parts:
        digest.update(part)
    return digest.digest()


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=".secret.", dir=path.parent)
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(os.urandom(SECRET_BYTES).hex())
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # another process was faster
            os.link(draft, path)
    finally:
        draft.unlink()
