"""Objects of the cluster's bucket, by the image's own ``aws``, which has the node's role."""

from __future__ import annotations

from pathlib import Path

from podwright_bootstrap.host import process, waits
from podwright_bootstrap.host.errors import CommandError

NO_CREDENTIALS = "Unable to locate credentials"  # the AWS CLI prints this
NO_CREDENTIALS_HINT = (
    "the instance's metadata gives this node no role: look at the execution role of its instance group "
    "(aws sagemaker describe-cluster), then replace the node"
)


def copy(uri: str, path: Path, *, region: str, recursive: bool = False) -> None:
    """Copy an object to a file, or all below a prefix into a folder; raises ``CommandError``."""
    options = [*(["--recursive"] if recursive else []), *(["--region", region] if region else [])]
    command = ["aws", "s3", "cp", "--only-show-errors", *options, uri, str(path)]
    try:
        waits.retry(lambda: process.run(*command, timeout_s=600), attempts=4, pause_s=10, errors=(CommandError,))
    except CommandError as error:
        if NO_CREDENTIALS in str(error):
            error.hint = NO_CREDENTIALS_HINT
        raise
