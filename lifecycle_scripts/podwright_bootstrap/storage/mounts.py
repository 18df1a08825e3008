"""Mount file systems, now and after a reboot, and check that they can be written."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

from podwright_bootstrap.host import files, log, process, waits
from podwright_bootstrap.host.errors import BootstrapError, CommandError

FSTAB = Path("/etc/fstab")
FULL = re.compile(f"{os.strerror(errno.ENOSPC)}|{os.strerror(errno.EDQUOT)}")
LIMIT_S = 300  # the service mounts before it runs scripts


class Mount(NamedTuple):
    """A mount, as the kernel lists it."""

    source: str
    kind: str

    def __str__(self) -> str:
        return f"{self.source} ({self.kind})"


def mounted_at(path: Path) -> Mount | None:
    """The topmost file system mounted exactly at ``path``."""
    mount = _topmost(path)
    if mount and mount.kind == "autofs":  # after a reboot systemd mounts when somebody looks
        process.run("ls", path, timeout_s=120, check=False, quiet=True)
        mount = _topmost(path)
    return mount if mount and mount.kind != "autofs" else None


def _topmost(path: Path) -> Mount | None:
    columns = ("--noheadings", "--raw", "--output", "SOURCE,FSTYPE")
    shown = process.run("findmnt", *columns, "--mountpoint", path, timeout_s=30, check=False, quiet=True)
    return Mount(*shown.output.splitlines()[-1].split()) if shown.exit_code == 0 else None


def wait_for(path: Path) -> Mount:
    """Return the source that the service mounts at ``path``.

    Raises:
        BootstrapError: HyperPod mounted no file system in time.
    """
    hint = (
        "HyperPod mounts the file systems of InstanceStorageConfigs: check that this one is AVAILABLE and its security "
        "group admits nodes"
    )
    waits.wait_until(lambda: bool(mounted_at(path)), event=f"HyperPod to mount {path}", limit_s=LIMIT_S, hint=hint)
    mount = mounted_at(path)
    if not mount:
        raise BootstrapError(f"the file system on {path} is no longer mounted", hint=hint)
    return mount


def refuse_other(mounted: Mount, *, expected: str, path: Path) -> None:
    """Say that something else is where a file system is to be; raises ``BootstrapError``."""
    raise BootstrapError(
        f"{path} already holds {mounted}, not {expected}",
        hint=f"unmount it, or choose another mount path in cluster.yaml ({FSTAB} may name it)",
    )


def enter_in_fstab(line: str, path: Path) -> bool:
    """Make ``line`` the only one for its mount point; returns whether anything had to be changed."""
    text = FSTAB.read_text() if FSTAB.exists() else ""
    lines = text.splitlines()
    other_lines = [other for other in lines if other.split()[1:2] != [str(path)]]
    if lines.count(line) == 1 and len(other_lines) == len(lines) - 1:
        return False
    return files.write_file(FSTAB, "\n".join([*other_lines, line]) + "\n")


def prove_writable(path: Path, folder: Path, *, hostname: str) -> None:
    """Prove that a folder on the file system at ``path`` can be written; see `prove_readback`.

    Raises:
        BootstrapError: no file system is mounted there, or it is not writable.
    """
    if not mounted_at(path):
        raise BootstrapError(f"no file system is mounted on {path}")
    prove_readback(folder, hostname=hostname)


def prove_readback(folder: Path, *, hostname: str) -> None:
    """Write a file of this node's own and read it back, by programs that can be ended if servers are silent.

    A full file system is a warning only: a node that boots again finds the files of its earlier boot there.

    Raises:
        CommandError: writing it fails otherwise, or it reads as something else.
    """
    try:
        _write_and_read(folder, hostname)
    except CommandError as error:
        if not is_full(error):
            raise
        log.say(f"warning: {folder} is full: {error}")


def is_full(error: Exception) -> bool:
    """Return whether an error says that a file system, or a user's share of it, is full."""
    return FULL.search(str(error)) is not None


def _write_and_read(folder: Path, hostname: str) -> None:
    with tempfile.NamedTemporaryFile() as local:
        local.write(os.urandom(4096))
        local.flush()
        remote = folder / f".written-by-{hostname}"
        process.run("cp", local.name, remote, timeout_s=60, quiet=True)
        process.run("cmp", local.name, remote, timeout_s=60, quiet=True)
        process.run("rm", remote, timeout_s=60, quiet=True)
