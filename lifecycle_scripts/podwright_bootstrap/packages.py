"""Packages of the image's distribution, whose signatures apt checks."""

from __future__ import annotations

from pathlib import Path

from podwright_bootstrap import downloads, shell
from podwright_bootstrap.node import Node
from podwright_bootstrap.shell import BootstrapError, CommandError

# Another apt may run: images update themselves when they start.
OPTIONS = ("-q", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3")
LIMIT_S = 900


def install(*packages: str | Path, node: Node) -> None:
    """Install packages by name or file, and what they depend on.

    Raises:
        BootstrapError: the cluster takes nothing from the internet; CommandError: apt failed.
    """
    names = ", ".join(str(package).rsplit("/", 1)[-1] for package in packages)
    if downloads.from_bundle(node):
        raise BootstrapError(
            f"this image lacks {names}, and packages of the distribution are not in the offline bundle",
            hint="use an image that has it: image_id of the instance group in cluster.yaml",
        )
    shell.retry(lambda: _apt("update"), attempts=3, pause_s=10, errors=(CommandError,))
    shell.retry(lambda: _apt("install", *packages), attempts=3, pause_s=10, errors=(CommandError,))


def _apt(*words: str | Path) -> None:
    shell.run("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", *OPTIONS, *words, timeout_s=LIMIT_S)
