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

PACKAGE = "postgresql-doc"  # with PostgreSQL's version behind it, another one in each release
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
    package = _newest_package()
    # As root, apt would fetch as user _apt, who may not write here.
    _run("apt-get", "-q", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3", "download", package, cwd=folder)
    return next(folder.glob(f"{package}_*.deb"))


def _newest_package() -> str:
    """Name of the package of the release's newest version; reads apt's lists anew if they lack it."""
    found = _search()
    if not found and os.geteuid() == 0:
        _run("apt-get", "-q", "update")
        found = _search()
    if not found:
        raise ProseError(f"apt knows no package {PACKAGE}-<version>: run `apt-get update` as root")
    return max(found, key=lambda name: int(name.rsplit("-", 1)[1]))


def _search() -> list[str]:
    shown = _run("apt-cache", "search", "--names-only", f"^{PACKAGE}-[0-9]+$")
    return [line.split()[0] for line in shown.splitlines()]


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


def _run(*command: str, cwd: Path | None = None) -> str:
    """What the program printed; its messages are in English, whatever the user's locale."""
    english = {**os.environ, "LC_ALL": "C.UTF-8"}
    try:
        return subprocess.run(
            command, cwd=cwd, env=english, capture_output=True, text=True, check=True, timeout=LIMIT_S
        ).stdout
    except subprocess.CalledProcessError as error:
        raise ProseError(f"`{' '.join(command)}` failed: {error.stderr.strip() or error.stdout.strip()}") from error
    except subprocess.TimeoutExpired as error:
        raise ProseError(f"`{' '.join(command)}` did not end within {LIMIT_S} s: is there a network?") from error
