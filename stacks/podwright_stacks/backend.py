"""Terraform's backend, which stores its state."""

from __future__ import annotations

import os

from podwright.settings import names
from podwright.settings.operations import S3State
from podwright.settings.root import Settings
from podwright_constructs.kit import S3Backend, TerraformStack
from podwright_stacks.provider import ENDPOINT_VARIABLE


def remember(stack: TerraformStack, settings: Settings) -> None:
    """Keep the state in S3, locked by a file beside it, if the settings say so; else cdktf keeps it in this folder.

    https://developer.hashicorp.com/terraform/language/backend/s3
    """
    state = settings.state
    if not isinstance(state, S3State):
        return
    stand_in = True if os.environ.get(ENDPOINT_VARIABLE) else None
    S3Backend(
        stack,
        bucket=state.bucket,
        key=names.state_key(settings.name, stack.node.id),
        region=state.region or settings.region,
        encrypt=True,
        kms_key_id=state.key_arn,
        use_path_style=stand_in,
        skip_metadata_api_check=stand_in,
        skip_region_validation=stand_in,
    )
    stack.add_override("terraform.backend.s3.use_lockfile", True)  # cdktf is older than this argument
