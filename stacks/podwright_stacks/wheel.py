"""A Python project as a wheel that is the same, byte for byte, whenever and wherever its sources are the same."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path, PurePosixPath

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
    sources = _sources(project)
    if contained_package:
        _contain(contained_package, sources, name=project.name)
    folder = cache.resolve() / _digest(sources)  # the build has another working directory
    if not folder.is_dir():
        with tempfile.TemporaryDirectory() as temporary:
            copied_sources = Path(temporary) / "sources"
            _write(sources, copied_sources)
            _build(copied_sources, folder, name=project.name)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _sources(project: Path) -> dict[PurePosixPath, bytes]:
    """Read a folder's sources, by their paths within it: copies are only needed to build, which is rare."""
    contents: dict[PurePosixPath, bytes] = {}
    for folder, folder_names, file_names in os.walk(project):
        ignored_names = NOT_SOURCES(folder, [*folder_names, *file_names])
        folder_names[:] = [name for name in folder_names if name not in ignored_names]
        place = PurePosixPath(Path(folder).relative_to(project).as_posix())
        contents |= {place / name: Path(folder, name).read_bytes() for name in file_names if name not in ignored_names}
    return contents


def _contain(package: Path, sources: dict[PurePosixPath, bytes], *, name: str) -> None:
    """Add a package to a project's sources, in place of the requirement of its distribution."""
    file, distribution = PurePosixPath("pyproject.toml"), package.name.replace("_", "-")
    text, lines = re.subn(rf'^ *"{distribution}",.*\n', "", sources[file].decode("utf-8"), flags=re.MULTILINE)
    if lines != 1:
        raise WheelError(f"{name}/pyproject.toml: {lines} lines require {distribution}, need one")
    sources |= {PurePosixPath(package.name, path): content for path, content in _sources(package).items()}
    sources[file] = text.encode("utf-8")


def _write(sources: Mapping[PurePosixPath, bytes], folder: Path) -> None:
    """Write without the sources' modes, which a wheel keeps and which are others under another umask."""
    for path, content in sources.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        file.chmod(0o644)


def _digest(sources: Mapping[PurePosixPath, bytes]) -> str:
    digest = hashlib.sha256(f"setuptools {version('setuptools')}".encode())
    for path, content in sorted(sources.items()):
        digest.update(f"\0{path}\0{len(content)}\0".encode() + content)
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
