"""``podwright adopt``: import resources of an interrupted Terraform run into its state, without a change in AWS."""

from __future__ import annotations

import argparse
import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from podwright.aws_session import deployer_session
from podwright.check.account import Account
from podwright.config_file import add_file
from podwright.json_document import JsonObject
from podwright.operations.deployment.align import identifier
from podwright.operations.deployment.deployed_stacks import DeployedStack, stacks
from podwright.operations.deployment.orphans import Orphan, orphans
from podwright.operations.deployment.terraform import TerraformError
from podwright.operations.output import print_document
from podwright.resource_types import CLUSTER
from podwright.settings import names
from podwright_common.command_line import add_examples, add_json
from podwright_common.exit_status import FAILED, OK

if TYPE_CHECKING:
    from podwright.settings.root import Settings

# Of the state file, since Terraform 0.12; https://developer.hashicorp.com/terraform/internals/json-format omits it.
STATE_VERSION = 4
# Terraform prints this for deleted resources, which the Tagging API lists for a while.
NOT_FOUND = "Cannot import non-existent remote object"


@dataclass(frozen=True)
class Outcome(JsonObject):
    """A resource in AWS that no state knew."""

    # Without --apply it is adoptable; `gone` was deleted meanwhile, and `left` is left to the user.
    outcome: Literal["adopted", "adoptable", "gone", "left"]
    arn: str
    address: str | None
    """In Terraform; null if no plan has it."""
    text: str
    """What became of it, and what to do."""

    @property
    def is_unadopted(self) -> bool:
        """Return whether Terraform's state still lacks the resource."""
        return self.outcome in {"adoptable", "left"}


@dataclass(frozen=True, kw_only=True)
class Adopt(JsonObject):
    """The document of `podwright adopt --json`."""

    schema: Literal["podwright.adopt/1"] = "podwright.adopt/1"
    applied: bool
    orphans: list[Outcome]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add FILE, --apply and --json."""
    add_file(parser)
    parser.add_argument("--apply", action="store_true", help="change Terraform's state. Default: only list")
    add_json(parser)
    add_examples(parser, "podwright adopt", "podwright adopt --apply")


def run(options: argparse.Namespace) -> int:
    """Print the result for each orphan; return 1 if Terraform's state still lacks one."""
    from podwright.check.load import load
    from podwright.operations.deployment.kit import Kit

    settings, outcomes = load(options.file), []
    with Kit(options.file, Path.cwd()).locked("adopt"):  # No state lists yet what a deployment is making.
        for outcome in adopt(settings, folder=Path.cwd(), apply=options.apply):
            outcomes.append(outcome)
            if not options.json:
                print(outcome.text, flush=True)
    remaining = sum(outcome.is_unadopted for outcome in outcomes)
    if options.json:
        print_document(Adopt(applied=options.apply, orphans=outcomes))
    elif remaining and not options.apply:
        print(f"{remaining} in AWS that no state lists: adopt with --apply, which does not change AWS")
    return FAILED if remaining else OK


def adopt(settings: Settings, *, folder: Path, apply: bool) -> Iterator[Outcome]:
    """Find the orphans of a cluster's stacks, import them with ``apply``, and yield the outcome of each.

    Args:
        settings: The settings of the cluster.
        folder: The folder it was deployed from, with cdktf.out.
        apply: Whether to change Terraform's state.

    Raises:
        NotDeployedError: It was not deployed from this folder.
        TerraformError: Terraform cannot plan or import.
        OperationError: AWS does not answer.
    """
    parts = stacks(settings.name, folder=folder)
    parts["foundation"].check()

    account = Account(deployer_session(settings))
    for stack in parts.values():
        if stack.was_initialized:
            stack.check_owner(account_id=account.account_id(), region=settings.region)
    tagged = account.tagged(names.CLUSTER_TAG, settings.name)
    for stack in parts.values():
        if not stack.was_initialized:
            continue
        try:
            yield from _adopt_in_rounds(stack, tagged, account) if apply else _list_orphans(stack, tagged, account)
        except TerraformError:
            if stack is parts["foundation"] or _is_whole(parts["foundation"]):
                raise
            yield from _unplanned(stack, tagged)


def _is_whole(stack: DeployedStack) -> bool:
    """Return whether every resource of the stack exists."""
    return not any("create" in item["change"]["actions"] for item in stack.plan().get("resource_changes", ()))


def _unplanned(stack: DeployedStack, tagged: Mapping[str, Mapping[str, str]]) -> Iterator[Outcome]:
    """Yield orphans of a stack without a plan, because its foundation is incomplete."""
    orphan_arns = [arn for arn, tags in tagged.items() if names.construct_path(tags).startswith(f"{stack.name}/")]
    for arn in orphan_arns:
        yield Outcome("left", arn, None, f"left {arn}: deploy its foundation first, then run adopt again")


def _list_orphans(stack: DeployedStack, tagged: Mapping[str, Mapping[str, str]], account: Account) -> Iterator[Outcome]:
    """Yield every orphan of the stack."""
    for orphan in orphans(stack, stack.plan(), tagged, account):
        yield _outcome("adoptable", orphan, "would adopt") if orphan.is_adoptable else _unadopted(orphan)


