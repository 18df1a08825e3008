"""Packages of the repositories that the image's apt knows, whose signatures apt checks."""

from __future__ import annotations

from pathlib import Path

from podwright_bootstrap.host import shell
from podwright_bootstrap.host.shell import BootstrapError, CommandError
from podwright_bootstrap.node import Node
from podwright_bootstrap.software import downloads

# Another apt may run: images update themselves when they start.
OPTIONS = ("-q", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3")
LIMIT_S = 900


def install(*packages: str | Path, node: Node) -> None:
    """Install packages by name or file, and what they depend on.

    Raises:
        BootstrapError: the cluster takes nothing from the internet; CommandError: apt failed.
    """
    if downloads.from_bundle(node):
        _install_offline(*packages)
        return
    shell.retry(lambda: _apt("update"), attempts=3, pause_s=10, errors=(CommandError,))
    shell.retry(lambda: _apt("install", *packages), attempts=3, pause_s=10, errors=(CommandError,))


def _install_offline(*packages: str | Path) -> None:
    """Files of packages, if the image has what they depend on."""
    names = ", ".join(package for package in packages if isinstance(package, str))
    if names:
        raise BootstrapError(
            f"this image lacks {names}, and packages of the distribution are not in the offline bundle",
            hint="use an image that has it: image_id of the instance group in cluster.yaml",
        )
    _apt("install", "--no-download", *packages)


def _apt(command: str, *words: str | Path) -> None:
    shell.run("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", command, *words, *OPTIONS, timeout_s=LIMIT_S)
