"""Root file systems of hosts: Debian releases with systemd and Slurm, made by mmdebstrap from this machine's mirror."""

from __future__ import annotations

import hashlib
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from podwright_rehearsal.hosts.build import SOURCES, run_script
from podwright_rehearsal.hosts.kept_folder import build_once

ROOT = "root"
# HyperPod's Python is older than its Slurm; and one set of wheels serves both releases.
PYTHON_CODENAME = "bookworm"
_INGREDIENTS = ("debian_root.sh", "layer.sh", "auto_resume.c")
# What AWS's image has of Debian's packages. It lacks python3-venv and python3-pip.
_PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "kmod", "procps", "iproute2", "iputils-ping", "logrotate"),
    *("openssh-server", "openssh-client", "sudo", "python3", "curl", "ca-certificates"),
    *("munge", "slurm-wlm", "slurmdbd", "libpam-slurm-adopt", "mariadb-server"),
)


@dataclass(frozen=True)
class DebianRelease:
    """A release of Debian that hosts can boot."""

    name: str  # A value of --hosts.
    codename: str
    slurm: str  # its Slurm's version
    packages: tuple[str, ...]

    @property
    def description(self) -> str:
        """``Debian 13's systemd and Slurm 24.11``."""
        return f"{self.name.replace('-', ' ').capitalize()}'s systemd and Slurm {self.slurm}"


RELEASES: Mapping[str, DebianRelease] = {
    release.name: release
    for release in (
        # The first has the Slurm of HyperPod's generation; where it is not available, the next one serves.
        DebianRelease("debian-13", codename="trixie", slurm="24.11", packages=(*_PACKAGES, "sackd")),
        DebianRelease("debian-12", codename="bookworm", slurm="22.05", packages=_PACKAGES),
    )
}


def root_key(release: DebianRelease) -> str:
    """Hash the sources of a root: the scripts that make it, the release and this machine's architecture."""
    digest = hashlib.sha256(f"{release} {PYTHON_CODENAME} {platform.machine()}".encode())
    for name in _INGREDIENTS:
        digest.update((SOURCES / name).read_bytes())
    return digest.hexdigest()


def build_root(directory: Path, release: DebianRelease) -> bool:
    """Make ``directory/root`` of a release, unless it exists and is current; apt checks every package's signature.

    Returns:
        True if it was made, False if it existed.

    Raises:
        ImageError: a package could not be downloaded or installed.
    """

    def fill(work: Path) -> None:
        run_script("debian_root.sh", "root", work, release.codename, PYTHON_CODENAME, *release.packages)
        (work / "target").rename(work / ROOT)
        for leftover in [path for path in work.iterdir() if path.name != ROOT]:
            shutil.rmtree(leftover)

    return build_once(directory.resolve(), root_key(release), fill)
