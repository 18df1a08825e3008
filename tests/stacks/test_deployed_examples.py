"""The examples as users deploy them, by the real Terraform and AWS provider into the stand-in's account."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from podwright.check.load import load
from podwright.deploy.terraform import TerraformError
from podwright_rehearsal.aws import AwsStandIn
from podwright_testing.workspace import Workspace, kill, wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
BRING_YOUR_OWN, PRODUCTION = (EXAMPLES / name / "cluster.yaml" for name in ("bring_your_own", "production"))
Deploy = Callable[[AwsStandIn, Path], Workspace]

pytestmark = pytest.mark.terraform


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


@pytest.mark.parametrize("aws", [BRING_YOUR_OWN], indirect=True)
def test_existing_resources_stay_as_they_are(aws: AwsStandIn, synthesized: Deploy, tmp_path: Path) -> None:
    """A cluster on existing network, storage and role deploys, has an empty second plan, and is destroyed alone."""
    text = BRING_YOUR_OWN.read_text(encoding="utf-8")
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
    """A destroyed team cluster keeps the last backup of each file system and database, and no dead deployer's lock."""
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
