"""``podwright deploy`` refuses what ends jobs or loses data, and explains what failed in AWS."""

from __future__ import annotations

import json

import pytest

from podwright.check.load import load
from podwright.checkout import ROOT
from podwright.errors import ArgumentError, OperationError
from podwright.operations.deployment.deploy import explained
from podwright.operations.deployment.loss_guard import refuse_losses
from podwright.operations.deployment.planned_changes import Change, _changes
from podwright.resource_types import CLUSTER

CLUSTER_PATH = "cluster/cluster"


def planned(before: dict[str, object], after: dict[str, object]) -> Change:
    """Return what a plan says of a cluster that Terraform replaces."""
    change = {
        "actions": ["delete", "create"],
        "before": {"desired_state": json.dumps(before)},
        "after": {"desired_state": json.dumps(after)},
        "replace_paths": [["desired_state"]],
    }
    plan = {"resource_changes": [{"address": "a", "mode": "managed", "type": CLUSTER, "change": change}]}
    (found,) = _changes("small-cluster", plan, {"a": f"small-cluster/{CLUSTER_PATH}"})
    return found


def test_the_property_of_a_replaced_cluster_is_named():
    """Of all properties that differ, those that only a new cluster can have are named; naming the path goes on."""
    before = {"VpcConfig": {"Subnets": ["subnet-1"]}, "NodeRecovery": "None"}
    change = planned(before, {"VpcConfig": {"Subnets": ["subnet-2"]}, "NodeRecovery": "Automatic"})
    with pytest.raises(ArgumentError, match="replace cluster/cluster because of VpcConfig, which ends all jobs"):
        refuse_losses({"cluster": [change]}, allowed=[])
    with pytest.raises(ArgumentError, match="the foundation alone was deployed: the settings replace"):
        refuse_losses({"cluster": [change]}, allowed=[], deployed="the foundation alone")
    refuse_losses({"cluster": [change]}, allowed=[CLUSTER_PATH])


@pytest.mark.parametrize(
    "kind",
    [
        "aws_cloudwatch_log_group",
        "aws_db_instance",
        "aws_fsx_lustre_file_system",
        "aws_fsx_openzfs_file_system",
        "aws_kms_key",
        "aws_prometheus_workspace",
        "aws_s3_bucket",
    ],
)
@pytest.mark.parametrize("verb", ["replace", "destroy"])
def test_data_is_not_lost_by_an_edit(kind, verb):
    """A resource that holds data is refused if a deployment would replace or destroy it."""
    with pytest.raises(ArgumentError, match="loses"):
        refuse_losses({"foundation": [Change("s", verb, "x/y", kind, ())], "cluster": []}, allowed=[])


def test_a_network_is_guarded_while_nodes_are_in_it():
    """A subnet may be replaced before there is a cluster, and not below one."""
    subnet = Change("s", "replace", "network/private_subnet", "aws_subnet", ("cidr_block",))
    refuse_losses({"foundation": [subnet], "cluster": [Change("s", "create", CLUSTER_PATH, CLUSTER, ())]}, allowed=[])
    for there in ([], None):
        with pytest.raises(ArgumentError, match="because of cidr_block, which has the cluster's nodes in it"):
            refuse_losses({"foundation": [subnet], "cluster": there}, allowed=[])


def test_everything_else_is_deployed():
    """Creations, updates, and replaced resources without data need no word."""
    changes = [Change("s", "update", CLUSTER_PATH, CLUSTER, ()), Change("s", "replace", "x", "aws_s3_object", ())]
    refuse_losses({"cluster": changes}, allowed=[])


def explanation(text: str) -> str:
    """Return the error of a deployment whose kit ended with this text."""
    with pytest.raises(OperationError) as raised, explained(load(ROOT / "cluster.yaml")):
        raise OperationError(text)
    return str(raised.value)


def test_a_cluster_that_failed_in_aws_is_explained():
    """AWS's words may be broken into Terraform's lines; the cause and the command that shows the evidence follow."""
    text = (
        "`cdktf deploy` failed; its log is x:\n"
        "│ Error: waiting for Cloud Control API (AWS::SageMaker::Cluster) Resource create: StatusMessage: Lifecycle\n"
        "│ scripts did not run successfully. ErrorCode: NotStabilized"
    )
    assert explanation(text).splitlines()[-2:] == [
        "likely: the lifecycle script failed on a node, or the node could not read it from S3",
        "look:   podwright logs --lifecycle --cluster podwright-demo --region us-west-2",
    ]


def test_what_aws_denied_is_named():
    """Terraform's error of a missing permission ends with the action, and where all of them are."""
    text = "│ Error: creating EC2 VPC: User: ada is not\n│ authorized to perform: ec2:CreateVpc on resource: *"
    with pytest.raises(OperationError) as raised, explained(load(ROOT / "cluster.yaml")):
        raise OperationError(text)
    assert raised.value.render().endswith(
        ": allow ec2:CreateVpc: `podwright policy deployer` prints all that deploying needs"
    )


def test_what_an_interrupted_deployment_left_is_adopted():
    """Terraform cancels calls that AWS carries out all the same: the error names the command that finds such."""
    text = "│ Error: creating IAM Role (a): StatusCode: 409, EntityAlreadyExists: Role with name a already exists."
    with pytest.raises(OperationError) as raised, explained(load(ROOT / "cluster.yaml")):
        raise OperationError(text)
    assert "`podwright adopt` lists what no state has" in raised.value.render()


@pytest.mark.parametrize(
    "text", ["creating IAM Role: AccessDenied", "Cloud Control API: something new", "no cdktf on PATH"]
)
def test_other_errors_stay_as_they_are(text):
    """An error of another resource, or an unknown one of the cluster, gets no cause that may be wrong."""
    assert explanation(text) == text
