"""Packages of the repositories that the image's apt knows, whose signatures apt checks."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path
from typing import List

from podwright_bootstrap.host import log, process, waits
from podwright_bootstrap.host.errors import BootstrapError, CommandError
from podwright_bootstrap.node import Node
from podwright_bootstrap.software import downloads

# Another apt may run: images update themselves when they start. Its timeout covers dpkg's lock, not that of the lists.
OPTIONS = ("-q", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3")
# needrestart would restart daemons whose libraries apt has updated, Slurm's too, which can end jobs.
VARIABLES = ("DEBIAN_FRONTEND=noninteractive", "NEEDRESTART_SUSPEND=1")
LOCKS = tuple(Path("/var/lib") / name for name in ("apt/lists/lock", "dpkg/lock-frontend", "dpkg/lock"))
FLOCK = struct.Struct("hhqqi")  # fcntl(2), struct flock: type, whence, start, length, process
LIMIT_S = 900


def install(*packages: str | Path, node: Node) -> None:
    """Install packages by name or file, and their dependencies.

    Raises:
        BootstrapError: the cluster takes nothing from the internet; CommandError: apt failed.
    """
    if downloads.from_bundle(node):
        _install_offline(*packages)
        return
    waits.retry(lambda: _apt("update"), attempts=3, pause_s=10, errors=(CommandError,))
    waits.retry(lambda: _apt("install", *packages), attempts=3, pause_s=10, errors=(CommandError,))


def hold(*names: str) -> None:
    """Keep installed packages as they are, whatever updates itself; raises ``CommandError`` if apt refuses."""
    _wait_for_others()
    waits.retry(
        lambda: process.run("apt-mark", "hold", *names, timeout_s=120), attempts=3, pause_s=10, errors=(CommandError,)
    )


def _install_offline(*packages: str | Path) -> None:
    """Install package files, if the image has their dependencies."""
    names = ", ".join(package for package in packages if isinstance(package, str))
    if names:
        raise BootstrapError(
            f"this image lacks {names}, and packages of the distribution are not in the offline bundle",
            hint="use an image that has it: image_id of the instance group in cluster.yaml",
        )
    _apt("install", "--no-download", *packages)


def _apt(command: str, *words: str | Path) -> None:
    _wait_for_others()
    process.run("env", *VARIABLES, "apt-get", command, *words, *OPTIONS, timeout_s=LIMIT_S)


def _wait_for_others() -> None:
    """Wait until no other apt or dpkg runs; raises ``BootstrapError`` that names the process that does not end."""
    holders = _holders()
    if holders:
        event, hint = f"apt, which works for {', '.join(holders)}", "end that program if it hangs, then boot again"
        log.say(f"waiting for {event}")
        waits.wait_until(lambda: not _holders(), event=event, limit_s=LIMIT_S, hint=hint)


def _holders() -> List[str]:
    """Return the programs that hold apt's locks, each as name (process)."""
    processes = sorted({_holder(lock) for lock in LOCKS if lock.exists()} - {0})
    return [f"{_name(pid)} (process {pid})" for pid in processes]


def _holder(lock: Path) -> int:
    """Return the process that holds the file's record lock (fcntl(2)); 0 if the file is not locked."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    try:
        request = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, request)[: FLOCK.size])
        return 0 if kind == fcntl.F_UNLCK else pid
    finally:
        os.close(descriptor)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:  # it has ended
        return "a program"
