"""Programs out of the archives of their releases, in a folder of this node that carries the version."""

from __future__ import annotations

import tarfile
from pathlib import Path

from podwright_bootstrap import contract
from podwright_bootstrap.host import files
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.node import Node
from podwright_bootstrap.software import downloads

FOLDER = contract.STATE_DIRECTORY / "programs"
SUFFIX = ".tar.gz"


def install(name: str, node: Node) -> Path:
    """Fetch the release unless the program exists, and return the program's path.

    Raises:
        BootstrapError: as of ``downloads.fetch``, or the archive has no program of that name.
    """
    path = path_of(name)
    if not path.exists():
        with tarfile.open(downloads.fetch(name, node)) as archive:
            member = next((item for item in archive if item.isfile() and Path(item.name).name == name), None)
            content = archive.extractfile(member) if member else None
            if content is None:
                raise BootstrapError(f"{downloads.find(name).filename} holds no {name}")
            files.write_file(path, content.read(), mode=0o755)
    return path


def path_of(name: str) -> Path:
    """Return where the program is, or will be."""
    return FOLDER / downloads.find(name).filename[: -len(SUFFIX)] / name
