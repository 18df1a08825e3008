"""Adopt orphans: import resources of an interrupted Terraform run into its state. AWS is not changed."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from podwright.deploy.align import identifier
from podwright.deploy.deployed import DeployedStack, stacks
from podwright.deploy.orphans import Orphan, orphans
from podwright.deploy.terraform import TerraformError
from podwright.resource_types import CLUSTER
from podwright.settings import names

if TYPE_CHECKING:
    from podwright.check.account import Account
    from podwright.settings.root import Settings

STATE_VERSION = 4  # https://developer.hashicorp.com/terraform/internals/json-format says nothing of it; it is old
NOT_THERE = "Cannot import non-existent remote object"  # the Tagging API lists deleted resources for a while


@dataclass(frozen=True)
class Outcome:
    """An orphan and the result of its adoption.

    Args:
        outcome: adopted, adoptable (without ``apply``), gone (deleted meanwhile), or left to the user.
        arn: its ARN, or its id where it has none.
        address: its address in Terraform; None if no plan has it.
        text: the line for the terminal; it says why an orphan is left, and the command that deletes it.
    """

    outcome: Literal["adopted", "adoptable", "gone", "left"]
    arn: str
    address: str | None
    text: str

    @property
    def is_left(self) -> bool:
        """Return whether Terraform's state still lacks it."""
        return self.outcome in {"adoptable", "left"}


def adopt(settings: Settings, *, folder: Path, apply: bool) -> Iterator[Outcome]:
    """Find orphans and, with ``apply``, import them; yield each.

    Args:
        settings: The settings of the cluster.
        folder: The folder it was deployed from, with cdktf.out.
        apply: Whether to change Terraform's state.

    Raises:
        NotDeployedError: It was not deployed from this folder.
        TerraformError: Terraform cannot plan or import.
        UnansweredError: AWS does not answer.
    """
    parts = stacks(settings.name, folder=folder)
    parts["foundation"].check()
    from podwright.check.account import Account  # noqa: PLC0415 — boto3 takes 0.2 s to import

    account = Account(region=settings.region)
    for stack in parts.values():
        if stack.is_there:
            stack.check_owner(account_id=account.account_id(), region=settings.region)
    tagged = account.tagged(names.CLUSTER_TAG, settings.name)
    for stack in parts.values():
        if not stack.is_there:
            continue
        try:
            yield from _rounds(stack, tagged, account) if apply else _look(stack, tagged, account)
        except TerraformError:
            if stack is parts["foundation"] or _is_whole(parts["foundation"]):
                raise
            yield from _unplanned(stack, tagged)


def _is_whole(stack: DeployedStack) -> bool:
    """True if every resource of the stack exists."""
    return not any("create" in item["change"]["actions"] for item in stack.plan().get("resource_changes", ()))


def _unplanned(stack: DeployedStack, tagged: Mapping[str, Mapping[str, str]]) -> Iterator[Outcome]:
    """Yield orphans of a stack without a plan, because its foundation is incomplete."""
    found = [arn for arn, tags in tagged.items() if names.construct_path(tags).startswith(f"{stack.name}/")]
    for arn in found:
        yield Outcome("left", arn, None, f"left {arn}: deploy its foundation first, then run adopt again")


def _look(stack: DeployedStack, tagged: Mapping[str, Mapping[str, str]], account: Account) -> Iterator[Outcome]:
    """Yield every orphan of the stack."""
    for orphan in orphans(stack, stack.plan(), tagged, account):
        yield _outcome("adoptable", orphan, "would adopt") if orphan.is_adoptable else _left(orphan)


def _rounds(stack: DeployedStack, tagged: Mapping[str, Mapping[str, str]], account: Account) -> Iterator[Outcome]:
    """Adopt until no further orphan is found: an untagged resource is found once its parent is in the state."""
    tried: set[str] = set()
    while True:
        plan = stack.plan()
        found = [orphan for orphan in orphans(stack, plan, tagged, account) if orphan.arn not in tried]
        for orphan in found:
            yield _taken(stack, plan, orphan, account) if orphan.is_adoptable else _left(orphan)
        tried |= {orphan.arn for orphan in found}
        if not found:
            return


