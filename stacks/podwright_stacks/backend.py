"""Terraform's backend, which stores its state."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from constructs import Construct

from podwright.settings import names
from podwright.settings.operations import LocalState, S3State
from podwright.settings.root import Settings
from podwright.state_owner import StateOwnerError, read, state_file
from podwright_constructs.kit import (
    LocalBackend,
    S3Backend,
    TerraformBackend,
    TerraformRemoteState,
    TerraformStack,
)
from podwright_stacks.provider import ENDPOINT_VARIABLE, aws_provider

CLOUD = "cloud"  # HCP Terraform, whose block is none of a backend.


def remember_here(stack: TerraformStack, settings: Settings) -> None:
    """Keep the state in this folder, in a file of its region, unless the stack has a backend."""
    if stack.node.try_find_child("backend") is None:
        LocalBackend(stack, path=str(state_file(Path.cwd(), stack.node.id, settings.region)))


def remember(stack: TerraformStack, settings: Settings) -> None:
    """Keep the state elsewhere than in this folder, if the settings say so.

    Raises:
        StateOwnerError: the settings name another place, and this folder still has a state.
    """
    state = settings.state
    if isinstance(state, LocalState):
        return
    file = state_file(Path.cwd(), stack.node.id, settings.region)
    if file.is_file() and read(file).get("resources"):
        place = "S3" if isinstance(state, S3State) else state.type
        raise StateOwnerError(f"{file} has resources, and the settings keep states in {place}", "run `podwright state`")
    if isinstance(state, S3State):
        _remember_in_s3(stack, settings, state)
    else:
        AnyBackend(stack, type_=state.type, arguments_of=partial(state.arguments_of, region=settings.region))


def _remember_in_s3(stack: TerraformStack, settings: Settings, state: S3State) -> None:
    """Keep the state in S3, locked by a file beside it.

    https://developer.hashicorp.com/terraform/language/backend/s3
    """
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


class AnyBackend(TerraformBackend):
    """A backend of any type, whose arguments are written as they are given; HCP Terraform has a block of its own.

    https://developer.hashicorp.com/terraform/language/backend
    https://developer.hashicorp.com/terraform/language/block/terraform#cloud

    Args:
        scope: the stack.
        type_: Terraform's name of the backend.
        arguments_of: returns the arguments for the state of a stack.
    """

    def __init__(self, scope: TerraformStack, *, type_: str, arguments_of: Callable[[str], Mapping[str, Any]]) -> None:
        super().__init__(scope, "backend", type_)
        self._type, self._arguments_of, self._stack = type_, arguments_of, scope.node.id

    def to_terraform(self) -> Any:
        """Return the block, which is the backend's own or that of HCP Terraform."""
        arguments = self._arguments_of(self._stack)
        return {"terraform": {CLOUD: arguments} if self._type == CLOUD else {"backend": {self._type: arguments}}}

    def get_remote_state_data_source(self, scope: Construct, name: str, from_stack: str) -> TerraformRemoteState:
        """Return what reads another stack's outputs; the kit asks for it where one stack refers to the other."""
        # Terraform reads states of HCP Terraform by the backend of its former name.
        type_ = "remote" if self._type == CLOUD else self._type
        return _OtherState(scope, name, type_=type_, arguments=self._arguments_of(from_stack))


class _OtherState(TerraformRemoteState):
    """Outputs of another stack, in a backend of any type."""

    def __init__(self, scope: Construct, id_: str, *, type_: str, arguments: Mapping[str, Any]) -> None:
        super().__init__(scope, id_, type_)
        self._block = {"backend": type_, "config": arguments}

    def to_terraform(self) -> Any:
        """Return the data source."""
        return {"data": {"terraform_remote_state": {self.friendly_unique_id: self._block}}}


def _refuse_former_key(stack: TerraformStack, settings: Settings, state: S3State) -> None:
    """Fail plans while the bucket has a state under the key without a region: they would begin with an empty one."""
    former = names.former_state_key(settings.name, stack.node.id)
    lookup = {"bucket": state.bucket, "prefix": former, "max_keys": 1}
    if state.region not in {None, settings.region} or settings.assume_role:  # the backend does not assume the role
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
