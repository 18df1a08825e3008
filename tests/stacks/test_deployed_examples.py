"""The examples as users deploy them, by the real Terraform and AWS provider into the stand-in's account."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from podwright.check.load import load
from podwright.cli import main
from podwright.operations.deployment.terraform import TerraformError
from podwright_rehearsal.aws import AwsStandIn
from podwright_rehearsal.aws.identity import ACCOUNT_ID
from podwright_rehearsal.aws.inventory import PRINCIPALS_PATH
from podwright_testing.deployer_policy import missing_actions, unneeded_actions
from podwright_testing.workspace import Workspace, wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
BRING_YOUR_OWN, PRODUCTION, BY_API, TRAINIUM = (
    EXAMPLES / name / "cluster.yaml" for name in ("bring_your_own", "production", "slurm_by_api", "trainium")
)
QUICK = EXAMPLES.parent / "cluster.yaml"
# Actions of the policy for QUICK that no call of `terraform apply` and `destroy` needs here, by why it has them.
UNNEEDED_TO_CREATE = {
    "changes in place": "cloudformation:UpdateResource sagemaker:UpdateCluster sagemaker:DeleteTags ec2:DeleteTags "
    "ec2:ModifySecurityGroupRules ec2:ModifySubnetAttribute ec2:ModifyVpcEndpoint ec2:ReplaceRoute "
    "ec2:ReplaceRouteTableAssociation fsx:UntagResource fsx:UpdateFileSystem iam:DeleteRolePermissionsBoundary "
    "iam:PutRolePermissionsBoundary iam:UntagRole iam:UpdateAssumeRolePolicy iam:UpdateRole iam:UpdateRoleDescription "
    "logs:AssociateKmsKey logs:DeleteRetentionPolicy logs:DisassociateKmsKey logs:UntagResource s3:PutObjectTagging",
    "asked by AWS's services with the caller's rights": "ec2:GetSecurityGroupsForVpc kms:Decrypt kms:GenerateDataKey "
    "logs:CreateLogDelivery logs:DeleteLogDelivery",
    "backups of file systems": "fsx:CreateBackup fsx:CreateFileSystemFromBackup",
    "asked by deploy, destroy, teardown and adopt": "ec2:DescribeVolumes fsx:DescribeBackups fsx:ListTagsForResource "
    "logs:FilterLogEvents rds:DescribeDBInstances rds:DescribeDBSnapshots s3:ListAllMyBuckets s3:DeleteObject "
    "secretsmanager:ListSecrets tag:GetResources",
    "the schema's handler that lists clusters": "sagemaker:ListClusters",
    "candidates to leave out: no call of the tests shows why": "cloudformation:CancelResourceRequest "
    "ec2:DescribeAccountAttributes ec2:DescribeAvailabilityZones ec2:DescribeSecurityGroupReferences "
    "ec2:DescribeVpcEndpointServices iam:ListRoleTags s3:GetBucketLocation s3:GetObjectVersion",
}
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


@pytest.mark.parametrize(("aws", "config"), [(file, file) for file in (BY_API, TRAINIUM)], indirect=["aws"])
def test_the_deployer_policy_suffices(aws: AwsStandIn, config: Path, synthesized: Deploy) -> None:
    """A principal with the deployer's policy for a file deploys and destroys its cluster."""
    workspace = synthesized(aws, config)
    workspace.deploy()
    workspace.destroy()
    assert aws.inventory() == []
    assert missing_actions(workspace.policy(), aws.permissions()) == set()


