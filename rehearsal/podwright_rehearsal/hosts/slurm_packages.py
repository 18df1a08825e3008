"""Slurm and munge for flat hosts: Debian's packages, unpacked into a folder and run from there."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from podwright_common.file_lock import locked
from podwright_rehearsal.hosts import debian
from podwright_rehearsal.hosts.debian import DebianError
from podwright_rehearsal.hosts.image import SOURCES

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge", "libslurm-dev")
DAEMONS = ("slurmctld", "slurmd", "slurmstepd")
KEY = "key"
NO_AUTO_RESUME = "without-auto-resume"  # holds the reason
_PLUGIN = SOURCES / "auto_resume.c"


@dataclass(frozen=True)
class SlurmPackages:
    """Paths in the folder that ``fetch_slurm`` made."""

    root: Path

    @property
    def bin(self) -> Path:
        """The daemons by their proper names: called slurmd-wlm, slurmd would drop every GRES."""
        return self.root / "bin"

    @property
    def munged(self) -> Path:
        """The authentication service."""
        return self.root / "usr/sbin/munged"

    @property
    def plugins(self) -> Path:
        """Slurm's PluginDir."""
        return next(self.root.glob("usr/lib/*/slurm-wlm"))

    @property
    def libraries(self) -> str:
        """The value of LD_LIBRARY_PATH: Debian 12 has libreadline and others in /lib, beside /usr/lib."""
        architecture = self.plugins.parent.name
        return f"{self.plugins.parent}:{self.root}/lib/{architecture}:{self.plugins}"

    @property
    def path(self) -> str:
        """The value of PATH: Slurm's commands, then the machine's own."""
        return f"{self.bin}:{self.root}/usr/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"

    @property
    def auto_resume(self) -> Path:
        """The plugin that adds srun's option ``--auto-resume``; see ``without_auto_resume``."""
        return self.root / "auto_resume.so"

    @property
    def without_auto_resume(self) -> str:
        """The reason why the plugin is missing; empty if it exists."""
        return "" if self.auto_resume.exists() else (self.root / NO_AUTO_RESUME).read_text()


def fetch_slurm(folder: Path) -> SlurmPackages:
    """Download and unpack, unless ``folder`` is complete and made for this machine's packages. Needs no root.

    Raises:
        DebianError: no apt, no network, no such packages; the message says what to do.
    """
    key = _key()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.parent):  # Two processes may fetch at the same time, and neither may see a half-deleted folder.
        _fetch(folder, key)
    return SlurmPackages(folder.resolve())


def _fetch(folder: Path, key: str) -> None:
    if not (folder / KEY).exists() or (folder / KEY).read_text() != key:
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
            work = Path(temporary) / folder.name
            _fill(work)
            (work / KEY).write_text(key)
            shutil.rmtree(folder, ignore_errors=True)
            work.rename(folder)


def _key() -> str:
    """Hash the package names and this machine's packages: the folder holds the packages that the machine lacks."""
    digest = hashlib.sha256(" ".join(PACKAGES).encode())
    for path in (debian.INSTALLED, _PLUGIN):
        digest.update(path.read_bytes() if path.exists() else b"")
    return digest.hexdigest()


def _fill(folder: Path) -> None:
    if missing := debian.missing_programs():
        raise DebianError(
            f"{', '.join(missing)} not found: a flat cluster runs Debian's packages {', '.join(PACKAGES)}; "
            "run the rehearsal on Debian or Ubuntu, or in a container of one of them"
        )
    if not debian.search("^slurmd$"):
        raise DebianError("apt knows no package slurmd: run `apt-get update` as root (on Ubuntu: enable universe)")
    folder.mkdir()
    debian.unpack(debian.with_dependencies(PACKAGES), folder)
    (folder / "bin").mkdir()
    for daemon in DAEMONS:
        (folder / "bin" / daemon).symlink_to(f"../usr/sbin/{daemon}-wlm")
    _compile_plugin(folder)


def _compile_plugin(folder: Path) -> None:
    if shutil.which("gcc") is None:
        (folder / NO_AUTO_RESUME).write_text("gcc is not installed")
        return
    command = ["gcc", "-shared", "-fPIC", "-O1", f"-I{folder}/usr/include", "-o", f"{folder}/auto_resume.so"]
    compiled = subprocess.run([*command, str(_PLUGIN)], capture_output=True, text=True, check=False)
    if compiled.returncode:
        errors = [line for line in compiled.stderr.splitlines() if "error" in line] or [compiled.stderr.strip()]
        (folder / NO_AUTO_RESUME).write_text(f"gcc could not compile it: {errors[0]}")
