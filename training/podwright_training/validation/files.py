"""Write and read speed of a node on the shared file system.

A node reads the file of another node: its own is in its page cache.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from podwright_training.folder_listing import paths_in
from podwright_training.validation.steps import FILES, RESULTS, node_name, write_result

MIB = 1 << 20
PASSES = 3  # the fastest counts


def write_speeds(folder: Path, *, file_mib: int) -> list[float]:
    """Write this node's file a few times and return MiB/s of each, with fsync."""
    path = folder / FILES / node_name()
    path.parent.mkdir(exist_ok=True)
    block = os.urandom(MIB)  # Lustre may compress
    speeds = []
    for _ in range(PASSES):
        started = time.monotonic()
        with path.open("wb", buffering=0) as file:
            for _ in range(file_mib):
                file.write(block)
            os.fsync(file.fileno())
        speeds.append(file_mib / (time.monotonic() - started))
    return speeds


def write_read_speed(folder: Path) -> None:
    """Read the next node's file a few times and leave MiB/s of each as the result."""
    write_result(folder, f"read-{node_name()}", read_speeds(folder))


def read_speeds(folder: Path) -> list[float]:
    """Read the file of the node after this one, by name, and return MiB/s of each pass."""
    names = sorted(path.name for path in (folder / FILES).iterdir())
    path = folder / FILES / names[(names.index(node_name()) + 1) % len(names)]
    return [_read_mib_s(path) for _ in range(PASSES)]


def _read_mib_s(path: Path) -> float:
    buffer = bytearray(MIB)
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        size, started = 0, time.monotonic()
        while count := file.readinto(buffer):
            size += count
        return size / MIB / (time.monotonic() - started)


def remove_files(folder: Path) -> None:
    """Remove the nodes' test files; the results stay."""
    for path in paths_in(folder / FILES, "*"):
        path.unlink(missing_ok=True)
    if (folder / FILES).is_dir():
        (folder / FILES).rmdir()
    if (folder / RESULTS).is_dir():
        for path in paths_in(folder / RESULTS, ".*"):
            path.unlink(missing_ok=True)
