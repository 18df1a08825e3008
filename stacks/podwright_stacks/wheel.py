"""A Python project as a wheel that is the same, byte for byte, whenever and wherever its sources are the same."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from podwright.errors import PodwrightError

NOT_SOURCES = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist")
EARLIEST_ZIP_DATE = "315532800"  # 1980-01-01, https://reproducible-builds.org/docs/source-date-epoch/
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


class WheelError(PodwrightError):
    """Building the project failed; the message ends with the build's output."""


def build_wheel(project: Path, *, cache: Path, contained_package: Path | None = None) -> Path:
    """Build the project in a folder, or give the wheel that was built of the same sources before.

    Offline: setuptools is asked directly, as pip would with ``--no-build-isolation``. The folder itself stays clean.

    Args:
        project: the folder of the project.
        cache: the folder of earlier wheels.
        contained_package: the package of a distribution that the project requires. The wheel contains it and does not
            require it, so that it installs as one file where no index has our distributions.

    Raises:
        WheelError: there is no such folder, as in an installed wheel, or the build failed.
    """
    if not project.is_dir():
        raise WheelError(f"no sources at {project}", hint="use podwright from its checkout, which has this folder")
    with tempfile.TemporaryDirectory() as temporary:
        sources = Path(temporary) / "sources"
        shutil.copytree(project, sources, ignore=NOT_SOURCES, copy_function=_copy)
        if contained_package:
            _contain(contained_package, sources)
        folder = cache.resolve() / _digest(sources)  # the build has another working directory
        if not folder.is_dir():
            _build(sources, folder, name=project.name)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _contain(package: Path, sources: Path) -> None:
    """Copy a package into a project's sources, in place of the requirement of its distribution."""
    shutil.copytree(package, sources / package.name, ignore=NOT_SOURCES, copy_function=_copy)
    file, distribution = sources / "pyproject.toml", package.name.replace("_", "-")
    text, lines = re.subn(rf'^ *"{distribution}",.*\n', "", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    if lines != 1:
        raise WheelError(f"{sources.name}/pyproject.toml: {lines} lines require {distribution}, need one")
    file.write_text(text, encoding="utf-8")


def _copy(source: str, target: str) -> str:
    """Copy without the mode, which a wheel keeps and which is another under another umask."""
    shutil.copyfile(source, target)
    Path(target).chmod(0o644)
    return target


def _digest(sources: Path) -> str:
    digest = hashlib.sha256(f"setuptools {version('setuptools')}".encode())
    for file in sorted(path for path in sources.rglob("*") if path.is_file()):
        content = file.read_bytes()
        digest.update(f"\0{file.relative_to(sources).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _build(sources: Path, folder: Path, *, name: str) -> None:
    """Build beside the folder and rename, so that the folder is complete or does not exist."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        target = Path(temporary) / "wheel"
        target.mkdir()
        build = subprocess.run(
            [sys.executable, "-I", "-c", BUILD, str(target)],
            cwd=sources,
            env={**os.environ, "SOURCE_DATE_EPOCH": EARLIEST_ZIP_DATE},
            capture_output=True,
            text=True,
            check=False,
        )
        if build.returncode:
            last_lines = "\n".join(build.stderr.splitlines()[-10:])
            raise WheelError(f"setuptools {version('setuptools')} cannot build a wheel of {name}:\n{last_lines}")
        target.rename(folder)
