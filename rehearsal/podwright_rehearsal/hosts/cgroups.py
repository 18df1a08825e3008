"""Control groups of hosts that boot systemd: one subtree of the machine's cgroup2 hierarchy per host."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from podwright_rehearsal.hosts.waiting import wait_for

_OWNER = "trusted.podwright"  # the extended attribute that names the cluster's directory
_PREFIX = "podwright-"
_END_TIMEOUT_S = 60.0  # the kernel removes ended processes from their groups after a moment
CONTROLLERS = ("cpu", "cpuset", "memory", "pids")


def hierarchy() -> Path | None:
    """Return a writable mount of cgroup2, or None if there is none."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if after.startswith("cgroup2 ") and "rw" in fields[5].split(",") and fields[3] == "/":
            return Path(fields[4])
    return None


def controllers() -> list[str]:
    """Return those of ``CONTROLLERS`` that cgroup2 has; the others belong to version 1 on this machine."""
    root = hierarchy()
    has = (root / "cgroup.controllers").read_text().split() if root else []
    return [name for name in CONTROLLERS if name in has]


def make(directory: Path) -> Path:
    """Create the group of a cluster; an earlier one of the same directory is removed.

    Raises:
        HostError: processes of the earlier cluster are left in it.
    """
    root = hierarchy()
    if root is None:
        raise FileNotFoundError("no writable cgroup2 is mounted")
    group = root / (_PREFIX + hashlib.sha256(str(directory).encode()).hexdigest()[:16])
    remove(group)
    group.mkdir()
    os.setxattr(group, _OWNER, str(directory).encode())
    return group


def remove(group: Path) -> None:
    """Remove a group and all below it.

    Raises:
        HostError: processes are left in it.
    """
    wait_for(lambda: _try_to_remove(group), timeout_s=_END_TIMEOUT_S, what=lambda: f"the processes in {group} to end")


def _try_to_remove(group: Path) -> bool:
    for folder, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # noqa: PTH106 -- a str from os.walk
    return not group.exists()


def of_clusters(below: Path) -> list[Path]:
    """Return the groups of clusters whose directory is at or below a folder."""
    root = hierarchy()
    return [group for group in root.glob(f"{_PREFIX}*") if _owner(group).is_relative_to(below)] if root else []


def _owner(group: Path) -> Path:
    with contextlib.suppress(OSError):  # another user's, or it has just gone
        return Path(os.getxattr(group, _OWNER).decode())
    return Path()
