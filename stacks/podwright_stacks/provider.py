"""The AWS provider, the same in both stacks."""

from __future__ import annotations

import os

from podwright.settings import names
from podwright.settings.root import Settings
from podwright_constructs.aws.provider import AwsProvider
from podwright_constructs.kit import TerraformStack

# AWS's own: https://docs.aws.amazon.com/sdkref/latest/guide/feature-ss-endpoints.html
ENDPOINT_VARIABLE = "AWS_ENDPOINT_URL"


def aws_provider(
    stack: TerraformStack, settings: Settings, *, id_: str = "aws", alias: str | None = None, region: str | None = None
) -> AwsProvider:
    """Configure AWS for everything in the stack or, with an alias, for what names it.

    A stand-in for AWS (the rehearsal's, LocalStack) has one address for all buckets and no instance metadata.
    """
    stand_in = True if os.environ.get(ENDPOINT_VARIABLE) else None
    return AwsProvider(
        stack,
        id_,
        region=region or settings.region,
        alias=alias,
        allowed_account_ids=[settings.account_id] if settings.account_id and alias is None else None,
        default_tags=[{"tags": names.tags(settings)}] if alias is None else None,
        s3_use_path_style=stand_in,
        skip_metadata_api_check="true" if stand_in else None,
        skip_region_validation=stand_in,
    )
