"""The one way from the bucket to a node: copied, compared with the sha256 of the contract, then used."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

from podwright_bootstrap import shell
from podwright_bootstrap.requirements import sha256_of
from podwright_bootstrap.shell import BootstrapError, CommandError

Copy = Callable[[str, Path], None]  # an object of the bucket, by its URI, to a file


def fetch(uri: str, sha256: str, folder: Path, copy: Copy) -> Path:
    """Copy an object of the bucket to ``folder`` and prove that it is the one the cluster was deployed with.

    Raises:
        BootstrapError: it is another; the file is removed.
    """
    path = folder / uri.rsplit("/", 1)[-1]
    copy(uri, path)
    found = sha256_of(path)
    if found != sha256:
        path.unlink()
        raise BootstrapError(
            f"{uri} has sha256 {found}, the contract says {sha256}",
            hint="somebody changed the bucket after the deployment: deploy the cluster stack again",
        )
    return path


def from_bucket(uri: str, path: Path, *, region: str) -> None:
    """Copy by the AWS CLI of the image, tried again while the network and the credentials of the host come up."""
    command = ["aws", "s3", "cp", "--only-show-errors", *(["--region", region] if region else []), uri, str(path)]
    shell.retry(lambda: shell.run(*command, timeout_s=600), attempts=4, pause_s=10, errors=(CommandError,))
