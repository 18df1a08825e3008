"""The examples as users deploy them, by the real Terraform and AWS provider into the stand-in's account."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from podwright.check.load import load
from podwright.deploy.terraform import TerraformError
from podwright.settings import names
from podwright_rehearsal.aws import AwsStandIn
from podwright_testing.workspace import ALL_AT_ONCE, Stack, Workspace, kill

EXAMPLES = Path(__file__).parents[2] / "examples"
MINIMAL, BROUGHT, PRODUCTION = (
    EXAMPLES / name / "cluster.yaml" for name in ("minimal", "bring_your_own", "production")
)
START_TIMEOUT_S = 120
LOST = ("aws_vpc.", "aws_route", "aws_fsx_lustre_file_system.", "aws_iam_role.")
Deploy = Callable[[AwsStandIn, Path], Workspace]

pytestmark = pytest.mark.terraform


@pytest.fixture
def aws(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AwsStandIn]:
    """An account in the region of the example that is the test's parameter."""
    region = load(request.param).region
    with AwsStandIn(directory=tmp_path / "aws", region=region, transition_s=0.1, instant_deletion=True) as stand_in:
        yield stand_in


@pytest.fixture
def synthesized(tmp_path: Path) -> Deploy:
    """The stacks of a settings file, ready for Terraform."""

    def workspace(aws: AwsStandIn, config: Path) -> Workspace:
        ready = Workspace(config=config, folder=tmp_path / "workspace", aws=aws)
        ready.synthesize()
        return ready

    return workspace


def make_bucket(aws: AwsStandIn, name: str) -> None:
    elsewhere = {"CreateBucketConfiguration": {"LocationConstraint": aws.region}}  # the only way but in us-east-1
    aws.client("s3").create_bucket(Bucket=name, **elsewhere if aws.region != "us-east-1" else {})


