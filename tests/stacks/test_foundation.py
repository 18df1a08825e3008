"""A foundation of everything there is, with the real Terraform and AWS provider against the stand-in."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cdktf import App, LocalBackend

from podwright.settings.root import Settings
from podwright_constructs import facts
from podwright_constructs.arguments.lustre import LustreArguments
from podwright_constructs.arguments.openzfs import OpenZfsArguments
from podwright_constructs.bucket import TrainingBucket
from podwright_constructs.flow_logs import BucketFlowLogs
from podwright_constructs.lustre import LustreFileSystem
from podwright_constructs.network import PrivateNetwork, TrainingNetwork
from podwright_constructs.openzfs import OpenZfsFileSystem
from podwright_rehearsal.aws import AwsStandIn
from podwright_stacks.foundation import FoundationStack
from podwright_testing.provider import running_provider
from podwright_testing.workspace import LIMIT_S

ZONE = "usw2-az1"
NODES = {"instance_type": "ml.m5.xlarge", "count": 1}
SETTINGS: dict[str, Any] = {
    "name": "gallery",
    "region": "us-west-2",
    "key": {"source": "create"},
    "network": {
        "source": "create",
        "availability_zone_id": ZONE,
        "secondary_cidrs": ["100.64.0.0/16"],
        "extra_private_subnets": [{"availability_zone_id": "usw2-az2", "cidr": "100.64.0.0/20"}],
        "endpoints": ["ssm", "sts"],
    },
    "lustre": {
        "source": "create",
        "on_destroy": "destroy",
        "metadata_iops": 6000,
        "weekly_maintenance_start_time": "7:03:30",
        "root_squash": "65534:65534",
        "no_squash_nids": ["10.0.[0-255].[0-255]@tcp", "100.64.[0-15].[0-255]@tcp"],
        "log_level": "WARN_ERROR",
        "data_repositories": [{"path": "/data", "s3_uri": "s3://corpus/v1", "export_changes": True}],
    },
    "openzfs": {"source": "create", "deployment_type": "MULTI_AZ_1", "on_destroy": "backup"},
    "bucket": {"source": "create", "on_destroy": "destroy", "access_log_bucket": "corpus"},
    "role": {"source": "create"},
    "notices": {"email": "team@llm.test", "idle_hours": 6},
    "prometheus": {"source": "create"},
    "cluster": {
        "instance_groups": [
            {"name": "controller", "role": "controller", **NODES},
            {"name": "workers", "role": "compute", "partition": "gpu", **NODES},
        ]
    },
}


class Gallery(FoundationStack):
    """The foundation, and beside it in the same account each variant that excludes another one in a settings file."""

    def __init__(self, scope: App) -> None:
        super().__init__(scope, settings=Settings.model_validate(SETTINGS))
        isolated = TrainingNetwork(
            self, "isolated", name="isolated", availability_zone_id=ZONE, internet="none", endpoints=["standard"]
        )
        logs = TrainingBucket(self, "logs", bucket_prefix="sagemaker-logs-", on_destroy="destroy", receives_logs=True)
        BucketFlowLogs(self, "bucket_flow_logs", name="isolated", vpc_id=isolated.vpc_id, bucket=logs)
        private = PrivateNetwork(
            self,
            "private",
            name="private",
            vpc_id=self.network.vpc_id,
            availability_zone_id=ZONE,
            private_subnet_cidr="10.0.64.0/20",
            route_table_id=self.network.route_table_ids[0],
        )
        kinds = {
            "scratch": LustreArguments(deployment_type="SCRATCH_2", capacity_gib=2400),
            "hdd": LustreArguments(deployment_type="PERSISTENT_1", storage_type="HDD", read_cache=True),
            "tiering": LustreArguments(storage_type="INTELLIGENT_TIERING"),
        }
        for name, kind in kinds.items():
            LustreFileSystem(self, name, replace(kind, on_destroy="destroy"), network=private)
        efa = LustreArguments(throughput_mbps_per_tib=1000, efa=True, on_destroy="destroy")
        LustreFileSystem(self, "efa", efa, network=private, key=self.key)
        single = OpenZfsArguments(deployment_type="SINGLE_AZ_1", throughput_mbps=64, on_destroy="destroy")
        OpenZfsFileSystem(self, "single", single, network=private)


@pytest.fixture
def aws(tmp_path: Path) -> Iterator[AwsStandIn]:
    """An account with the bucket that the settings name, which takes access logs."""
    with AwsStandIn(directory=tmp_path / "aws", instant_deletion=True) as stand_in:
        s3 = stand_in.client("s3")
        s3.create_bucket(Bucket="corpus", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
        statement = {
            "Effect": "Allow",
            "Principal": {"Service": "logging.s3.amazonaws.com"},
            "Action": "s3:PutObject",
            "Resource": "arn:aws:s3:::corpus/*",
        }
        s3.put_bucket_policy(Bucket="corpus", Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}))
        yield stand_in


@pytest.mark.terraform
def test_a_foundation_of_everything_lives_and_leaves_its_backup_alone(
    tmp_path: Path, terraform: Mapping[str, str], aws: AwsStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apply, a second plan without changes, and a destroy that leaves the last backup that was asked for."""
    for name, value in aws.environment().items():
        monkeypatch.setenv(name, value)
    app = App(outdir=str(tmp_path))
    gallery = Gallery(app)
    LocalBackend(gallery, path=str(tmp_path / "terraform.tfstate"))  # cdktf's own is in the checkout
    folder = tmp_path / "stacks" / gallery.node.id
    app.synth()

    environment = {**os.environ, **terraform}

    def run(*arguments: str) -> str:
        ended = subprocess.run(
            ["terraform", *arguments, "-no-color"],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    run("init")
    with running_provider(folder, environment) as provider:
        environment |= provider
        run("apply", "-auto-approve", "-parallelism=40")
        assert "No changes" in run("plan", "-detailed-exitcode")
        _look_at(aws)
        run("destroy", "-auto-approve", "-parallelism=40")
    ours = [item for item in aws.inventory() if item != "AWS::S3::Bucket corpus" and "s3://corpus/" not in item]
    assert [item.split()[0] for item in ours] == ["AWS::FSx::Backup"]


def _look_at(aws: AwsStandIn) -> None:
    """The account holds what the arguments say."""
    ec2, fsx = aws.client("ec2"), aws.client("fsx")
    assert {log["DeliverLogsStatus"] for log in ec2.describe_flow_logs()["FlowLogs"]} == {"SUCCESS"}
    named = ec2.describe_security_groups(
        Filters=[{"Name": "tag:Name", "Values": ["gallery-closed", "isolated-closed"]}]
    )
    assert [(group["IpPermissions"], group["IpPermissionsEgress"]) for group in named["SecurityGroups"]] == [
        ([], [])
    ] * 2
    assert len(ec2.describe_nat_gateways()["NatGateways"]) == 1  # the isolated network has none
    file_systems = fsx.describe_file_systems()["FileSystems"]
    lustres = [item["LustreConfiguration"] for item in file_systems if "LustreConfiguration" in item]
    (squashed,) = [item for item in lustres if "RootSquashConfiguration" in item]
    assert squashed["RootSquashConfiguration"]["RootSquash"] == "65534:65534"
    assert (squashed["WeeklyMaintenanceStartTime"], squashed["LogConfiguration"]["Level"]) == ("7:03:30", "WARN_ERROR")
    (key,) = {item["KmsKeyId"] for item in file_systems if item["KmsKeyId"].split(":")[5].startswith("key/")}
    assert aws.client("kms").get_key_rotation_status(KeyId=key)["KeyRotationEnabled"]
    (topic,) = aws.client("sns").list_topics()["Topics"]
    assert aws.client("sns").get_topic_attributes(TopicArn=topic["TopicArn"])["Attributes"]["KmsMasterKeyId"] == key
    roles = {role["RoleName"] for role in aws.client("iam").list_roles()["Roles"]}
    assert {f"gallery-us-west-2-{kind}" for kind in ("controllers", "login", "nodes")} <= roles
    (workspace,) = aws.client("amp").list_workspaces()["workspaces"]
    assert workspace["kmsKeyArn"] == key
    assert {
        item["LustreConfiguration"]["DeploymentType"] for item in file_systems if "LustreConfiguration" in item
    } == set(facts.LUSTRE_STORAGE_TYPES)
    (homes,) = [item for item in file_systems if len(item["SubnetIds"]) == facts.OPENZFS_SUBNETS["MULTI_AZ_1"]]
    assert homes["OpenZFSConfiguration"]["PreferredSubnetId"] == homes["SubnetIds"][0]
