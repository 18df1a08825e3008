"""Find orphans: resources in the account that no Terraform state knows, by tag or else by planned name.

One account-wide list of tags is compared with the plan of each stack (``deployed_stacks.py``). Resources that cannot
have tags are looked up by their planned name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from podwright.check.account import Account
from podwright.operations.deployment.deployed_stacks import DeployedStack, state_in
from podwright.resource_types import CLUSTER, Values, resource_type
from podwright.settings import names

COPIES = re.compile(r":(backup/|snapshot:)")  # AWS copies a resource's tags to its backups
GONE = {"deleted", "deleting", "DELETING", "Deleting", "PendingDeletion", "terminated"}
FAILED = {"failed", "FAILED", "Failed", "MISCONFIGURED"}
READY = {"available", "AVAILABLE", "Enabled", "InService"}


@dataclass(frozen=True)
class Orphan:
    """A resource in the account that no Terraform state knows.

    Args:
        arn: Its ARN, or its id where it has none.
        address: Its address in Terraform; None if the settings no longer describe it.
        import_id: The id that ``terraform import`` takes.
        status: AWS's status, if its creation takes minutes.
        duplicate_of: The resource that has this address already, in the state or among the orphans.
    """

    arn: str
    address: str | None
    import_id: str
    status: str | None = None
    duplicate_of: str | None = None

    @property
    def is_adoptable(self) -> bool:
        """True if its address is free and the resource has not failed."""
        return self.address is not None and self.duplicate_of is None and self.status not in FAILED

    @property
    def is_ready(self) -> bool:
        """True if a deployment can use it already."""
        return self.status is None or self.status in READY

    @property
    def removal(self) -> str:
        """The command that deletes it, for the user to decide."""
        command = resource_type(_kind(self.address or "")).delete
        return f"aws {command}{self.import_id}" if command else f"delete {self.arn}"


def orphans(
    stack: DeployedStack, plan: Mapping[str, Any], tagged: Mapping[str, Mapping[str, str]], account: Account
) -> list[Orphan]:
    """Return the orphans of a stack.

    Args:
        stack: The stack.
        plan: Its plan, from ``DeployedStack.plan``.
        tagged: Tags by ARN of all resources of the cluster.
        account: The account to ask.
    """
    tagged_orphans = list(_by_tag(stack, state_in(plan), tagged, account))
    claimed_addresses = {orphan.address for orphan in tagged_orphans if orphan.is_adoptable}
    return [*tagged_orphans, *(orphan for orphan in _by_name(plan, account) if orphan.address not in claimed_addresses)]


def _by_tag(
    stack: DeployedStack, state: Mapping[str, Values], tagged: Mapping[str, Mapping[str, str]], account: Account
) -> Iterator[Orphan]:
    addresses = stack.addresses()
    id_by_address = {address: str(values["id"]) for address, values in state.items() if values.get("id")}
    for arn, tags in sorted(tagged.items()):
        path = names.construct_path(tags)
        if not path.startswith(f"{stack.name}/") or COPIES.search(arn):
            continue
        address = addresses.get(path)
        kind = _kind(address or "")
        name = import_id(kind, arn)
        if any(arn == values.get("arn") or name == values.get("id") for values in _alike(kind, state)):
            continue
        status_of = resource_type(kind).status
        status = status_of(account, name) or "deleted" if status_of else None
        if status in GONE:
            continue
        orphan = Orphan(arn, address, name, status, duplicate_of=id_by_address.get(address or ""))
        if address and orphan.is_adoptable:
            id_by_address[address] = name
        yield orphan


def _by_name(plan: Mapping[str, Any], account: Account) -> Iterator[Orphan]:
    """Find resources that the plan would create although they exist."""
    for change in plan.get("resource_changes", ()):
        find = resource_type(change["type"]).find
        if find is None or change["change"]["actions"] != ["create"]:
            continue
        try:
            import_id = find(account, change["change"]["after"])
        except KeyError:  # a value of its parent, which does not exist yet, so neither does this
            continue
        if import_id:
            yield Orphan(import_id, change["address"], import_id)


def _alike(kind: str, state: Mapping[str, Values]) -> list[Values]:
    """Return the resources of the state with this type, among which an id is unique."""
    return [values for address, values in state.items() if not kind or _kind(address) == kind]


def _kind(address: str) -> str:
    return address.partition(".")[0]


def import_id(kind: str, arn: str) -> str:
    """Return the id for ``terraform import``: ``vpc-1`` of ``arn:…:vpc/vpc-1``, or the whole ARN."""
    if kind in {CLUSTER, "aws_sns_topic"}:
        return arn
    # ARNs of log groups may end with `:*`.
    name = re.split("[:/]", arn.split(":", 5)[5], maxsplit=1)[-1].removesuffix(":*")
    return name.rpartition("/")[2] if kind == "aws_fsx_data_repository_association" else name
