"""The AWS provider, the same in both stacks."""

from __future__ import annotations

import os

from podwright.settings import names
from podwright.settings.access import AssumedRole
from podwright.settings.root import Settings
from podwright_constructs.aws.provider import AwsProvider, AwsProviderAssumeRole
from podwright_constructs.kit import TerraformStack

# AWS's own: https://docs.aws.amazon.com/sdkref/latest/guide/feature-ss-endpoints.html
ENDPOINT_VARIABLE = "AWS_ENDPOINT_URL"


def aws_provider(
    stack: TerraformStack, settings: Settings, *, id_: str = "aws", alias: str | None = None, region: str | None = None
) -> AwsProvider:
    """Configure AWS for everything in the stack or, with an alias, for what names it.

    A stand-in for AWS (the rehearsal's, LocalStack) has one address for all buckets and no instance metadata.
    """
    assumed, ignored = (settings.assume_role, settings.ignore_tags) if alias is None else (None, None)
    stand_in = True if os.environ.get(ENDPOINT_VARIABLE) else None
    return AwsProvider(
        stack,
        id_,
        region=region or settings.region,
        alias=alias,
        allowed_account_ids=[settings.account_id] if settings.account_id and alias is None else None,
        assume_role=[_assumed(assumed)] if assumed else None,
        ignore_tags=[{"keys": ignored.keys, "key_prefixes": ignored.key_prefixes}] if ignored else None,
        default_tags=[{"tags": names.tags(settings)}] if alias is None else None,
        s3_use_path_style=stand_in,
        skip_metadata_api_check="true" if stand_in else None,
        skip_region_validation=stand_in,
    )


def _assumed(role: AssumedRole) -> AwsProviderAssumeRole:
    block: AwsProviderAssumeRole = {"role_arn": role.role_arn, "session_name": role.session_name}
    return {**block, "external_id": role.external_id} if role.external_id else block
