"""Packages of this Debian or Ubuntu, unpacked into a folder, without installation and without root."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from podwright.errors import PodwrightError

PROGRAMS = ("apt-get", "apt-cache", "dpkg-deb")
INSTALLED = Path("/var/lib/dpkg/status")
LIMIT_S = 300


class DebianError(PodwrightError):
    """A package is not available; the message has apt's output."""


def missing_programs() -> list[str]:
    """Return the programs of apt that this machine lacks; empty on Debian and Ubuntu."""
    return [program for program in PROGRAMS if shutil.which(program) is None]


def search(pattern: str) -> list[str]:
    """Return the packages that match a regular expression; as root, update apt's lists if no package matches.

    Raises:
        DebianError: apt failed.
    """
    packages = _search(pattern)
    if not packages and os.geteuid() == 0:
        _run("apt-get", "-q", "update")
        packages = _search(pattern)
    return packages


def with_dependencies(packages: Sequence[str]) -> list[str]:
    """Return the packages with those dependencies that are not installed here, as apt resolves them.

    Raises:
        DebianError: apt knows no such package.
    """
    planned = _run("apt-get", "-qq", "--simulate", "--no-install-recommends", "install", *packages)
    needed = {line.split()[1] for line in planned.splitlines() if line.startswith("Inst ")}
    return sorted({*packages, *needed})


def unpack(packages: Sequence[str], folder: Path) -> None:
    """Download packages, whose signature chain apt checks, and unpack them into ``folder``.

    Raises:
        DebianError: apt knows no such package, or there is no network.
    """
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as downloads:
        # As root, apt would fetch as user _apt, who may not write here.
        options = ("-q", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3")
        _run("apt-get", *options, "download", *packages, cwd=Path(downloads))
        for package in sorted(Path(downloads).glob("*.deb")):
            _run("dpkg-deb", "--extract", str(package), str(folder))


def _search(pattern: str) -> list[str]:
    return [line.split()[0] for line in _run("apt-cache", "search", "--names-only", pattern).splitlines()]


def _run(*command: str, cwd: Path | None = None) -> str:
    """Return the program's output, in English whatever the user's locale."""
    english = {**os.environ, "LC_ALL": "C.UTF-8"}
    try:
        return subprocess.run(
            command, cwd=cwd, env=english, capture_output=True, text=True, check=True, timeout=LIMIT_S
        ).stdout
    except subprocess.CalledProcessError as error:
        raise DebianError(f"`{' '.join(command)}` failed: {error.stderr.strip() or error.stdout.strip()}") from error
    except subprocess.TimeoutExpired as error:
        raise DebianError(f"`{' '.join(command)}` did not end within {LIMIT_S} s: is there a network?") from error