def _taken(stack: DeployedStack, plan: Mapping[str, Any], orphan: Orphan, account: Account) -> Outcome:
    """Import an orphan."""
    address = str(orphan.address)
    try:
        if address.startswith(f"{CLUSTER}."):
            _enter_cluster(stack, plan, orphan, account)
        else:
            stack.terraform("import", "-input=false", "-no-color", address, orphan.import_id)
    except TerraformError as error:
        if NOT_THERE not in str(error):
            raise
        return _outcome("gone", orphan, "gone")
    return _outcome("adopted", orphan, "adopted")


def _outcome(outcome: Literal["adopted", "adoptable", "gone"], orphan: Orphan, verb: str) -> Outcome:
    wait = "" if orphan.is_ready else f"; it is {orphan.status}: wait until it is ready before you deploy"
    return Outcome(outcome, orphan.arn, orphan.address, f"{verb} {orphan.address} {orphan.import_id}{wait}")


def _left(orphan: Orphan) -> Outcome:
    """Return an orphan with the reason why it is not adopted, and the command that deletes it."""
    if orphan.address is None:
        reason = "the settings no longer describe it"
    elif orphan.duplicate_of:
        reason = f"a duplicate of {orphan.duplicate_of}"
    else:
        reason = f"it is {orphan.status}"
    text = f"left {orphan.address or ''} {orphan.import_id}: {reason}: {orphan.removal}".replace("  ", " ")
    return Outcome("left", orphan.arn, orphan.address, text)


def _enter_cluster(stack: DeployedStack, plan: Mapping[str, Any], orphan: Orphan, account: Account) -> None:
    """Write the cluster into the state, as it was made."""
    change = next(item for item in plan["resource_changes"] if item["address"] == orphan.address)
    planned = change["change"]["after"]
    properties = account.look(
        "ResourceDescription.Properties",
        "cloudcontrol",
        "get_resource",
        TypeName=planned["type_name"],
        Identifier=orphan.import_id,
    )
    wanted = json.loads(planned["desired_state"])
    made = as_made(wanted, json.loads(properties))
    desired_state = planned["desired_state"] if made == wanted else json.dumps(made, sort_keys=True)
    enter(stack, change, {"id": orphan.import_id, "properties": properties, "desired_state": desired_state})


def enter(stack: DeployedStack, change: Mapping[str, Any], attributes: Mapping[str, Any]) -> None:
    """Write a planned resource into the state: the provider cannot import resources that Cloud Control created.

    Args:
        stack: the stack that plans it.
        change: its entry in the plan's ``resource_changes``.
        attributes: what AWS knows of it, over what is planned.

    Raises:
        TerraformError: Terraform does not take the state.
    """
    planned = change["change"]
    sensitive = [name for name, value in planned["after_sensitive"].items() if value is True]
    instance = {
        "schema_version": 0,
        "attributes": {**planned["after"], **attributes},
        "sensitive_attributes": [
            [{"type": "get_attr", "value": name}] for name in sensitive
        ],  # else a plan updates them
    }
    entry = {
        "mode": "managed",
        "type": change["type"],
        "name": change["name"],
        "provider": f'provider["{change["provider_name"]}"]',
        "instances": [instance],
    }
    empty = {"version": STATE_VERSION, "serial": 0, "lineage": str(uuid.uuid4()), "outputs": {}, "resources": []}
    state = json.loads(stack.terraform("state", "pull") or json.dumps(empty))
    state["serial"] += 1
    state["resources"].append(entry)
    stack.terraform("state", "push", "-", text=json.dumps(state))


def as_made(wanted: Any, made: Any) -> Any:
    """Return the cluster as it was created, so that the next plan shows later changes of the settings.

    AWS's answer has more than was asked for, and lists in an order of its own.
    """
    if isinstance(wanted, dict) and isinstance(made, dict):
        return {key: as_made(value, made[key]) for key, value in wanted.items() if key in made}
    if isinstance(wanted, list) and isinstance(made, list):
        by_key = {identifier(item): item for item in wanted}
        order = {key: number for number, key in enumerate(by_key)}
        ordered = sorted(made, key=lambda item: order.get(identifier(item), len(order)))
        return [as_made(by_key.get(identifier(item), item), item) for item in ordered]
    return made
