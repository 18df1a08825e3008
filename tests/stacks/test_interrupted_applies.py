"""Applies that end half-way, by the real Terraform and AWS provider: the next ones go on, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from podwright.operations.deployment.terraform import TerraformError
from podwright.settings import names
from podwright_rehearsal.aws import AwsStandIn
from podwright_testing.workspace import ALL_AT_ONCE, Stack, Workspace, wait_until

MINIMAL = Path(__file__).parents[2] / "examples" / "minimal" / "cluster.yaml"
LOST = ("aws_vpc.", "aws_route", "aws_fsx_lustre_file_system.", "aws_iam_role.")
Deploy = Callable[[AwsStandIn, Path], Workspace]

pytestmark = pytest.mark.terraform


@pytest.mark.parametrize("aws", [MINIMAL], indirect=True)
def test_interrupted_applies_converge(aws: AwsStandIn, synthesized: Deploy) -> None:
    """Refused calls and killed Terraforms on the way: what is in no state is adopted, all goes on, down to nothing."""
    workspace = synthesized(aws, MINIMAL)
    killed(workspace, aws, "foundation", "apply", call="ec2 CreateVpc")
    workspace.adopt("--apply")
    assert workspace.orphans() == []
    refused(workspace, aws, "foundation", "apply", call="ec2 CreateSecurityGroup")
    killed(workspace, aws, "foundation", "apply", call="fsx CreateFileSystem")
    workspace.adopt("--apply")
    assert workspace.orphans() == []
    workspace.apply("foundation")
    killed(workspace, aws, "cluster", "apply", call="s3 PUT")
    refused(workspace, aws, "cluster", "apply", call="CreateResource")
    killed(workspace, aws, "cluster", "apply", call="CreateResource")
    with pytest.raises(
        TerraformError, match=r"would adopt aws_cloudcontrolapi_resource\.cluster_\w+ arn:aws:sagemaker:"
    ):
        workspace.adopt()
    adopted = json.loads(workspace.adopt("--apply", "--json"))
    assert adopted["applied"]
    assert {orphan["outcome"] for orphan in adopted["orphans"]} == {"adopted"}
    workspace.apply("cluster")
    assert workspace.changes() == ""
    assert workspace.orphans() == []
    assert json.loads(workspace.adopt("--json"))["orphans"] == []
    assert "the state lists the cluster as AWS does" in workspace.podwright("align")
    assert json.loads(workspace.podwright("align", "--json")) == {"schema": "podwright.align/1", "changed": False}
    lose_and_find(workspace, aws)

    killed(workspace, aws, "cluster", "destroy", call="DeleteResource")
    workspace.terraform("cluster", "destroy", "-auto-approve", ALL_AT_ONCE)
    refused(workspace, aws, "foundation", "destroy", call="fsx DeleteFileSystem")
    workspace.destroy()
    assert aws.inventory() == []


def lose_and_find(workspace: Workspace, aws: AwsStandIn) -> None:
    """Adopt takes what a state lost and what hangs on it, replaces nothing, and leaves a twin to the user.

    A resource with the former name of the tag is found too.
    """
    state = workspace.terraform("foundation", "state", "list").split()
    workspace.terraform("foundation", "state", "rm", *(item for item in state if item.startswith(LOST)))
    ec2 = aws.client("ec2")
    (vpc,) = ec2.describe_vpcs(Filters=[{"Name": "tag-key", "Values": [names.CONSTRUCT_PATH_TAG]}])["Vpcs"]
    ec2.delete_tags(Resources=[vpc["VpcId"]], Tags=[{"Key": names.CONSTRUCT_PATH_TAG}])
    former = {"Key": names.FORMER_CONSTRUCT_PATH_TAG, "Value": names.construct_path(tags_of(vpc))}
    ec2.create_tags(Resources=[vpc["VpcId"]], Tags=[former])
    workspace.adopt("--apply")
    assert set(workspace.terraform("foundation", "state", "list").split()) == set(state)
    specification = [{"ResourceType": "vpc", "Tags": vpc["Tags"]}]
    twin = ec2.create_vpc(CidrBlock="10.0.0.0/16", TagSpecifications=specification)["Vpc"]["VpcId"]
    with pytest.raises(TerraformError, match=f"a duplicate of {vpc['VpcId']}: aws ec2 delete-vpc --vpc-id {twin}"):
        workspace.adopt()
    ec2.delete_vpc(VpcId=twin)
    before = aws.inventory()
    workspace.apply("foundation")
    assert aws.inventory() == before
    assert "No changes." in workspace.terraform("foundation", "plan")


def tags_of(resource: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of a resource of EC2."""
    return {tag["Key"]: tag["Value"] for tag in resource["Tags"]}


def refused(workspace: Workspace, aws: AwsStandIn, stack: Stack, verb: str, *, call: str) -> None:
    """A run that ends because one call was refused."""
    aws.interrupt(call=call, kind="refused")
    with pytest.raises(TerraformError, match=f"{call}.* is refused: an interruption was requested"):
        workspace.terraform(stack, verb, "-auto-approve", ALL_AT_ONCE)


def killed(workspace: Workspace, aws: AwsStandIn, stack: Stack, verb: str, *, call: str) -> None:
    """A run that ends by SIGKILL as soon as a call was made."""
    aws.interrupt(at=0)
    log = workspace.folder / "killed.log"
    with workspace.started(stack, verb, "-auto-approve", ALL_AT_ONCE, log=log) as exit_code:
        wait_until(lambda: exit_code() is not None or any(call in seen for seen in aws.changing_calls()))
        assert exit_code() is None, log.read_text(encoding="utf-8")
