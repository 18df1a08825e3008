"""Name the owner of a file for messages; inside a user namespace, say that the owner cannot be seen there."""

from __future__ import annotations

import pwd
from pathlib import Path

_OVERFLOW_UID = Path("/proc/sys/kernel/overflowuid")
_UID_MAP = Path("/proc/self/uid_map")


def user_name(uid: int) -> str:
    """Return a user's name, or the number of one that this host does not know."""
    if is_unmapped(uid):
        return numbered(uid)
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def numbered(uid: int) -> str:
    """Return the number of a user; of one that this container does not map, also how to see the file's owner."""
    if is_unmapped(uid):
        return (
            f"uid {uid} (any user of the host that this container does not map: look at the owner there with `ls -ln`, "
            "and start the container as that user, without remapping root: enroot start without --root, srun "
            "--no-container-remap-root)"
        )
    return f"uid {uid}"


def is_unmapped(uid: int) -> bool:
    """Return whether Linux shows this number for each user that this process's user namespace does not map."""
    try:
        overflow_uid = int(_OVERFLOW_UID.read_text())
        ranges = [tuple(map(int, line.split())) for line in _UID_MAP.read_text().splitlines()]
    except (OSError, ValueError):  # Only Linux has user namespaces.
        return False
    return uid == overflow_uid and not any(first <= uid < first + length for first, _, length in ranges)
