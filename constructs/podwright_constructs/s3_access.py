"""Access of nodes to a bucket that is not the cluster's own. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class S3Access:
    """Read or write access of a role to a bucket, or to a prefix of it.

    Args:
        bucket: Name of the bucket.
        prefix: Prefix of the keys, such as ``datasets/``. Default: the whole bucket.
        read_only: Allow reading only; false also allows writing, overwriting and deleting. Default: true.
        key_arn: Your KMS key that encrypts the bucket. Default: no key of yours.
    """

    bucket: str
    prefix: str = ""
    read_only: bool = True
    key_arn: str | None = None
