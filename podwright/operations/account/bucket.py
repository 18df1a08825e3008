"""The versions of objects in a bucket: S3 deletes no bucket that has one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from podwright.aws_session import Session
from podwright.errors import AwsError, OperationError
from podwright.list_prices import S3_USD_PER_GIB_MONTH

BATCH = 1000  # the most that one DeleteObjects takes
MAX_COUNTED = 10_000
GIB = 1 << 30


class Contents:
    """The object versions of a bucket, counted up to ``MAX_COUNTED``.

    Args:
        session: The account.
        bucket: The bucket's name.
        without: Prefixes that are not counted.

    Raises:
        OperationError: AWS refuses; a bucket that does not exist is ``not exists``.
    """

    def __init__(self, session: Session, bucket: str, *, without: Sequence[str] = ()) -> None:
        self.count = self.size = 0
        self.exists = True
        versions = (item for item in _versions(session, bucket) if not item[0].startswith(tuple(without) or "\0"))
        try:
            for _, _, size in islice(versions, MAX_COUNTED):
                self.count, self.size = self.count + 1, self.size + size
        except AwsError as error:
            if not error.absent:
                raise
            self.exists = False

    def __str__(self) -> str:
        more = "more than " if self.count == MAX_COUNTED else ""
        return f"{more}{self.count} objects with their versions, {self.size / GIB:,.2f} GiB"

    @property
    def usd_per_month(self) -> float:
        """The monthly price of the counted objects."""
        return self.size / GIB * S3_USD_PER_GIB_MONTH


def empty(session: Session, bucket: str) -> int:
    """Delete every version and return how many there were.

    Raises:
        OperationError: AWS refuses, or keeps an object; the message has the first one and the reason.
    """
    deleted = 0
    while batch := list(islice(_versions(session, bucket), BATCH)):
        objects = [{"Key": key, "VersionId": version} for key, version, _ in batch]
        batch_request = {"Objects": objects, "Quiet": True}
        for refused in session.call("s3", "delete_objects", Bucket=bucket, Delete=batch_request).get("Errors", ()):
            raise OperationError(f"S3 keeps s3://{bucket}/{refused['Key']}: {refused['Message']}")
        deleted += len(batch)
    return deleted


def _versions(session: Session, bucket: str) -> Iterator[tuple[str, str, int]]:
    """Yield key, version id and size of all versions and delete markers."""
    with session.translated("s3"):
        for page in session.client("s3").get_paginator("list_object_versions").paginate(Bucket=bucket):
            for item in page.get("Versions", ()):
                yield item["Key"], item["VersionId"], item["Size"]
            for item in page.get("DeleteMarkers", ()):
                yield item["Key"], item["VersionId"], 0
