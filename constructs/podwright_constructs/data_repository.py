"""What is linked with a file system. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class DataRepository:
    """A prefix of an S3 bucket that a folder of a Lustre file system shows.

    Args:
        path: the folder below the file system's root, ``/data``.
        s3_uri: ``s3://bucket`` or ``s3://bucket/prefix``.
        import_changes: show what is new, changed or deleted in S3, from the beginning.
        export_changes: write what is new, changed or deleted in the folder to S3.
    """

    path: str
    s3_uri: str
    import_changes: bool = True
    export_changes: bool = False
