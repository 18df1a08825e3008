"""The lock file of the training environment: podwright's own, with the packages that cluster.yaml adds."""

from __future__ import annotations

from pathlib import Path

from podwright import checkout
from podwright_bootstrap.software.requirements import with_added

LOWEST_PYTHON = "3.10"  # The training program runs on no older one.


def training_lock(added: Path | None) -> str:
    """Return the text of the lock file that nodes install.

    Args:
        added: lock file of ``training.requirements``. Default: cluster.yaml adds none.
    """
    lock = checkout.REQUIREMENTS_LOCK.read_text(encoding="utf-8")
    return with_added(lock, read_added(added)) if added else lock


def read_added(file: Path) -> str:
    """Return the text of a lock file that a user wrote, without the byte order mark of some editors."""
    return file.read_text(encoding="utf-8-sig")


def compile_command(file: str) -> str:
    """Return the command that locks the packages in ``packages.in`` for all nodes."""
    return (
        f"uv pip compile --universal --python-version {LOWEST_PYTHON} --only-binary :all: --generate-hashes "
        f"packages.in --constraint {checkout.REQUIREMENTS_LOCK} -o {file}"
    )
