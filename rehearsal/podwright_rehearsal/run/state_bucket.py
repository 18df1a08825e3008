"""The bucket of Terraform's states, which is there before anything is deployed, and stays after everything has gone.

On AWS `podwright state` makes it.
"""

from __future__ import annotations

from typing import Any

from podwright.settings.operations import S3State
from podwright.settings.root import Settings

NO_CONSTRAINT = "us-east-1"  # the region whose name S3 refuses as a constraint


def make(s3: Any, settings: Settings) -> None:
    """Make the bucket if the settings name one; ``s3`` is boto3's client."""
    state = settings.state
    if isinstance(state, S3State):
        region = state.region or settings.region
        constraint = {} if region == NO_CONSTRAINT else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        s3.create_bucket(Bucket=state.bucket, **constraint)


def remove(s3: Any, settings: Settings) -> None:
    """Remove the bucket and the states in it."""
    state = settings.state
    if isinstance(state, S3State):
        for item in s3.list_objects_v2(Bucket=state.bucket).get("Contents", ()):
            s3.delete_object(Bucket=state.bucket, Key=item["Key"])
        s3.delete_bucket(Bucket=state.bucket)
