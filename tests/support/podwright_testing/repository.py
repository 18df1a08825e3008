"""A repository of Debian's packages for hosts, which reach no mirror, of the release that they boot."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from podwright_rehearsal.hosts import debian
from podwright_rehearsal.hosts.image import ROOT
from podwright_rehearsal.hosts.kept_folder import KEY, build_once
from podwright_testing.debians import CACHE

PLACE = "/opt/rehearsal/repository"  # bind it there
SOURCE = f"deb [trusted=yes] file:{PLACE} ./\n"  # for apt on hosts: here it has checked the signatures
LIMIT_S = 600


def repository(name: str, image: Path, packages: Sequence[str]) -> Path:
    """Return a folder with the packages, and those that a host of the image lacks for them; downloaded once.

    The test is skipped where there is no apt.
    """
    if missing := debian.missing_programs():
        pytest.skip(f"needs {', '.join(missing)}")
    root = (image / ROOT).resolve()
    key = f"{(root.parent / KEY).read_text()} {' '.join(packages)}"
    folder = CACHE / f"{name}-of-{root.parent.name}"
    build_once(folder, key, partial(_download, root, packages))
    return folder


def source(image: Path, package: str) -> Path:
    """Return the archive with the source of a package that hosts of the image have; downloaded once.

    The test is skipped where there is no apt.
    """
    if missing := debian.missing_programs():
        pytest.skip(f"needs {', '.join(missing)}")
    root = (image / ROOT).resolve()
    show = ["dpkg-query", f"--admindir={root}/var/lib/dpkg", "--show", "--showformat=${source:Package}"]
    wanted = subprocess.run([*show, package], check=True, capture_output=True, text=True).stdout
    folder = CACHE / f"source-of-{package}-of-{root.parent.name}"
    key = f"{(root.parent / KEY).read_text()} {wanted}"
    build_once(folder, key, partial(_download_source, root, wanted))
    return next(folder.glob("*.orig.tar.*"))


def _download(root: Path, packages: Sequence[str], folder: Path) -> None:
    """Let this machine's apt download what the root's own would, and write an index."""
    with tempfile.TemporaryDirectory() as state:
        _apt(root, Path(state), "install", "--download-only", *packages)
        archives = sorted(Path(state, "archives").glob("*.deb"))
        paths = [Path(shutil.move(path, folder / path.name)) for path in archives]
    (folder / "Packages").write_text("\n".join(map(_entry, paths)))


def _download_source(root: Path, wanted: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as state:
        sources = Path(state) / "sources"
        sources.mkdir()
        lines = [
            line.replace("deb ", "deb-src ")
            for path in (root / "etc/apt/sources.list.d").glob("*.list")
            for line in path.read_text().splitlines()
            if not re.search(
                r"-(security|updates) ", line
            )  # which may lack the archive that they share with the release
        ]
        (sources / "sources.list").write_text("\n".join(lines) + "\n")
        _apt(root, Path(state), "source", "--download-only", "--tar-only", wanted, sources=sources, cwd=folder)


def _apt(root: Path, state: Path, *command: str, sources: Path | None = None, cwd: Path | None = None) -> None:
    """Run apt on the root's sources, after an update."""
    for name in ("lists/partial", "archives/partial"):
        (state / name).mkdir(parents=True)
    settings = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": sources or root / "etc/apt/sources.list.d",
        "Dir::Etc::preferencesparts": root / "etc/apt/preferences.d",
        "Dir::Etc::trustedparts": root / "etc/apt/trusted.gpg.d",
        "Dir::State::lists": state / "lists",
        "Dir::State::status": root / "var/lib/dpkg/status",
        "Dir::Cache": state,
        "Dir::Cache::archives": state / "archives",
        "APT::Sandbox::User": "root",
        "Acquire::Retries": 3,
        "Debug::NoLocking": "true",  # nothing is installed; another worker may download at the same time
    }
    options = [f"-o{name}={value}" for name, value in settings.items()]
    for words in (("update",), command):
        apt = ["apt-get", "-qq", "-y", "--no-install-recommends", *options, *words]
        subprocess.run(apt, check=True, timeout=LIMIT_S, cwd=cwd)


def _entry(package: Path) -> str:
    fields = subprocess.run(["dpkg-deb", "--field", package], check=True, capture_output=True, text=True).stdout
    checksum = hashlib.sha256(package.read_bytes()).hexdigest()
    return f"{fields.rstrip()}\nFilename: ./{package.name}\nSize: {package.stat().st_size}\nSHA256: {checksum}\n"
