"""What nodes may do with a bucket that is not the cluster's own. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class S3Access:
    """A bucket, or what lies below a prefix of it, for a role: read, or read and written.

    Args:
        bucket: its name.
        prefix: what the keys begin with, ``datasets/``; empty is the whole bucket.
        read_only: whether nodes may only read; otherwise they write, overwrite and delete.
        key_arn: KMS key the bucket is encrypted with, if it is a key of yours.
    """

    bucket: str
    prefix: str = ""
    read_only: bool = True
    key_arn: str | None = None
