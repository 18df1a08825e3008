"""Run programs without root's rights, because they may run code of packages.

uv installs as an id that belongs to no account, so no other program runs as it; afterwards the files are root's.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Tuple

from podwright_bootstrap.host import process

# Of no account, so that no other program runs as it: https://systemd.io/UIDS-GIDS/ lists it as unused.
BUILDER_ID = 61183
NO_MORE = "--no-new-privs"


def as_user(user: pwd.struct_passwd) -> Tuple[str, ...]:
    """Return the words before a command that run it as this user."""
    return ("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--init-groups", NO_MORE)


def as_builder() -> Tuple[str, ...]:
    """Return the words before a command that run it as `BUILDER_ID`."""
    return ("setpriv", f"--reuid={BUILDER_ID}", f"--regid={BUILDER_ID}", "--clear-groups", NO_MORE)


def give_to_builder(folder: Path) -> None:
    """Let commands of `as_builder` write a folder."""
    os.chown(folder, BUILDER_ID, BUILDER_ID)


def take_from_builder(folder: Path, *, timeout_s: float) -> None:
    """Make all in a folder root's, and unwritable for others; chown clears setuid bits, and follows no link."""
    process.run("chown", "--recursive", "--no-dereference", "0:0", folder, timeout_s=timeout_s)
    process.run("chmod", "--recursive", "u+rwX,go+rX,go-w", folder, timeout_s=timeout_s)
