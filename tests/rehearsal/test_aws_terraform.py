"""The real Terraform and its real AWS provider against the stand-in."""

import json
import os
import subprocess

import pytest

from podwright.operations.deployment import terraform
from podwright_rehearsal.aws import AwsStandIn
from podwright_testing.provider import running_provider

TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "sagemaker.amazonaws.com"}},
    ],
}
NODE_POLICY = "arn:aws:iam::aws:policy/AmazonSageMakerClusterInstanceRolePolicy"
RULES = ["aws_vpc_security_group_ingress_rule.all", "aws_vpc_security_group_egress_rule.all"]


def configuration(*, workers=2, node_recovery="Automatic"):
    """A whole small deployment: network, bucket, role, file system, cluster."""
    everything_within = {
        "security_group_id": "${aws_security_group.nodes.id}",
        "referenced_security_group_id": "${aws_security_group.nodes.id}",
        "ip_protocol": "-1",
    }
    parameters = {
        "version": "1.0.0",
        "workload_manager": "slurm",
        "controller_group": "controller",
        "worker_groups": [{"instance_group_name": "workers", "partition_name": "gpu"}],
        "fsx_dns_name": "${aws_fsx_lustre_file_system.scratch.dns_name}",
        "fsx_mountname": "${aws_fsx_lustre_file_system.scratch.mount_name}",
    }
    desired = {
        "ClusterName": "demo",
        "VpcConfig": {
            "SecurityGroupIds": ["${aws_security_group.nodes.id}"],
            "Subnets": ["${aws_subnet.private.id}"],
        },
        "NodeRecovery": node_recovery,
        "InstanceGroups": [
            {
                "InstanceGroupName": name,
                "InstanceType": instance_type,
                "InstanceCount": count,
                "ExecutionRole": "${aws_iam_role.node.arn}",
                "LifeCycleConfig": {
                    "SourceS3Uri": "s3://${aws_s3_bucket.scripts.bucket}/v1",
                    "OnCreate": "on_create.sh",
                },
            }
            for name, instance_type, count in (
                ("controller", "ml.m5.xlarge", 1),
                ("workers", "ml.g5.12xlarge", workers),
            )
        ],
    }
    return {
        "terraform": {"required_providers": {"aws": {"source": "hashicorp/aws", "version": ">= 5.100, < 7"}}},
        "provider": {"aws": {}},
        "resource": {
            "aws_vpc": {"main": {"cidr_block": "10.0.0.0/16"}},
            "aws_subnet": {
                "private": {
                    "vpc_id": "${aws_vpc.main.id}",
                    "cidr_block": "10.0.16.0/20",
                    "availability_zone_id": "usw2-az1",
                }
            },
            "aws_security_group": {"nodes": {"name": "nodes", "vpc_id": "${aws_vpc.main.id}"}},
            "aws_vpc_security_group_ingress_rule": {"all": everything_within},
            "aws_vpc_security_group_egress_rule": {"all": everything_within},
            "aws_s3_bucket": {"scripts": {"bucket": "sagemaker-demo-scripts"}},
            "aws_s3_object": {
                "parameters": {
                    "bucket": "${aws_s3_bucket.scripts.bucket}",
                    "key": "v1/provisioning_parameters.json",
                    "content": json.dumps(parameters),
                },
                "script": {
                    "bucket": "${aws_s3_bucket.scripts.bucket}",
                    "key": "v1/on_create.sh",
                    "content": "#!/bin/sh\n",
                },
            },
            "aws_iam_role": {"node": {"name": "node", "assume_role_policy": json.dumps(TRUST)}},
            "aws_iam_role_policy_attachment": {
                "node": {"role": "${aws_iam_role.node.name}", "policy_arn": NODE_POLICY}
            },
            "aws_fsx_lustre_file_system": {
                "scratch": {
                    "storage_capacity": 1200,
                    "deployment_type": "PERSISTENT_2",
                    "per_unit_storage_throughput": 250,
                    "subnet_ids": ["${aws_subnet.private.id}"],
                    "security_group_ids": ["${aws_security_group.nodes.id}"],
                    "depends_on": RULES,
                }
            },
            "aws_cloudcontrolapi_resource": {
                "cluster": {
                    "type_name": "AWS::SageMaker::Cluster",
                    "desired_state": json.dumps(desired),
                    "depends_on": [*RULES, "aws_s3_object.parameters", "aws_s3_object.script"],
                }
            },
        },
    }


class Workspace:
    """A directory in which Terraform is run against one account."""

    def __init__(self, directory, aws):
        self.directory = directory
        self.environment = {**os.environ, **aws.environment(), **terraform.terraform_environment(directory / "cli")}

    def write(self, content):
        (self.directory / "main.tf.json").write_text(json.dumps(content), encoding="utf-8")

    def run(self, *arguments, expected=0):
        command = [str(terraform.find_terraform()), *arguments, "-no-color"]
        ended = subprocess.run(
            command, cwd=self.directory, env=self.environment, capture_output=True, text=True, check=False
        )
        said = ended.stdout + ended.stderr
        assert ended.returncode == expected, said
        return said


@pytest.fixture(scope="module")
def aws(tmp_path_factory):
    with AwsStandIn(directory=tmp_path_factory.mktemp("aws"), instant_deletion=True) as stand_in:
        yield stand_in


