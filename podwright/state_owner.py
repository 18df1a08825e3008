"""The account and region that a Terraform state belongs to, and the file that keeps it.

Used with another account or region, a state would make Terraform plan to create everything again. So the name of the
state's file or key has the region, and each stack records account and region (``podwright_stacks/owner.py``), which
fails such a plan. podwright's commands also compare the ARNs in the state: states of older versions have no record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podwright.errors import PodwrightError
from podwright.resource_types import CLUSTER
from podwright.settings import names

BUCKET = "aws_s3_bucket"
ROLE = "aws_iam_role"
ARN_COLONS = 5  # arn:PARTITION:SERVICE:REGION:ACCOUNT:RESOURCE


class StateOwnerError(PodwrightError):
    """A state belongs to another account or region; the message has both, the hint what to do."""


@dataclass(frozen=True)
class StateOwner:
    """Accounts and regions in the ARNs of a state's resources: one of each, or none if nothing is deployed."""

    account_ids: frozenset[str]
    regions: frozenset[str]

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> StateOwner:
        """Read Terraform's state. ARNs of global resources have no region; a bucket has it as an attribute.

        Without any of those, our roles have it in their names.
        """
        resources = list(_resources(state))
        arns = [arn.split(":", 5) for kind, attributes in resources if (arn := _arn(kind, attributes))]
        buckets = [str(attributes.get("region") or "") for kind, attributes in resources if kind == BUCKET]
        regions = frozenset(filter(None, [*(arn[3] for arn in arns), *buckets]))
        roles = [str(attributes.get("name") or "") for kind, attributes in resources if kind == ROLE]
        regions = regions or frozenset(filter(None, map(names.region_of_role, roles)))
        return cls(frozenset(arn[4] for arn in arns if arn[4].isdecimal()), regions)

    def check(self, stack: str, *, account_id: str, region: str) -> None:
        """Check that the state is that of an account and a region.

        Args:
            stack: its name, for the message.
            account_id: of the credentials.
            region: of the settings.

        Raises:
            StateOwnerError: it is of another.
        """
        if self.account_ids <= {account_id} and self.regions <= {region}:
            return
        accounts, regions = (" and ".join(sorted(values)) for values in (self.account_ids, self.regions))
        place = " in ".join(filter(None, [f"account {accounts}", regions]))
        raise StateOwnerError(
            f"the state of {stack} is of {place}, and this would be account {account_id} in {region}",
            "use that account's credentials and that region, or deploy from another folder, or under another name",
        )


def state_file(folder: Path, stack: str, region: str) -> Path:
    """Return where a local state is: an older version's file has no region in its name and stays where it is.

    It is used only while it has resources of the region: once they are destroyed, another region would take it up.

    Args:
        folder: where the settings are deployed from.
        stack: name of the stack.
        region: of the settings.

    Raises:
        StateOwnerError: two files have resources of the region, or one is damaged.
    """
    file, former = folder / names.state_file(stack, region), folder / names.former_state_file(stack)
    state = read(former) if former.is_file() else {}
    if not state.get("resources") or region not in (StateOwner.of(state).regions or {region}):
        return file
    if file.is_file() and read(file).get("resources"):
        raise StateOwnerError(
            f"{former} and {file} both have resources of {region}",
            "compare them by `terraform state list -state=FILE`, and move the one away that AWS no longer has",
        )
    return former


def read(file: Path) -> dict[str, Any]:
    """Return a local state.

    Raises:
        StateOwnerError: the file is damaged.
    """
    try:
        return dict(json.loads(file.read_text(encoding="utf-8") or "{}"))
    except (ValueError, TypeError) as error:
        raise StateOwnerError(f"{file} is not a state of Terraform: {error}", "restore it from its .backup") from error


def _resources(state: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield type and attributes of each resource that Terraform manages."""
    for resource in state.get("resources", ()):
        if resource.get("mode") == "managed":
            for instance in resource.get("instances", ()):
                yield resource["type"], instance.get("attributes") or {}


def _arn(kind: str, attributes: Mapping[str, Any]) -> str:
    """Return the ARN of a resource, empty if it has none; Cloud Control identifies a cluster by its ARN."""
    arn = str(attributes.get("id" if kind == CLUSTER else "arn") or "")
    return arn if arn.startswith("arn:") and arn.count(":") >= ARN_COLONS else ""