def _adopt_in_rounds(
    stack: DeployedStack, tagged: Mapping[str, Mapping[str, str]], account: Account
) -> Iterator[Outcome]:
    """Adopt until no further orphan is found: an untagged resource is found once its parent is in the state."""
    tried: set[str] = set()
    while True:
        plan = stack.plan()
        new_orphans = [orphan for orphan in orphans(stack, plan, tagged, account) if orphan.arn not in tried]
        for orphan in new_orphans:
            yield _import(stack, plan, orphan, account) if orphan.is_adoptable else _unadopted(orphan)
        tried |= {orphan.arn for orphan in new_orphans}
        if not new_orphans:
            return


def _import(stack: DeployedStack, plan: Mapping[str, Any], orphan: Orphan, account: Account) -> Outcome:
    """Import an orphan into the stack's state."""
    address = str(orphan.address)
    try:
        if address.startswith(f"{CLUSTER}."):
            _enter_cluster(stack, plan, orphan, account)
        else:
            stack.terraform("import", "-input=false", "-no-color", address, orphan.import_id)
    except TerraformError as error:
        if NOT_FOUND not in str(error):
            raise
        return _outcome("gone", orphan, "gone")
    return _outcome("adopted", orphan, "adopted")


def _outcome(outcome: Literal["adopted", "adoptable", "gone"], orphan: Orphan, verb: str) -> Outcome:
    wait = "" if orphan.is_ready else f"; it is {orphan.status}: wait until it is ready before you deploy"
    return Outcome(outcome, orphan.arn, orphan.address, f"{verb} {orphan.address} {orphan.import_id}{wait}")


def _unadopted(orphan: Orphan) -> Outcome:
    """Return the outcome of an orphan that cannot be adopted: the reason, and the command that deletes it."""
    if orphan.address is None:
        reason = "the settings no longer describe it"
    elif orphan.duplicate_of:
        reason = f"a duplicate of {orphan.duplicate_of}"
    else:
        reason = f"it is {orphan.status}"
    text = f"left {orphan.address or ''} {orphan.import_id}: {reason}: {orphan.removal}".replace("  ", " ")
    return Outcome("left", orphan.arn, orphan.address, text)


def _enter_cluster(stack: DeployedStack, plan: Mapping[str, Any], orphan: Orphan, account: Account) -> None:
    """Write the cluster into the state, with the properties that it was created with."""
    change = next(item for item in plan["resource_changes"] if item["address"] == orphan.address)
    planned = change["change"]["after"]
    properties = account.look(
        "ResourceDescription.Properties",
        "cloudcontrol",
        "get_resource",
        TypeName=planned["type_name"],
        Identifier=orphan.import_id,
    )
    requested_state = json.loads(planned["desired_state"])
    created_state = as_made(requested_state, json.loads(properties))
    desired_state = (
        planned["desired_state"] if created_state == requested_state else json.dumps(created_state, sort_keys=True)
    )
    enter(stack, change, {"id": orphan.import_id, "properties": properties, "desired_state": desired_state})


def enter(stack: DeployedStack, change: Mapping[str, Any], attributes: Mapping[str, Any]) -> None:
    """Write a planned resource into the state: the provider cannot import resources that Cloud Control created.

    Args:
        stack: The stack that plans the resource.
        change: The resource's entry in the plan's ``resource_changes``.
        attributes: AWS's values, which override the planned ones.

    Raises:
        TerraformError: Terraform refuses the state.
    """
    planned = change["change"]
    # A plan would update sensitive attributes that the state does not mark as such.
    sensitive = [name for name, value in planned["after_sensitive"].items() if value is True]
    instance = {
        "schema_version": 0,
        "attributes": {**planned["after"], **attributes},
        "sensitive_attributes": [[{"type": "get_attr", "value": name}] for name in sensitive],
    }
    entry = {
        "mode": "managed",
        "type": change["type"],
        "name": change["name"],
        "provider": f'provider["{change["provider_name"]}"]',
        "instances": [instance],
    }
    empty: dict[str, Any] = {
        "version": STATE_VERSION,
        "serial": 0,
        "lineage": str(uuid.uuid4()),
        "outputs": {},
        "resources": [],
    }
    state = stack.state() or empty
    state["serial"] += 1
    state["resources"].append(entry)
    stack.terraform("state", "push", "-", text=json.dumps(state))


def as_made(requested: Any, created: Any) -> Any:
    """Return the properties with which AWS created the cluster, so that the next plan shows later changes of settings.

    AWS returns more properties than were requested, and lists in another order.
    """
    if isinstance(requested, dict) and isinstance(created, dict):
        return {key: as_made(value, created[key]) for key, value in requested.items() if key in created}
    if isinstance(requested, list) and isinstance(created, list):
        by_key = {identifier(item): item for item in requested}
        order = {key: number for number, key in enumerate(by_key)}
        ordered = sorted(created, key=lambda item: order.get(identifier(item), len(order)))
        return [as_made(by_key.get(identifier(item), item), item) for item in ordered]
    return created
