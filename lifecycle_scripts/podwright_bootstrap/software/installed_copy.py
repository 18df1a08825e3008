"""A copy of our packages on the node: programs of Slurm and systemd must outlive the scripts' temporary folder."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

import podwright_common
from podwright_bootstrap import contract
from podwright_bootstrap.host import files

FOLDER = contract.STATE_DIRECTORY / "lib"
# The first is what the second imports: programs start while files are copied.
PACKAGES = (Path(podwright_common.__file__).resolve().parent, Path(__file__).resolve().parents[1])


def install() -> Iterator[str]:
    """Copy files that differ; do nothing if the copy itself runs."""
    wrote = [
        files.write_file(FOLDER / path.relative_to(package.parent), path.read_bytes())
        for package in PACKAGES
        for path in (*package.rglob("*.py"), *package.rglob("*.json"))
    ]
    if any(wrote):
        yield f"copied this package to {FOLDER}"
