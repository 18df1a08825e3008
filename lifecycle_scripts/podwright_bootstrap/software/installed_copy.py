"""A copy of this package on the node: programs of Slurm and systemd must outlive the scripts' temporary folder."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

from podwright_bootstrap import contract
from podwright_bootstrap.host import files

FOLDER = contract.STATE_DIRECTORY / "lib"
PACKAGE = Path(__file__).resolve().parents[1]


def install() -> Iterator[str]:
    """Copy files that differ; do nothing if the copy itself runs."""
    source_files = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.json")]
    wrote = [files.write_file(FOLDER / path.relative_to(PACKAGE.parent), path.read_bytes()) for path in source_files]
    if any(wrote):
        yield f"copied this package to {FOLDER}"
