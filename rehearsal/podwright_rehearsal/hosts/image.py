"""The node image: one overlay layer with everything a HyperPod node has and its root lacks.

Slurm, munge, sshd, the ``aws`` command and the shims are installed into the layer; what lies below stays as it is. That
is this machine's own root, or the root of a Debian release, whose hosts boot systemd. Over the machine's root the layer
hides what is the machine's own: home directories, ``/opt``, ``/usr/local``, other top-level folders, units.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from pathlib import Path

from podwright_rehearsal.hosts.build import SOURCES, ImageError, run_script
from podwright_rehearsal.hosts.debian_root import ROOT, DebianRelease, build_root, root_key
from podwright_rehearsal.hosts.kept_folder import build_once
from podwright_rehearsal.hosts.kept_folder import is_current as is_kept

__all__ = ["LAYER", "ROOT", "SOURCES", "WHEELS", "ImageError", "build_image", "is_current"]

LAYER = "layer"

# Where a host finds the wheels that its pip may install; bind a folder there.
WHEELS = "/opt/rehearsal/wheels"

# What image.sh reads: other files here may change without a new image.
_INGREDIENTS = ("image.sh", "layer.sh", "shims", "auto_resume.c", "aws-cli.txt")
_WITHOUT_SYSTEMD = ("systemctl.py", "init.py")
_WITH_SYSTEMD = ("host-key.service",)
_INSTALLED = Path("/var/lib/dpkg/status")
# Of a root file system's folders, these belong to the distribution; hosts see them under the layer.
_SYSTEM = frozenset(
    {"bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "sys", "tmp", "usr", "var"}
)
# These hold a machine's own things; a host has what the layer has in them, and no other top-level name at all.
_EMPTY = (
    *("boot", "home", "media", "mnt", "opt", "root", "srv", "usr/local"),
    *("etc/apt/auth.conf.d", "etc/profile.d", "etc/ssh", "etc/sudoers.d", "etc/systemd/system"),
)


def build_image(directory: Path, *, release: DebianRelease | None = None, wheelhouse: Path | None = None) -> bool:
    """Build the node image at `directory`, unless it is there and current.

    apt and pip use this machine's ordinary configuration and the caller's environment (proxies, ``PIP_*``).

    Args:
        directory: the image; replaced as a whole, so a reader sees the old one or the new one.
        release: the Debian whose root, in a folder beside ``directory``, lies below. Default: this machine's root.
        wheelhouse: a folder of wheels to look into before the package index.

    Returns:
        True if it was built, False if it was there.

    Raises:
        ImageError: a package could not be installed.
    """
    directory = directory.resolve()
    root = directory.with_name(f"{release.name}-root") if release else None
    if root and release:
        build_root(root, release)

    def fill(work: Path) -> None:
        over = (root / ROOT,) if root else ()
        run_script("image.sh", "layers", work, *over, wheelhouse=wheelhouse)
        (work / "upper").rename(work / LAYER)
        if root:
            (work / ROOT).symlink_to(Path("..", root.name, ROOT))
        else:
            _hide_this_machine(work / LAYER)
        for leftover in [path for path in work.iterdir() if path.name not in {LAYER, ROOT}]:
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()

    return build_once(directory, _key(release), fill)


def is_current(directory: Path, release: DebianRelease | None = None) -> bool:
    """Return True if `directory` has the image of this version of podwright on the packages of the root below."""
    return is_kept(directory, _key(release))


def _key(release: DebianRelease | None) -> str:
    """Hash what image.sh reads, and what lies below the layer."""
    names = (*_INGREDIENTS, *(_WITH_SYSTEMD if release else _WITHOUT_SYSTEMD))
    sources = [path for name in names for path in sorted([SOURCES / name, *(SOURCES / name).glob("*")])]
    below = root_key(release) if release else hashlib.sha256(_INSTALLED.read_bytes()).hexdigest()
    digest = hashlib.sha256(below.encode())
    for path in filter(Path.is_file, sources):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _hide_this_machine(layer: Path) -> None:
    """Hide this machine's folders from hosts by overlay's opaque folders and whiteouts."""
    for name in _EMPTY:
        folder = layer / name
        if not folder.exists():
            folder.mkdir(parents=True)
            folder.chmod(0o755)
        os.setxattr(folder, "trusted.overlay.opaque", b"y")
    for path in Path("/").iterdir():
        if path.name not in _SYSTEM and path.name not in _EMPTY:
            os.mknod(layer / path.name, stat.S_IFCHR, os.makedev(0, 0))
