"""Control groups of hosts that boot systemd: one subtree of the machine's cgroup2 hierarchy per host.

For clusters with ``task/cgroup`` a host also has groups of version 1, in which Slurm confines jobs (``confine``).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from functools import partial
from pathlib import Path

from podwright_rehearsal.hosts.waiting import wait_for

_OWNER = "trusted.podwright"  # the extended attribute that names the cluster's directory
_PREFIX = "podwright-"
_END_TIMEOUT_S = 60.0  # the kernel removes ended processes from their groups after a moment
CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
CONFINING = (
    "memory",
    "cpuset",
    "freezer",
)  # those that Slurm uses here; where cgroup2 lacks them, version 1 may have them
_INHERITED = ("cpuset.cpus", "cpuset.mems")  # empty in a new group, which then takes no process


def hierarchy() -> Path | None:
    """Return a writable mount of cgroup2, or None if there is no such mount."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if after.startswith("cgroup2 ") and "rw" in fields[5].split(",") and fields[3] == "/":
            return Path(fields[4])
    return None


def missing() -> list[str]:
    """Return the ``CONTROLLERS`` that this machine's cgroup2 lacks: without them Slurm cannot confine jobs."""
    root = hierarchy()
    has = (root / "cgroup.controllers").read_text().split() if root else []
    return [name for name in CONTROLLERS if name not in has]


def version_1() -> dict[str, Path]:
    """Return the writable mounts of ``CONFINING`` in version 1 by controller; empty unless all of them exist."""
    mount_by_controller: dict[str, Path] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, _, options) = before.split(), after.split(maxsplit=2)
        if kind == "cgroup" and "rw" in fields[5].split(",") and fields[3] == "/":
            mount_by_controller |= dict.fromkeys(set(options.split(",")) & set(CONFINING), Path(fields[4]))
    return mount_by_controller if len(mount_by_controller) == len(CONFINING) else {}


def confine(group: Path, hostname: str) -> dict[str, str]:
    """Create a host's groups of version 1, beside those of its cluster; return their paths by controller."""
    path_by_controller: dict[str, str] = {}
    for name, root in version_1().items():
        path = root / group.name / hostname
        path.mkdir(parents=True, exist_ok=True)
        for inherited in _INHERITED if name == "cpuset" else ():
            for folder in (path.parent, path):
                (folder / inherited).write_text((root / inherited).read_text())
        path_by_controller[name] = str(path)
    return path_by_controller


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
    for path in (group, *(root / group.name for root in version_1().values())):
        description = f"the processes in {path} to end"
        wait_for(partial(_try_to_remove, path), timeout_s=_END_TIMEOUT_S, description=partial(str, description))


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
