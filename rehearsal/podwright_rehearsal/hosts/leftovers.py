"""Find and end leftovers of earlier clusters and image builds on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from podwright_rehearsal.hosts import cgroups
from podwright_rehearsal.hosts.image import SOURCES
from podwright_rehearsal.hosts.waiting import wait_for

_STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Leftover:
    """A process, mount or control group of an earlier cluster or image build."""

    kind: str  # process | mount | control group
    name: str  # a command line | a mount point | a folder
    pid: int = 0


def leftovers(below: Path) -> list[Leftover]:
    """Return processes, mounts and control groups of clusters and image builds whose directory is at or below a folder.

    A process is ours when its arguments name both one of our programs and such a directory; never by a program's name.
    """
    below = below.resolve()
    leftovers_below = [
        Leftover("process", " ".join(words), pid) for pid, words in _command_lines() if _is_ours(words, below)
    ]
    mounts = [Path(line.split()[4]) for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    leftovers_below += [Leftover("mount", str(mount)) for mount in mounts if mount.is_relative_to(below)]
    return leftovers_below + [Leftover("control group", str(group)) for group in cgroups.of_clusters(below)]


def _is_ours(words: Sequence[str], below: Path) -> bool:
    names_our_program = any(Path(word).parent == SOURCES for word in words)
    return names_our_program and any(word.startswith("/") and Path(word).is_relative_to(below) for word in words)


def _command_lines() -> Iterable[tuple[int, list[str]]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:  # it has just ended
                continue
            yield int(folder.name), words


def clean(below: Path, *, timeout_s: float = _STOP_TIMEOUT_S) -> list[Leftover]:
    """End the leftovers and wait for their end.

    Returns:
        What there was.

    Raises:
        HostError: something would not go; the message names it.
    """
    remaining = leftovers(below)
    for leftover in remaining:
        if leftover.kind == "process":
            _kill(leftover.pid)
        elif leftover.kind == "mount":
            subprocess.run(["umount", "--lazy", leftover.name], check=False)
    for leftover in remaining:
        if leftover.kind == "control group":  # its processes have been killed
            cgroups.remove(Path(leftover.name))
    wait_for(lambda: not leftovers(below), timeout_s=timeout_s, description=lambda: f"the end of {leftovers(below)}")
    return remaining


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it may have gone with another one
        os.kill(pid, signal.SIGKILL)
