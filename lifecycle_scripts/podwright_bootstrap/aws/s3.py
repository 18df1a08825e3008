"""Objects of the cluster's bucket, by the image's own ``aws``, which has the node's role."""

from __future__ import annotations

from pathlib import Path

from podwright_bootstrap.host import shell
from podwright_bootstrap.host.shell import CommandError


def copy(uri: str, path: Path, *, region: str, recursive: bool = False) -> None:
    """Copy an object to a file, or all below a prefix into a folder; raises ``CommandError``."""
    options = [*(["--recursive"] if recursive else []), *(["--region", region] if region else [])]
    command = ["aws", "s3", "cp", "--only-show-errors", *options, uri, str(path)]
    shell.retry(lambda: shell.run(*command, timeout_s=600), attempts=4, pause_s=10, errors=(CommandError,))
