"""Arguments of buckets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typing_extensions import Doc

from podwright_constructs import facts


@dataclass(frozen=True, kw_only=True)
class ExistingBucketArguments:
    """An existing S3 bucket."""

    name: Annotated[str, Doc(f"Its name; AWS's managed policy for nodes reads only {facts.BUCKET_NAME_PREFIX}….")]
    key_arn: Annotated[
        str | None,
        Doc("ARN of the KMS key that encrypts the bucket; a created role may use it. Default: S3's own encryption."),
    ] = None
    account_id: Annotated[
        str | None,
        Doc("Account of the bucket, whose policy must admit the nodes' roles. Default: the cluster's account."),
    ] = None
