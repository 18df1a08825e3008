"""Updates of a cluster whose lists AWS returns in an order of its own, by the real Terraform and AWS provider."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest

from podwright.check.account import Account
from podwright.operations.deployment.align import align_stack, as_read
from podwright.operations.deployment.deployed_stacks import DeployedStack
from podwright.operations.deployment.terraform import TerraformError
from podwright_rehearsal.aws import AwsStandIn
from podwright_rehearsal.aws.list_order import reordered

pytestmark = pytest.mark.slow

CLUSTER = "aws_cloudcontrolapi_resource"
TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "sagemaker.amazonaws.com"}},
    ],
}
# By the name of an update: instances of each compute group, one update after the other.
FIRST = {"b": 2, "c": 1}
UPDATES = {
    "scale one up, one down": {"b": 1, "c": 2},
    "add a group": {"a": 1, "b": 1, "c": 2},
    "remove a group": {"a": 1, "c": 2},
    "rename a group": {"a": 1, "d": 2},
    "remove one, add two, scale one": {"0": 1, "d": 3, "f": 1},
}
WITHOUT_ALIGNMENT = {"a": 1, "c": 1}  # b removed, a added
SEED = 4  # its order is not that of the file


class UpdatedCluster:
    """A cluster in Terraform's hands, and the account it is in."""

    def __init__(self, aws, folder, terraform):
        self.aws, self.folder = aws, folder
        self.stack = DeployedStack(folder)
        ec2 = aws.client("ec2")
        vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.16.0/24")["Subnet"]["SubnetId"]
        group = ec2.create_security_group(GroupName="nodes", Description="-", VpcId=vpc)["GroupId"]
        self.network = {"SecurityGroupIds": [group], "Subnets": [subnet]}
        role = aws.client("iam").create_role(RoleName="node", AssumeRolePolicyDocument=json.dumps(TRUST))
        self.role = role["Role"]["Arn"]
        self.environment = {**terraform, **aws.environment()}

    def write(self, counts):
        """Write what Terraform is to make: the groups in the order of the product, controller first, then by name."""
        groups = [self.group("controller", 1, {"NodeType": "Controller"})]
        groups += [
            self.group(name, count, {"NodeType": "Compute", "PartitionNames": [f"p{name}"]})
            for name, count in sorted(counts.items())
        ]
        state = {
            "ClusterName": "demo",
            "InstanceGroups": groups,
            "Orchestrator": {"Slurm": {"SlurmConfigStrategy": "Managed"}},
            "Tags": [{"Key": key, "Value": "x"} for key in ("a", "b", "c")],
            "VpcConfig": self.network,
        }
        cluster = {
            "//": {"metadata": {"path": f"{self.stack.name}/cluster"}},  # as cdktf writes it
            "type_name": "AWS::SageMaker::Cluster",
            "desired_state": json.dumps(state),
        }
        content = {
            "terraform": {"required_providers": {"aws": {"source": "hashicorp/aws"}}},
            "provider": {"aws": {"region": self.aws.region}},
            "resource": {CLUSTER: {"cluster": cluster}},
        }
        (self.folder / "cdk.tf.json").write_text(json.dumps(content), encoding="utf-8")

    def group(self, name, count, slurm):
        return {
            "InstanceGroupName": name,
            "InstanceType": "ml.c5.large",
            "InstanceCount": count,
            "ExecutionRole": self.role,
            "SlurmConfig": slurm,
        }

    def apply(self, counts):
        self.write(counts)
        self.stack.terraform("apply", "-auto-approve", "-input=false", "-no-color")

    def align(self):
        return align_stack(self.stack, Account(region=self.aws.region))

    def counts(self):
        """Return instances by group as SageMaker says."""
        described = self.aws.client("sagemaker").describe_cluster(ClusterName="demo")["InstanceGroups"]
        return {group["InstanceGroupName"]: group["CurrentCount"] for group in described}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, terraform):
    """A cluster of FIRST in an account that lists groups in the order of SEED."""
    folder = tmp_path_factory.mktemp("stack")
    with (
        AwsStandIn(directory=folder / "aws", transition_s=0.1, order_seed=SEED) as aws,
        pytest.MonkeyPatch.context() as patch,
    ):
        made = UpdatedCluster(aws, folder, terraform)
        for name, value in made.environment.items():
            patch.setenv(name, value)
        made.write(FIRST)
        made.stack.terraform("init", "-input=false", "-no-color")
        made.apply(FIRST)
        yield made


def test_the_account_lists_groups_in_an_order_of_its_own(cluster):
    """The stand-in returns the groups that were requested, in an order of its own, the same at every read."""
    described = cluster.aws.client("cloudcontrol").list_resources(TypeName="AWS::SageMaker::Cluster")
    (found,) = described["ResourceDescriptions"]
    names = [group["InstanceGroupName"] for group in json.loads(found["Properties"])["InstanceGroups"]]
    assert sorted(names) == ["b", "c", "controller"]
    assert names != ["controller", "b", "c"]


def test_without_alignment_terraform_changes_other_groups(cluster):
    """The reason for `podwright align`: without it an update leaves other groups than asked for, or AWS refuses it."""
    with suppress(TerraformError):
        cluster.apply(WITHOUT_ALIGNMENT)
    assert cluster.counts() != {"controller": 1, **WITHOUT_ALIGNMENT}


def test_every_update_reaches_its_groups(cluster):
    """After `podwright align` each kind of update does what the file says, and the next plan is empty."""
    for name, counts in UPDATES.items():
        cluster.align()
        cluster.apply(counts)
        assert cluster.counts() == {"controller": 1, **counts}, name
    plan = cluster.stack.plan(refresh=True)
    assert [item["change"]["actions"] for item in plan["resource_changes"]] == [["no-op"]]
    cluster.align()
    assert not cluster.align()  # the state lists the cluster as AWS does


@pytest.mark.parametrize("seed", range(20))
def test_what_is_read_is_what_was_asked_for(seed):
    """Whatever the order, the state becomes AWS's answer, without what only AWS has."""
    asked = {"Groups": [{"InstanceGroupName": name, "Ids": ["x", "y"]} for name in "abcd"], "Name": "demo"}
    listed = reordered(asked, seed)
    found = {**listed, "Groups": [{**group, "CurrentCount": 1} for group in listed["Groups"]], "Arn": "arn"}
    assert as_read(asked, found) == listed
    assert json.dumps(reordered(listed, seed)) == json.dumps(listed)
