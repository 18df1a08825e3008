"""The node image: one overlay layer with everything a HyperPod node has and this machine lacks.

Slurm, munge, sshd, the ``aws`` command and the shims are installed into the layer; the machine itself stays as it is.
The layer hides what is this machine's own: home directories, ``/opt``, ``/usr/local``, other top-level folders, units.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from podwright.errors import PodwrightError

SOURCES = Path(__file__).parent
LAYER = "layer"
KEY = "key"

# Where a host finds the wheels that its pip may install; bind a folder there.
WHEELS = "/opt/rehearsal/wheels"

_BUILD_TIMEOUT_S = 900
# What image.sh reads: other files here may change without a new image.
_INGREDIENTS = ("image.sh", "shims", "systemctl.py", "init.py", "auto_resume.c", "aws-cli.txt")
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


class ImageError(PodwrightError):
    """The node image could not be built; the message ends with the output of the failing command."""


def build_image(directory: Path, *, wheelhouse: Path | None = None) -> bool:
    """Build the node image at `directory`, unless it is there and current.

    apt and pip use this machine's ordinary configuration and the caller's environment (proxies, ``PIP_*``).

    Args:
        directory: the image; replaced as a whole, so a reader sees the old one or the new one.
        wheelhouse: a folder of wheels to look into before the package index.

    Returns:
        True if it was built, False if it was there.

    Raises:
        ImageError: a package could not be installed.
    """
    directory = directory.resolve()
    directory.parent.mkdir(parents=True, exist_ok=True)
    key = _key()
    with _locked(directory.with_name(directory.name + ".lock")):
        if is_current(directory):
            return False
        work = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
        try:
            _run_script(work, wheelhouse)
            _hide_this_machine(work / "upper")
            _move_into_place(work, key=key, directory=directory)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return True


def is_current(directory: Path) -> bool:
    """Return True if `directory` has the image of this version of podwright on this machine's packages."""
    key = directory / KEY
    return key.is_file() and key.read_text() == _key()


def _key() -> str:
    """Hash what image.sh reads, and the packages of the root below the layer."""
    sources = [path for name in _INGREDIENTS for path in sorted([SOURCES / name, *(SOURCES / name).glob("*")])]
    digest = hashlib.sha256()
    for path in (*filter(Path.is_file, sources), _INSTALLED):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run_script(work: Path, wheelhouse: Path | None) -> None:
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--propagation", "private", "--"]
    command += ["bash", str(SOURCES / "image.sh"), "layers", str(work)]
    try:
        subprocess.run(
            command,
            env=_environment(os.environ, wheelhouse),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_BUILD_TIMEOUT_S,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        raise ImageError(
            f"the node image could not be built (exit {error.returncode}); apt and pip said:\n{error.stderr.strip()}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ImageError(
            f"the node image was not built within {_BUILD_TIMEOUT_S} s: is the package index reachable?"
        ) from error


def _environment(machine: Mapping[str, str], wheelhouse: Path | None) -> dict[str, str]:
    """Return the variables that apt and pip need, without those that lead to this machine's Python."""
    prefixes, suffixes = ("PIP_", "SSL_CERT_"), ("_PROXY", "_CA_BUNDLE")
    environment = {
        name: value
        for name, value in machine.items()
        if name == "HOME" or name.startswith(prefixes) or name.upper().endswith(suffixes)
    }
    environment["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    if wheelhouse:
        environment["PODWRIGHT_WHEELHOUSE"] = str(wheelhouse.resolve())
    return environment


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


def _move_into_place(work: Path, *, key: str, directory: Path) -> None:
    (work / KEY).write_text(key)
    (work / "upper").rename(work / LAYER)
    for leftover in [path for path in work.iterdir() if path.name not in {KEY, LAYER}]:
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    work.chmod(0o755)
    if directory.exists():
        directory.rename(work / "old")
    work.rename(directory)
    shutil.rmtree(directory / "old", ignore_errors=True)