@pytest.mark.parametrize("aws", [QUICK], indirect=True)
def test_the_deployer_policy_is_no_wider(aws: AwsStandIn, synthesized: Deploy) -> None:
    """Without an action that creating or deleting needs, a deployment is denied; each other action has a reason."""
    workspace = synthesized(aws, QUICK)
    policy, iam = workspace.policy(), aws.client("iam")
    (role,) = iam.list_roles(PathPrefix=PRINCIPALS_PATH)["Roles"]
    saved = {"RoleName": role["RoleName"], "PolicyName": "policy-0"}
    iam.put_role_policy(**saved, PolicyDocument=json.dumps(policy).replace('"ec2:CreateVpc"', '"ec2:Other"'))
    with pytest.raises(TerraformError, match="is not authorized to perform: ec2:CreateVpc on resource: arn:aws:ec2:"):
        workspace.apply("foundation")
    iam.put_role_policy(**saved, PolicyDocument=json.dumps(policy))
    workspace.deploy()
    workspace.destroy()
    assert aws.inventory() == []
    assert missing_actions(policy, aws.permissions()) == set()
    assert unneeded_actions(policy, aws.permissions()) == {
        action for actions in UNNEEDED_TO_CREATE.values() for action in actions.split()
    }


@pytest.mark.parametrize("aws", [PRODUCTION], indirect=True)
def test_production_leaves_its_backups_alone(
    aws: AwsStandIn, synthesized: Deploy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A team cluster's roles suffice; destroyed, it keeps the last backups and no dead deployer's lock."""
    states = load(PRODUCTION).state
    make_bucket(aws, states.bucket)
    workspace = synthesized(aws, PRODUCTION)
    aws.interrupt(call="fsx CreateFileSystem", kind="answer lost")  # Terraform asks again, with the same token
    workspace.apply("foundation")
    aws.interrupt(call="CreateResource", kind="answer lost")
    workspace.apply("cluster")
    assert workspace.changes() == ""
    look_at_roles(aws)
    for name, value in aws.environment().items():
        monkeypatch.setenv(name, value)
    main(["doctor", "--cluster", "llm-production", "--json"])
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [item for item in found if item["code"] == "role-action"] == []
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


def look_at_roles(aws: AwsStandIn) -> None:
    """Controllers alone read the database's password, no role writes another cluster's logs or other subnets."""
    iam, logs = aws.client("iam"), f"arn:aws:logs:{aws.region}:{ACCOUNT_ID}:log-group:/aws/sagemaker/Clusters"
    (database,) = aws.client("rds").describe_db_instances()["DBInstances"]
    interface = f"arn:aws:ec2:{aws.region}:{ACCOUNT_ID}:network-interface/eni-0"
    foreign_subnet = {"ContextKeyName": "ec2:Subnet", "ContextKeyType": "string", "ContextKeyValues": ["arn:x"]}
    requests = {
        "database": ("secretsmanager:GetSecretValue", database["MasterUserSecret"]["SecretArn"]),
        "own logs": ("logs:PutLogEvents", f"{logs}/llm-production/abc:log-stream:a"),
        "other logs": ("logs:PutLogEvents", f"{logs}/research/abc:log-stream:a"),
        "foreign interface": ("ec2:DeleteNetworkInterface", interface),
    }
    cluster = aws.client("sagemaker").describe_cluster(ClusterName="llm-production")
    roles = {group["InstanceGroupName"]: group["ExecutionRole"] for group in cluster["InstanceGroups"]}
    assert {name: arn.rpartition("-")[2] for name, arn in roles.items()} == {
        "controller": "controllers",
        "login": "login",
        "cpu": "nodes",
        "h100": "nodes",
    }
    for name, role in roles.items():
        allowed = {
            what
            for what, (action, resource) in requests.items()
            for result in iam.simulate_principal_policy(
                PolicySourceArn=role, ActionNames=[action], ResourceArns=[resource], ContextEntries=[foreign_subnet]
            )["EvaluationResults"]
            if result["EvalDecision"] == "allowed"
        }
        assert allowed == {"own logs", *({"database"} if name == "controller" else ())}


def die_while_planning(workspace: Workspace, aws: AwsStandIn, bucket: str) -> str:
    """Kill a plan of the foundation that holds the lock; the lock's id."""
    s3 = aws.client("s3")

    def locks() -> list[str]:
        listed = s3.list_objects_v2(Bucket=bucket).get("Contents", [])
        return [item["Key"] for item in listed if item["Key"].endswith(".tflock")]

    with workspace.started("foundation", "plan", log=workspace.folder / "killed.log"):
        wait_until(locks)
    (lock,) = locks()
    return str(json.load(s3.get_object(Bucket=bucket, Key=lock)["Body"])["ID"])
