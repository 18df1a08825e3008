"""``podwright align``: write the cluster as AWS lists it into Terraform's state, before instance groups change.

AWS returns instance groups in an order of its own. Terraform's provider compares the old desired state with the new
one by index, and Cloud Control applies the difference to AWS's order: "remove one group, add one" then changes others.
https://github.com/hashicorp/terraform-provider-awscc/issues/3110 describes the same for another provider.

``podwright deploy`` does this by itself. A test shows that each kind of update then reaches the right groups, and that
without it an update changes the wrong one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from podwright.aws_session import deployer_session
from podwright.check.account import Account
from podwright.config_file import add_file
from podwright.json_document import JsonObject
from podwright.operations.deployment.deployed_stacks import DeployedStack, stacks
from podwright.operations.output import print_document
from podwright.resource_types import CLUSTER
from podwright_common.command_line import add_examples, add_json
from podwright_common.exit_status import OK

if TYPE_CHECKING:
    from podwright.settings.root import Settings

IDENTIFIERS = ("InstanceGroupName", "Key")  # the members that identify an item of a list


@dataclass(frozen=True, kw_only=True)
class Align(JsonObject):
    """The document of `podwright align --json`."""

    schema: Literal["podwright.align/1"] = "podwright.align/1"
    changed: bool
    """Whether Terraform's state was another than AWS's cluster."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add FILE and --json."""
    add_file(parser)
    add_json(parser)
    add_examples(parser, "podwright align")


def run(options: argparse.Namespace) -> int:
    """Align the state, and print whether it changed."""
    from podwright.check.load import load
    from podwright.operations.deployment.kit import Kit

    settings = load(options.file)
    with Kit(options.file, Path.cwd()).locked("align"):
        changed = align(settings, folder=Path.cwd())
    if options.json:
        print_document(Align(changed=changed))
    else:
        print("the state lists the cluster as AWS does now" if changed else "the state lists the cluster as AWS does")
    return OK


def align(settings: Settings, *, folder: Path) -> bool:
    """Align the state of the cluster's stack with AWS; return whether it changed. AWS is not changed.

    Args:
        settings: The settings of the cluster.
        folder: The folder it was deployed from, with cdktf.out.

    Raises:
        NotDeployedError: It was not deployed from this folder.
        TerraformError: Terraform cannot read or write the state.
        OperationError: AWS does not answer.
    """
    stack = stacks(settings.name, folder=folder)["cluster"]
    stack.check()

    account = Account(deployer_session(settings))
    stack.check_owner(account_id=account.account_id(), region=settings.region)
    return align_stack(stack, account)


def align_stack(stack: DeployedStack, account: Account) -> bool:
    """Align the clusters in the state of one stack; return whether it changed."""
    state = stack.state()
    changed = False
    for attributes in _clusters(state):
        properties = account.look(
            "ResourceDescription.Properties",
            "cloudcontrol",
            "get_resource",
            TypeName=attributes["type_name"],
            Identifier=attributes["id"],
        )
        if properties is None:
            continue  # deleted: Terraform's next plan creates it
        before = json.loads(attributes["desired_state"])
        after = as_read(before, json.loads(properties))
        if after != before:
            attributes["desired_state"] = json.dumps(after, sort_keys=True)
            changed = True
    if changed:
        state["serial"] += 1
        stack.terraform("state", "push", "-", text=json.dumps(state))
    return changed


def as_read(requested: Any, actual: Any) -> Any:
    """Return the request with AWS's values in AWS's order, without members that only AWS has."""
    if isinstance(requested, dict) and isinstance(actual, dict):
        return {key: as_read(value, actual[key]) for key, value in requested.items() if key in actual}
    if isinstance(requested, list) and isinstance(actual, list):
        requested_by_name = {identifier(item): item for item in requested}
        return [as_read(requested_by_name.get(identifier(item), _members(requested)), item) for item in actual]
    return actual


def _members(items: list[Any]) -> dict[str, Any] | None:
    """Return the members that items of a list have, for an item that another program added; None without members."""
    return {key: value for item in items if isinstance(item, dict) for key, value in item.items()} or None


def identifier(item: Any) -> str:
    """Return the identity of an item of a list: its name or key, else the whole item."""
    names = [str(item[name]) for name in IDENTIFIERS if name in item] if isinstance(item, dict) else []
    return names[0] if names else json.dumps(item, sort_keys=True)


def _clusters(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for resource in state.get("resources", ()):
        if resource["type"] == CLUSTER:
            yield from (instance["attributes"] for instance in resource["instances"])
