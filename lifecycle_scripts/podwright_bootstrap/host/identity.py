"""Look up users of a host, and act with their rights."""

from __future__ import annotations

import os
import pwd
from contextlib import contextmanager
from typing import Iterator

from podwright_bootstrap.host.errors import BootstrapError


@contextmanager
def acting_as(user: pwd.struct_passwd) -> Iterator[None]:
    """Access files in the block with this user's rights: new files are the user's, and links give no further access."""
    groups, uid, gid = os.getgroups(), os.geteuid(), os.getegid()
    os.setgroups([])
    os.setegid(user.pw_gid)
    os.seteuid(user.pw_uid)
    try:
        yield
    finally:
        os.seteuid(uid)
        os.setegid(gid)
        os.setgroups(groups)


def find_user(name: str) -> pwd.struct_passwd:
    """The user's entry in passwd; ``BootstrapError`` if there is none."""
    try:
        return pwd.getpwnam(name)
    except KeyError as error:
        hint = "HyperPod's image has its own users; the step users adds the users of cluster.yaml"
        raise BootstrapError(f"this host has no user {name}", hint=hint) from error
