"""Resources that a destruction spares on AWS, and that a rehearsal removes all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from podwright.settings.operations import S3State
from podwright.settings.root import Settings

NO_CONSTRAINT = "us-east-1"  # the region whose name S3 refuses as a constraint
Client = Callable[[str], Any]  # makes boto3's client of a service


def make_bucket_of_states(client: Client, settings: Settings) -> None:
    """Make the bucket of Terraform's states if the settings name one, as `podwright state` does on AWS."""
    state = settings.state
    if isinstance(state, S3State):
        region = state.region or settings.region
        constraint = {} if region == NO_CONSTRAINT else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        client("s3").create_bucket(Bucket=state.bucket, **constraint)


def release(client: Client) -> None:
    """Let databases be deleted that refuse it."""
    rds = client("rds")
    for database in rds.describe_db_instances()["DBInstances"]:
        name = database["DBInstanceIdentifier"]
        rds.modify_db_instance(DBInstanceIdentifier=name, DeletionProtection=False, ApplyImmediately=True)


def remove(client: Client, settings: Settings) -> None:
    """Remove the last backups of file systems, and the states with their bucket."""
    fsx, s3, state = client("fsx"), client("s3"), settings.state
    for backup in fsx.describe_backups()["Backups"]:
        fsx.delete_backup(BackupId=backup["BackupId"])
    if isinstance(state, S3State):
        for item in s3.list_objects_v2(Bucket=state.bucket).get("Contents", ()):
            s3.delete_object(Bucket=state.bucket, Key=item["Key"])
        s3.delete_bucket(Bucket=state.bucket)