def bring(aws: AwsStandIn) -> dict[str, str]:
    """Make what the example brings; each value of the example and what it is in this account."""
    ec2, iam = aws.client("ec2"), aws.client("iam")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.16.0/20")["Subnet"]["SubnetId"]
    group = ec2.create_security_group(GroupName="nodes", Description="-", VpcId=vpc)["GroupId"]
    among_nodes = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=among_nodes)
    ec2.authorize_security_group_egress(GroupId=group, IpPermissions=among_nodes)
    lustre = aws.client("fsx").create_file_system(
        FileSystemType="LUSTRE",
        StorageCapacity=1200,
        SubnetIds=[subnet],
        SecurityGroupIds=[group],
        LustreConfiguration={"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 250},
    )["FileSystem"]
    make_bucket(aws, "sagemaker-research-cluster-scripts")
    sagemaker = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "sagemaker.amazonaws.com"}}
    trust = json.dumps({"Version": "2012-10-17", "Statement": [sagemaker]})
    role = iam.create_role(RoleName="hyperpod-nodes", AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    return {
        "vpc-0a1b2c3d4e5f60718": vpc,
        "subnet-0a1b2c3d4e5f60718": subnet,
        "sg-0a1b2c3d4e5f60718": group,
        "fs-0a1b2c3d4e5f60718.fsx.eu-central-1.amazonaws.com": lustre["DNSName"],
        "fsx12345": lustre["LustreConfiguration"]["MountName"],
        "arn:aws:iam::210987654321:role/hyperpod-nodes": role,
    }


@pytest.mark.parametrize("aws", [BROUGHT], indirect=True)
def test_what_is_brought_stays_as_it_is(aws: AwsStandIn, synthesized: Deploy, tmp_path: Path) -> None:
    """On a brought network, file system, bucket and role a cluster comes, plans nothing more, and goes alone."""
    text = BROUGHT.read_text(encoding="utf-8")
    for example, own in bring(aws).items():
        assert example in text
        text = text.replace(example, own)
    config = tmp_path / "cluster.yaml"
    config.write_text(text, encoding="utf-8")
    before = aws.inventory()
    workspace = synthesized(aws, config)
    workspace.deploy()
    assert workspace.changes() == ""
    new = {item.split()[0] for item in aws.inventory() if item not in before}
    assert new == {"AWS::SageMaker::Cluster", "AWS::S3::Object"}
    workspace.destroy()
    assert aws.inventory() == before


@pytest.mark.parametrize("aws", [PRODUCTION], indirect=True)
def test_production_leaves_its_backups_alone(aws: AwsStandIn, synthesized: Deploy) -> None:
    """What the team keeps is the last backup of each file system and database; a dead deployer's lock is lifted."""
    states = load(PRODUCTION).state
    make_bucket(aws, states.bucket)
    workspace = synthesized(aws, PRODUCTION)
    aws.interrupt(call="fsx CreateFileSystem", kind="answer lost")  # Terraform asks again, with the same token
    workspace.apply("foundation")
    aws.interrupt(call="CreateResource", kind="answer lost")
    workspace.apply("cluster")
    assert workspace.changes() == ""
    lock = die_while_planning(workspace, aws, states.bucket)
    with pytest.raises(TerraformError, match="Error acquiring the state lock") as refused:
        workspace.changes()
    assert lock in str(refused.value)
    workspace.terraform("foundation", "force-unlock", "-force", lock)
    with pytest.raises(TerraformError, match="Cannot delete protected DB Instance"):
        workspace.destroy()
    rds = aws.client("rds")
    rds.modify_db_instance(DBInstanceIdentifier="slurm-llm-production", DeletionProtection=False)
    workspace.destroy()
    assert [snapshot["Status"] for snapshot in rds.describe_db_snapshots()["DBSnapshots"]] == ["available"]
    ours = [item.split()[0] for item in aws.inventory() if states.bucket not in item]
    assert [kind for kind in ours if not kind.startswith("AWS::RDS::")] == ["AWS::FSx::Backup"] * 2


def die_while_planning(workspace: Workspace, aws: AwsStandIn, bucket: str) -> str:
    """Kill a plan of the foundation that holds the lock; the lock's id."""
    s3 = aws.client("s3")

    def locks() -> list[str]:
        listed = s3.list_objects_v2(Bucket=bucket).get("Contents", [])
        return [item["Key"] for item in listed if item["Key"].endswith(".tflock")]

    process = workspace.start("foundation", "plan", log=workspace.folder / "killed.log")
    wait_until(locks)
    kill(process)
    (lock,) = locks()
    return str(json.load(s3.get_object(Bucket=bucket, Key=lock)["Body"])["ID"])


@pytest.mark.timeout(1800)
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
    workspace.adopt("--apply")
    workspace.apply("cluster")
    assert workspace.changes() == ""
    assert workspace.orphans() == []
    assert workspace.adopt() == ""
    lose_and_find(workspace, aws)

    killed(workspace, aws, "cluster", "destroy", call="DeleteResource")
    workspace.terraform("cluster", "destroy", "-auto-approve", ALL_AT_ONCE)
    refused(workspace, aws, "foundation", "destroy", call="fsx DeleteFileSystem")
    workspace.destroy()
    assert aws.inventory() == []


def lose_and_find(workspace: Workspace, aws: AwsStandIn) -> None:
    """What a state lost is adopted with what hangs on it, and nothing is replaced; a twin is left to the user."""
    state = workspace.terraform("foundation", "state", "list").split()
    workspace.terraform("foundation", "state", "rm", *(item for item in state if item.startswith(LOST)))
    ec2 = aws.client("ec2")
    (vpc,) = ec2.describe_vpcs(Filters=[{"Name": "tag-key", "Values": [names.PLACE_TAG]}])["Vpcs"]
    workspace.adopt("--apply")
    assert set(workspace.terraform("foundation", "state", "list").split()) == set(state)
    specification = [{"ResourceType": "vpc", "Tags": vpc["Tags"]}]
    twin = ec2.create_vpc(CidrBlock="10.0.0.0/16", TagSpecifications=specification)["Vpc"]["VpcId"]
    with pytest.raises(TerraformError, match=f"taken by {vpc['VpcId']}: aws ec2 delete-vpc --vpc-id {twin}"):
        workspace.adopt()
    ec2.delete_vpc(VpcId=twin)
    before = aws.inventory()
    workspace.apply("foundation")
    assert aws.inventory() == before
    assert "No changes." in workspace.terraform("foundation", "plan")


def refused(workspace: Workspace, aws: AwsStandIn, stack: Stack, verb: str, *, call: str) -> None:
    """A run that ends because one call was refused."""
    aws.interrupt(call=call, kind="refused")
    with pytest.raises(TerraformError, match=f"told to refuse this call, .*{call}"):
        workspace.terraform(stack, verb, "-auto-approve", ALL_AT_ONCE)


def killed(workspace: Workspace, aws: AwsStandIn, stack: Stack, verb: str, *, call: str) -> None:
    """A run that ends by SIGKILL as soon as a call was made."""
    aws.interrupt(at=0)
    process = workspace.start(stack, verb, "-auto-approve", ALL_AT_ONCE, log=workspace.folder / "killed.log")
    wait_until(lambda: process.poll() is not None or any(call in seen for seen in aws.changing_calls()))
    assert process.poll() is None, (workspace.folder / "killed.log").read_text(encoding="utf-8")
    kill(process)


def wait_until(happened: Callable[[], Any]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)
