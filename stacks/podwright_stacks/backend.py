"""Terraform's backend, which stores its state."""

from __future__ import annotations

import os
from pathlib import Path

from podwright.settings import names
from podwright.settings.operations import S3State
from podwright.settings.root import Settings
from podwright.state_owner import StateOwnerError, read, state_file
from podwright_constructs.kit import LocalBackend, S3Backend, TerraformStack
from podwright_stacks.provider import ENDPOINT_VARIABLE, aws_provider


def remember_here(stack: TerraformStack, settings: Settings) -> None:
    """Keep the state in this folder, in a file of its region, unless the stack has a backend."""
    if stack.node.try_find_child("backend") is None:
        LocalBackend(stack, path=str(state_file(Path.cwd(), stack.node.id, settings.region)))


def remember(stack: TerraformStack, settings: Settings) -> None:
    """Keep the state in S3, locked by a file beside it, if the settings say so.

    https://developer.hashicorp.com/terraform/language/backend/s3

    Raises:
        StateOwnerError: the settings name S3, and this folder still has a state.
    """
    state = settings.state
    if not isinstance(state, S3State):
        return
    file = state_file(Path.cwd(), stack.node.id, settings.region)
    if file.is_file() and read(file).get("resources"):
        raise StateOwnerError(f"{file} has resources, and the settings keep states in S3", "run `podwright state`")
    stand_in = True if os.environ.get(ENDPOINT_VARIABLE) else None
    S3Backend(
        stack,
        bucket=state.bucket,
        key=names.state_key(settings.name, settings.region, stack.node.id),
        region=state.region or settings.region,
        encrypt=True,
        kms_key_id=state.key_arn,
        use_path_style=stand_in,
        skip_metadata_api_check=stand_in,
        skip_region_validation=stand_in,
    )
    stack.add_override("terraform.backend.s3.use_lockfile", True)  # cdktf is older than this argument
    _refuse_former_key(stack, settings, state)


def _refuse_former_key(stack: TerraformStack, settings: Settings, state: S3State) -> None:
    """Fail plans while the bucket has a state under the key without a region: they would begin with an empty one."""
    former = names.former_state_key(settings.name, stack.node.id)
    lookup = {"bucket": state.bucket, "prefix": former, "max_keys": 1}
    if state.region not in {None, settings.region}:
        provider = aws_provider(stack, settings, id_="aws_of_states", alias="states", region=state.region)
        lookup["provider"] = provider.fqn
    refusal = {
        "condition": f'${{!contains(self.keys, "{former}")}}',  # a lock that stayed behind it is none
        "error_message": (
            f"s3://{state.bucket}/{former} is a state from before its key had the region. Run `podwright state` with "
            "the settings file that it was deployed from: it moves the state."
        ),
    }
    lookup["lifecycle"] = {"postcondition": [refusal]}
    stack.add_override("data.aws_s3_objects.former_state", lookup)
