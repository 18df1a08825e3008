"""The node image: one overlay layer with the programs of a HyperPod node that Debian's packages lack.

Slurm's layout, the ``aws`` command, units and the shims are in the layer; below it lies the root of a Debian release.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from podwright_rehearsal.hosts.build import SOURCES, ImageError, run_script
from podwright_rehearsal.hosts.debian_root import ROOT, DebianRelease, build_root, root_key
from podwright_rehearsal.hosts.kept_folder import build_once
from podwright_rehearsal.hosts.kept_folder import is_current as is_kept

__all__ = ["LAYER", "ROOT", "SOURCES", "WHEELS", "ImageError", "build_image", "is_current"]

LAYER = "layer"

# Where a host finds the wheels that its uv may install; bind a folder there.
WHEELS = "/opt/rehearsal/wheels"

_INGREDIENTS = ("image.sh", "layer.sh", "shims", "aws-cli.txt", "host-key.service")
_AWS = Path("opt/rehearsal/aws")
_DOWNLOAD_LIMIT_S = 600


def build_image(directory: Path, *, release: DebianRelease) -> bool:
    """Build the node image at `directory`, unless it exists and is current.

    apt and pip use this machine's ordinary configuration and the caller's environment (proxies, ``PIP_*``).

    Args:
        directory: the image; replaced as a whole, so a reader sees the old one or the new one.
        release: the Debian whose root, in a folder beside ``directory``, lies below.

    Returns:
        True if it was built, False if it existed.

    Raises:
        ImageError: a package could not be installed.
    """
    directory = directory.resolve()
    root = directory.with_name(f"{release.name}-root")
    build_root(root, release)

    def fill(work: Path) -> None:
        _download_aws_command(work / LAYER / _AWS, root / ROOT)
        run_script("image.sh", "layer", work, root / ROOT)
        (work / ROOT).symlink_to(Path("..", root.name, ROOT))
        for leftover in [path for path in work.iterdir() if path.name not in {LAYER, ROOT}]:
            shutil.rmtree(leftover)

    return build_once(directory, _key(release), fill)


def is_current(directory: Path, release: DebianRelease) -> bool:
    """Return True if `directory` has the image of this version of podwright on the release's root."""
    return is_kept(directory, _key(release))


def _key(release: DebianRelease) -> str:
    """Hash the sources of the layer, and of the layers below it."""
    sources = [path for name in _INGREDIENTS for path in sorted([SOURCES / name, *(SOURCES / name).glob("*")])]
    digest = hashlib.sha256(root_key(release).encode())
    for path in filter(Path.is_file, sources):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _download_aws_command(folder: Path, root: Path) -> None:
    """Unpack the packages of the ``aws`` command for the root's Python, which has no pip."""
    python = next((root / "usr/lib").glob("python3.*")).name.removeprefix("python")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    command += ["--no-deps", "--only-binary=:all:", "--python-version", python, "--target", str(folder)]
    command += ["--require-hashes", "--requirement", str(SOURCES / "aws-cli.txt")]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_DOWNLOAD_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise ImageError(f"the node image's aws command was not downloaded within {_DOWNLOAD_LIMIT_S} s") from error
    if done.returncode:
        raise ImageError(f"the aws command of the node image could not be downloaded; pip said:\n{done.stderr.strip()}")
    shutil.rmtree(folder / "awscli/examples")  # only `aws help` reads them
