"""Ask Linux how much memory this host has for us, and whether a folder is in memory."""

from __future__ import annotations

import os
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
MOUNTS = Path("/proc/self/mountinfo")
OWN_GROUP = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")
UNLIMITED = 1 << 62
IN_MEMORY = ("tmpfs", "ramfs")


def free_memory_bytes() -> int:
    """Return the bytes that this process may still allocate: the host's free memory, or its job's limit if less."""
    available = next(line.split()[1] for line in MEMINFO.read_text().splitlines() if line.startswith("MemAvailable:"))
    return min(1024 * int(available), *map(_left_in, _own_groups()), UNLIMITED)


def free_bytes_in(folder: Path) -> int:
    """Return the bytes that may still be written to a folder: the free space; on a tmpfs, the free memory if less."""
    file_system = os.statvfs(folder)
    room = file_system.f_bavail * file_system.f_frsize
    return min(room, free_memory_bytes()) if is_in_memory(folder) else room


def is_in_memory(folder: Path) -> bool:
    """Return whether a folder lies on a file system in memory."""
    path, best, kind = folder.resolve(), Path("/"), ""
    for line in MOUNTS.read_text().splitlines():
        before, after = line.split(" - ")
        point = Path(before.split()[4].encode().decode("unicode_escape"))
        if path.is_relative_to(point) and len(point.parts) >= len(best.parts):
            best, kind = point, after.split()[0]
    return kind in IN_MEMORY


def _own_groups() -> list[Path]:
    """Return this process's control group, of version 2, and those above it."""
    try:
        group_path = next(line[3:] for line in OWN_GROUP.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return []
    group = GROUPS / group_path.lstrip("/")
    return [folder for folder in (group, *group.parents) if folder.is_relative_to(GROUPS)]


def _left_in(group: Path) -> int:
    """Return the free memory of a control group; the page cache counts as free."""
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit == "max":
            return UNLIMITED
        used = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return max(0, int(limit) - int(used["anon"]) - int(used["shmem"]))
    except (OSError, ValueError, KeyError):  # the root group has no limit
        return UNLIMITED