@pytest.fixture(scope="module")
def workspace(tmp_path_factory, aws):
    """Terraform is initialized, and has one provider for all of its commands."""
    made = Workspace(tmp_path_factory.mktemp("workspace"), aws)
    made.write(configuration())
    made.run("init")
    with running_provider(made.directory, made.environment) as provider:
        made.environment |= provider
        yield made


@pytest.mark.terraform
def test_a_deployment_lives_and_leaves_nothing(workspace, aws):
    """Apply, second plan without changes, update in place, a wrong state refused while planning, destroy: all empty."""
    sagemaker = aws.client("sagemaker")
    workspace.write(configuration())
    assert "12 added, 0 changed, 0 destroyed" in workspace.run("apply", "-auto-approve")
    assert "No changes" in workspace.run("plan", "-detailed-exitcode")

    workspace.write(configuration(workers=3))
    planned = workspace.run("plan", "-detailed-exitcode", expected=2)
    assert "aws_cloudcontrolapi_resource.cluster will be updated in-place" in planned
    assert "0 added, 1 changed, 0 destroyed" in workspace.run("apply", "-auto-approve")
    nodes = sagemaker.list_cluster_nodes(ClusterName="demo")["ClusterNodeSummaries"]
    assert [node["InstanceGroupName"] for node in nodes] == ["controller", "workers", "workers", "workers"]

    workspace.write(configuration(workers=3, node_recovery="Sometimes"))
    assert "validating desired_state against CloudFormation Resource Schema" in workspace.run("plan", expected=1)

    workspace.write(configuration(workers=3))
    assert "12 destroyed" in workspace.run("destroy", "-auto-approve")
    assert aws.inventory() == []


@pytest.mark.terraform
def test_refusals_reach_terraforms_user(workspace, aws):
    """A refused request fails the apply with AWS's error code and message."""
    wrong = configuration()
    wrong["resource"]["aws_fsx_lustre_file_system"]["scratch"]["per_unit_storage_throughput"] = 100
    workspace.write(wrong)
    said = workspace.run("apply", "-auto-approve", expected=1)
    assert "InvalidPerUnitStorageThroughput" in said
    assert "125, 250, 500, 1000" in said
    workspace.run("destroy", "-auto-approve")
    assert aws.inventory() == []


def provider(mirror, version="5.100.0"):
    """A folder in the layout of a mirror, with an empty provider in it."""
    folder = mirror / "registry.terraform.io/hashicorp/aws" / version / terraform.machine_name()
    folder.mkdir(parents=True)
    (folder / f"terraform-provider-aws_v{version}_x5").touch()
    return mirror


def test_a_mirror_is_found_below_a_well_known_parent(tmp_path, monkeypatch):
    """Wherever somebody has unpacked one, at most two levels down."""
    monkeypatch.setattr(terraform, "IMPLIED_MIRRORS", ())
    monkeypatch.setattr(terraform, "PARENTS", (str(tmp_path / "absent"), str(tmp_path)))
    assert terraform.find_mirror() is None
    mirror = provider(tmp_path / "tools" / "plugins")
    assert terraform.find_mirror() == mirror


def test_with_a_mirror_terraform_stays_off_the_network(tmp_path, monkeypatch):
    """The CLI configuration takes the AWS provider from the mirror, and so does the lock that cdktf asks for."""
    mirror = provider(tmp_path / "mirror")
    monkeypatch.setattr(terraform, "IMPLIED_MIRRORS", (str(mirror),))
    environment = terraform.terraform_environment(tmp_path / "cli")
    written = (tmp_path / "cli" / "terraform.tfrc").read_text(encoding="utf-8")
    assert environment["TF_CLI_CONFIG_FILE"] == str(tmp_path / "cli" / "terraform.tfrc")
    assert environment["TF_CLI_ARGS_providers_lock"] == f"-fs-mirror={mirror}"
    assert f'path    = "{mirror}"' in written


def test_without_a_mirror_the_provider_is_downloaded_once(tmp_path, monkeypatch):
    """Nothing is said of a mirror, and a cache keeps the download."""
    monkeypatch.setattr(terraform, "IMPLIED_MIRRORS", ())
    monkeypatch.setattr(terraform, "PARENTS", ())
    monkeypatch.setenv("TF_PLUGIN_CACHE_DIR", str(tmp_path / "cache"))
    environment = terraform.terraform_environment(tmp_path / "cli")
    assert "TF_CLI_ARGS_providers_lock" not in environment
    written = (tmp_path / "cli" / "terraform.tfrc").read_text(encoding="utf-8")
    assert written == f'plugin_cache_dir = "{tmp_path / "cache"}"\n'
    assert (tmp_path / "cache").is_dir()


def executable(path, says):
    path.write_text(f"#!/bin/sh\necho '{says}'\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_the_named_binary_is_used_and_must_be_new_enough(tmp_path, monkeypatch):
    """TERRAFORM_BINARY_NAME wins; an old, a strange and an absent one are refused with what to do."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("TERRAFORM_BINARY_NAME", "tofu")
    with pytest.raises(terraform.TerraformError, match="no tofu on PATH"):
        terraform.find_terraform()
    tofu = executable(tmp_path / "tofu", '{"terraform_version": "1.8.2"}')
    assert terraform.find_terraform() == tofu
    executable(tofu, '{"terraform_version": "1.4.6"}')
    with pytest.raises(terraform.TerraformError, match=r"version 1\.4\.6, need 1\.5 or newer"):
        terraform.find_terraform()
    executable(tofu, "hello")
    with pytest.raises(terraform.TerraformError, match="does not answer like Terraform: hello"):
        terraform.find_terraform()
