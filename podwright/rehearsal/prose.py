"""Real English prose for the rehearsal's training: the manual of PostgreSQL, as Debian and Ubuntu ship it.

2 MB to download, more than 4 MB of text by one hand, under a permissive licence, in every release.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from podwright_training.prepare import html_to_text

PACKAGE = "postgresql-doc"  # depends on the manual of the release's version, such as postgresql-doc-15
LEFT_OUT = ("release", "biblio", "bookindex", "acknowledgements", "legalnotice")  # lists of names and numbers
LIMIT_S = 300


class ProseError(RuntimeError):
    """The prose cannot be had; the message says what is missing and how to get it."""


def fetch_prose(directory: Path) -> Path:
    """A folder below ``directory`` with text files of prose; nothing is installed on the machine.

    apt downloads the package and checks its signature chain. The folder appears complete, and is used again.

    Raises:
        ProseError: No apt, no network, no such package; with apt's own words.
    """
    target = directory / PACKAGE
    if target.is_dir():
        return target
    missing = [program for program in ("apt-get", "apt-cache", "dpkg-deb") if shutil.which(program) is None]
    if missing:
        raise ProseError(
            f"{', '.join(missing)} not found: the rehearsal's text comes from Debian's package {PACKAGE}; "
            f"on another system, put text files into {target}"
        )
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix=f".{PACKAGE}.") as temporary:
        work = Path(temporary)
        unpacked = _unpack(_download(work), work / "unpacked")
        _extract(unpacked, work / "text").rename(target)
    return target


def _download(folder: Path) -> Path:
    """The package's file, fetched by apt into ``folder``."""
    package = _manual_package()
    # As root, apt would fetch as user _apt, who may not write here.
    _run("apt-get", "-q", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3", "download", package, cwd=folder)
    return next(folder.glob(f"{package}_*.deb"))


def _manual_package() -> str:
    """Name of the package with the manual itself; reads apt's lists anew if they lack it."""
    found = _dependency()
    if found is None and os.geteuid() == 0:
        _run("apt-get", "-q", "update")
        found = _dependency()
    if found is None:
        raise ProseError(
            f"apt does not know the package {PACKAGE}: run `apt-get update` as root (on Ubuntu: enable main)"
        )
    return found


def _dependency() -> str | None:
    shown = subprocess.run(
        ["apt-cache", "depends", PACKAGE], capture_output=True, text=True, check=False, timeout=LIMIT_S
    ).stdout
    names = [line.split()[-1] for line in shown.splitlines() if line.strip().startswith(f"Depends: {PACKAGE}-")]
    return names[0] if names else None


def _unpack(package: Path, folder: Path) -> Path:
    _run("dpkg-deb", "--extract", str(package), str(folder))
    return folder


def _extract(unpacked: Path, folder: Path) -> Path:
    """Turn the manual's pages into text files."""
    folder.mkdir()
    pages = [page for page in unpacked.rglob("html/*.html") if not page.stem.startswith(LEFT_OUT)]
    if not pages:
        raise ProseError(f"the package {PACKAGE} of this release holds no HTML pages")
    for page in pages:
        (folder / f"{page.stem}.txt").write_text(html_to_text(page.read_text(encoding="utf-8")), encoding="utf-8")
    return folder


def _run(*command: str, cwd: Path | None = None) -> None:
    try:
        subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    except subprocess.CalledProcessError as error:
        raise ProseError(f"`{' '.join(command)}` failed: {error.stderr.strip() or error.stdout.strip()}") from error
    except subprocess.TimeoutExpired as error:
        raise ProseError(f"`{' '.join(command)}` did not end within {LIMIT_S} s: is there a network?") from error
