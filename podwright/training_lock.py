"""The lock file of the training environment: podwright's own, with the packages that cluster.yaml adds."""

from __future__ import annotations

from pathlib import Path

from podwright import checkout
from podwright_bootstrap.software.requirements import with_added


def training_lock(added: Path | None) -> str:
    """Return the text of the lock file that nodes install.

    Args:
        added: lock file of ``training.requirements``. Default: cluster.yaml adds none.
    """
    lock = checkout.REQUIREMENTS_LOCK.read_text(encoding="utf-8")
    return with_added(lock, added.read_text(encoding="utf-8")) if added else lock
