"""Take what a killed Terraform left in the account into Terraform's state. Nothing is changed in AWS."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from podwright.check.account import Account
from podwright.deploy.deployed import DeployedStack, stacks
from podwright.deploy.orphans import CLUSTER_TYPE, Stray, strays
from podwright.deploy.terraform import TerraformError
from podwright.settings import names
from podwright.settings.root import Settings

STATE_VERSION = 4  # https://developer.hashicorp.com/terraform/internals/json-format says nothing of it; it is old
NOT_THERE = "Cannot import non-existent remote object"  # the Tagging API tells of the dead for a while
KEYS = ("InstanceGroupName", "Key")  # which of its members tells one item of a list from the others


def adopt(settings: Settings, *, folder: Path, apply: bool) -> int:
    """Say what is in no state and, with ``apply``, take it in; how much is left for the user to do.

    Args:
        settings: of the cluster.
        folder: where it was deployed from, which has cdktf.out.
        apply: whether Terraform's state is changed.

    Raises:
        NotDeployedError: it was not deployed from there.
        TerraformError: Terraform cannot plan or import.
        UnansweredError: AWS does not answer.
    """
    parts = stacks(settings.name, folder=folder)
    parts["foundation"].check()
    account = Account(region=settings.region)
    tagged = account.tagged(names.CLUSTER_TAG, settings.name)
    left = 0
    for stack in parts.values():
        if not stack.is_there:
            continue
        try:
            left += sum(_rounds(stack, tagged, account) if apply else _look(stack, tagged, account))
        except TerraformError:
            if stack is parts["foundation"] or _is_whole(parts["foundation"]):
                raise
            left += _unplanned(stack, tagged)
    return left


def _is_whole(stack: DeployedStack) -> bool:
    """Whether everything of the stack has been made."""
    return not any("create" in item["change"]["actions"] for item in stack.plan().get("resource_changes", ()))


def _unplanned(stack: DeployedStack, tagged: Mapping[str, Mapping[str, str]]) -> int:
    """Of a stack that has nothing to stand on yet there is mostly nothing; else it must wait for its foundation."""
    found = [arn for arn, tags in tagged.items() if tags.get(names.PLACE_TAG, "").startswith(f"{stack.name}/")]
    for arn in found:
        print(f"left {arn}: its foundation comes first: deploy that, then adopt again")
    return len(found)


def _look(stack: DeployedStack, tagged: Mapping[str, Mapping[str, str]], account: Account) -> Iterator[int]:
    """Print every stray of the stack."""
    for stray in strays(stack, stack.plan(), tagged, account):
        print(f"would adopt {_words(stray)}" if stray.is_adoptable else _left(stray))
        yield 1


def _rounds(stack: DeployedStack, tagged: Mapping[str, Mapping[str, str]], account: Account) -> Iterator[int]:
    """Adopt until nothing new is found: what has no tag is found when its parent is in the state."""
    tried: set[str] = set()
    while True:
        plan = stack.plan()
        found = [stray for stray in strays(stack, plan, tagged, account) if stray.arn not in tried]
        for stray in found:
            if stray.is_adoptable:
                _take(stack, plan, stray, account)
            else:
                print(_left(stray))
                yield 1
        tried |= {stray.arn for stray in found}
        if not found:
            return


def _take(stack: DeployedStack, plan: Mapping[str, Any], stray: Stray, account: Account) -> None:
    address = str(stray.address)
    try:
        if address.startswith(f"{CLUSTER_TYPE}."):
            _enter_cluster(stack, plan, stray, account)
        else:
            stack.terraform("import", "-input=false", "-no-color", address, stray.import_id)
    except TerraformError as error:
        if NOT_THERE not in str(error):
            raise
        print(f"gone {_words(stray)}")
    else:
        print(f"adopted {_words(stray)}")


def _words(stray: Stray) -> str:
    wait = "" if stray.is_ready else f"; it is {stray.status}: wait until it is ready before you deploy"
    return f"{stray.address} {stray.import_id}{wait}"


def _left(stray: Stray) -> str:
    """Why it is not adopted, and what to do."""
    if stray.address is None:
        reason = "the settings have no place for it any more"
    elif stray.rival:
        reason = f"its place is taken by {stray.rival}"
    else:
        reason = f"it is {stray.status}"
    return f"left {stray.address or ''} {stray.import_id}: {reason}: {stray.removal}".replace("  ", " ")


def _enter_cluster(stack: DeployedStack, plan: Mapping[str, Any], stray: Stray, account: Account) -> None:
    """Write the cluster into the state: the provider has no import for what Cloud Control made."""
    change = next(item for item in plan["resource_changes"] if item["address"] == stray.address)
    planned = change["change"]["after"]
    properties = account.look(
        "ResourceDescription.Properties",
        "cloudcontrol",
        "get_resource",
        TypeName=planned["type_name"],
        Identifier=stray.import_id,
    )
    wanted = json.loads(planned["desired_state"])
    made = as_made(wanted, json.loads(properties))
    attributes = {
        **planned,
        "id": stray.import_id,
        "properties": properties,
        "desired_state": planned["desired_state"] if made == wanted else json.dumps(made, sort_keys=True),
    }
    entry = {
        "mode": "managed",
        "type": change["type"],
        "name": change["name"],
        "provider": f'provider["{change["provider_name"]}"]',
        "instances": [{"schema_version": 0, "attributes": attributes}],
    }
    empty = {"version": STATE_VERSION, "serial": 0, "lineage": str(uuid.uuid4()), "outputs": {}, "resources": []}
    state = json.loads(stack.terraform("state", "pull") or json.dumps(empty))
    state["serial"] += 1
    state["resources"].append(entry)
    stack.terraform("state", "push", "-", text=json.dumps(state))


def as_made(wanted: Any, made: Any) -> Any:
    """What was asked for when the cluster was made, so that the next plan shows what the settings say otherwise now.

    AWS's answer has more than was asked for, and lists in an order of its own.
    """
    if isinstance(wanted, dict) and isinstance(made, dict):
        return {key: as_made(value, made[key]) for key, value in wanted.items() if key in made}
    if isinstance(wanted, list) and isinstance(made, list):
        by_key = {_key(item): item for item in wanted}
        order = {key: number for number, key in enumerate(by_key)}
        ordered = sorted(made, key=lambda item: order.get(_key(item), len(order)))
        return [as_made(by_key.get(_key(item), item), item) for item in ordered]
    return made


def _key(item: Any) -> str:
    """What an item of a list is known by; else all of it."""
    names_of_it = [str(item[key]) for key in KEYS if key in item] if isinstance(item, dict) else []
    return names_of_it[0] if names_of_it else json.dumps(item, sort_keys=True)
