"""The IAM actions of each resource type that the stacks create."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest

from podwright import checkout
from podwright.aws_errors import action
from podwright.check.load import load
from podwright.operations.deployment.deployer_actions import ACTIONS
from podwright.operations.deployment.policy import deployer_policy
from podwright.resource_types import RESOURCE_TYPES
from podwright.settings.regions import partition_of

BINDINGS = checkout.ROOT / "constructs" / "podwright_constructs" / "aws"


def test_every_resource_type_has_its_actions():
    """The table has a row for each generated resource type, and for no other."""
    modules = {path.stem for path in BINDINGS.glob("*.py")} - {"__init__", "provider"}
    assert set(ACTIONS) == {f"aws_{name}" for name in modules if not name.startswith("data_")}


class Asked:
    """An account without resources, which notes each question in IAM's words."""

    def __init__(self) -> None:
        self.actions: set[str] = set()

    def look(self, _: str, service: str, operation: str, **__: Any) -> None:
        self.actions.add(action(service, "".join(map(str.capitalize, operation.split("_")))).lower())

    def file_system(self, _: str) -> None:
        self.actions.add("fsx:describefilesystems")

    def account_id(self) -> str:
        return "123456789012"


@pytest.mark.parametrize("kind", sorted(RESOURCE_TYPES))
def test_a_deployer_may_adopt(kind: str) -> None:
    """The role that deploys may ask all that finding an interrupted deployment's resources asks."""
    asked, row = Asked(), RESOURCE_TYPES[kind]
    if row.find:
        row.find(asked, defaultdict(lambda: "x"))
    if row.status:
        row.status(asked, "x")
    policy = deployer_policy(load(checkout.ROOT / "cluster.yaml"), {kind})
    allowed = {name.lower() for statement in policy["Statement"] for name in statement["Action"]}
    assert asked.actions <= allowed


@pytest.mark.parametrize(
    "kinds", [RESOURCE_TYPES.keys(), RESOURCE_TYPES.keys() - {"aws_iam_role"}], ids=["all", "no role"]
)
@pytest.mark.parametrize("region", ["us-west-2", "cn-north-1", "us-gov-west-1", "eusc-de-east-1"])
def test_iam_takes_the_policy(kinds: Iterable[str], region: str) -> None:
    """Each statement has actions, for IAM refuses empty lists, and resources of the region's partition."""
    settings = load(checkout.ROOT / "cluster.yaml").model_copy(update={"region": region})
    statements = deployer_policy(settings, set(kinds))["Statement"]
    assert all(statement["Action"] and statement["Resource"] for statement in statements)
    arns = {arn for statement in statements for arn in statement["Resource"] if arn != "*"}
    assert {arn.split(":")[1] for arn in arns} == {partition_of(region)}
    assert ("Roles" in {statement["Sid"] for statement in statements}) == ("aws_iam_role" in set(kinds))


def test_fsx_may_give_its_role_a_policy_for_data_repositories() -> None:
    """The service-linked role for a file system's data repositories gets its policy with the deployer's rights."""
    policy = deployer_policy(load(checkout.ROOT / "cluster.yaml"), {"aws_fsx_data_repository_association"})
    (statement,) = (statement for statement in policy["Statement"] if "iam:PutRolePolicy" in statement["Action"])
    assert statement["Resource"] == ["arn:aws:iam::*:role/aws-service-role/s3.data-source.lustre.fsx.amazonaws.com/*"]
