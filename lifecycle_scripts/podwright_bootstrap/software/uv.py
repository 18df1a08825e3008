"""uv, the program that builds virtual environments: fetched once for the cluster, checked, unpacked where it is used.

https://docs.astral.sh/uv/
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import IO, Optional

from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.node import Node
from podwright_bootstrap.software import downloads
from podwright_bootstrap.software.package_index import PackageIndex
from podwright_common.checksum import sha256_of

NAME = "uv"
HINT = "put the wheel of that version there again, or remove it: the release page's archive is used then"


def fetch(node: Node) -> Path:
    """Return the archive with uv: from the offline bundle, else from pip's folder of wheels, else its release page.

    Raises:
        BootstrapError: there is no uv for this machine, the download failed, or the checksum differs.
    """
    wheel = None if downloads.from_bundle(node) else find_wheel()
    return wheel or downloads.fetch(NAME, node)


def find_wheel() -> Optional[Path]:
    """Return uv's wheel if a folder that pip looks into has it; ``BootstrapError`` if that is another file."""
    wheel = json.loads(downloads.MANIFEST.read_text())[NAME].get("wheels", {}).get(platform.machine())
    path = PackageIndex.configured().find(wheel["filename"]) if wheel else None
    if wheel and path and sha256_of(path) != wheel["sha256"]:
        raise BootstrapError(f"{path} has sha256 {sha256_of(path)}, the manifest says {wheel['sha256']}", hint=HINT)
    return path


def unpack(archive: Path, folder: Path) -> Path:
    """Put the program of a wheel or a release's archive into a folder and return its path."""
    program = folder / NAME
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            name = next(item for item in wheel.namelist() if item.endswith(f".data/scripts/{NAME}"))
            with wheel.open(name) as source:
                _write(program, source)
    else:
        with tarfile.open(archive) as release:
            member = next(item for item in release if item.isfile() and Path(item.name).name == NAME)
            content = release.extractfile(member)
            assert content is not None  # noqa: S101 (it is a file)
            _write(program, content)
    return program


def _write(program: Path, source: IO[bytes]) -> None:
    with program.open("wb") as file:
        shutil.copyfileobj(source, file)
    os.chmod(program, 0o755)  # noqa: S103, PTH101 (a program for everybody)
