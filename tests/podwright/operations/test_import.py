"""``podwright import``: clusters that others made, and then Terraform's own word that nothing is left to change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from podwright import checkout
from podwright.aws_session import Session
from podwright.cli import main
from podwright.errors import ArgumentError
from podwright.operations.account import hyperpod as clusters
from podwright.operations.deployment.kit import search_path
from podwright.operations.deployment.terraform import PROVIDER, find_terraform, terraform_environment
from podwright.operations.import_export.import_cluster import refuse
from podwright_rehearsal.aws import AwsStandIn
from podwright_testing.hyperpod import ClusterMaker
from podwright_testing.provider import running_provider

REFERENCE = "ml-cluster"
BUCKET = "sagemaker-lifecycle-7c1f"
WAIT_S = 500


@pytest.fixture
def project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with cdktf.json and nothing else, and Terraform's environment."""
    kit = json.loads((checkout.ROOT / "cdktf.json").read_text(encoding="utf-8"))
    kit["app"] = f"{sys.executable} {checkout.ROOT / 'main.py'}"
    (folder / "cdktf.json").write_text(json.dumps(kit), encoding="utf-8")
    for name, value in terraform_environment(folder / "terraform").items():
        monkeypatch.setenv(name, value)
    return folder


@pytest.fixture
def one_provider(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One provider for all Terraforms of a test."""
    folder = project / "terraform"
    configuration = {"terraform": {"required_providers": {"aws": {"source": PROVIDER}}}}
    (folder / "main.tf.json").write_text(json.dumps(configuration), encoding="utf-8")
    subprocess.run([find_terraform(), "init"], cwd=folder, env=os.environ, capture_output=True, check=True)
    with running_provider(folder, os.environ) as variable:
        for name, value in variable.items():
            monkeypatch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def file_system(aws: AwsStandIn, maker: ClusterMaker) -> dict[str, Any]:
    """An FSx for Lustre file system in the maker's subnet."""
    fsx = aws.client("fsx")
    configuration = {"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 250}
    made = fsx.create_file_system(
        FileSystemType="LUSTRE",
        StorageCapacity=1200,
        SubnetIds=[maker.subnet_id],
        SecurityGroupIds=[maker.security_group_id],
        LustreConfiguration=configuration,
    )["FileSystem"]
    deadline = time.monotonic() + WAIT_S
    while True:
        (found,) = fsx.describe_file_systems(FileSystemIds=[made["FileSystemId"]])["FileSystems"]
        if found["Lifecycle"] == "AVAILABLE" or time.monotonic() > deadline:
            return dict(found)
        time.sleep(0.05)


@pytest.fixture(scope="session")
def reference(aws: AwsStandIn, maker: ClusterMaker, file_system: dict[str, Any]) -> str:
    """A cluster as AWS's workshop makes it: its groups, its provisioning_parameters.json, through CreateCluster.

    https://github.com/awslabs/awsome-distributed-ai/tree/main/1.architectures/5.sagemaker-hyperpod
    """
    s3 = aws.client("s3")
    s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": aws.region})
    parameters = {
        "version": "1.0.0",
        "workload_manager": "slurm",
        "controller_group": "controller-machine",
        "login_group": "login-group",
        "worker_groups": [{"instance_group_name": "worker-group-1", "partition_name": "ml.g5.12xlarge"}],
        "fsx_dns_name": file_system["DNSName"],
        "fsx_mountname": file_system["LustreConfiguration"]["MountName"],
    }
    s3.put_object(Bucket=BUCKET, Key="src/provisioning_parameters.json", Body=json.dumps(parameters).encode())
    s3.put_object(Bucket=BUCKET, Key="src/on_create.sh", Body=b"#!/bin/bash\n")
    common = {
        "LifeCycleConfig": {"SourceS3Uri": f"s3://{BUCKET}/src/", "OnCreate": "on_create.sh"},
        "ExecutionRole": maker.role_arn,
    }
    iam = aws.client("iam")
    trust = iam.get_role(RoleName=maker.role_arn.rpartition("/")[2])["Role"]["AssumeRolePolicyDocument"]
    head = iam.create_role(RoleName="head", AssumeRolePolicyDocument=json.dumps(trust))["Role"]["Arn"]
    volume = {"InstanceStorageConfigs": [{"EbsVolumeConfig": {"VolumeSizeInGB": 300}}]}
    ec2 = aws.client("ec2")
    vpc_id = ec2.describe_subnets(SubnetIds=[maker.subnet_id])["Subnets"][0]["VpcId"]
    second_group = ec2.create_security_group(GroupName="licenses", Description="-", VpcId=vpc_id)["GroupId"]
    create(
        aws,
        ClusterName=REFERENCE,
        InstanceGroups=[
            {"InstanceGroupName": "worker-group-1", "InstanceType": "ml.g5.12xlarge", "InstanceCount": 2, **common}
            | volume,
            {"InstanceGroupName": "controller-machine", "InstanceType": "ml.m5.12xlarge", "InstanceCount": 1, **common}
            | volume
            | {"ThreadsPerCore": 2, "ExecutionRole": head},
            {"InstanceGroupName": "login-group", "InstanceType": "ml.m5.4xlarge", "InstanceCount": 1, **common},
        ],
        VpcConfig={"SecurityGroupIds": [maker.security_group_id, second_group], "Subnets": [maker.subnet_id]},
        Tags=[{"Key": "team", "Value": "0042"}],
    )
    return REFERENCE


def create(aws: AwsStandIn, **request: Any) -> None:
    """Create a cluster through SageMaker's own API and wait until it is in service."""
    sagemaker = aws.client("sagemaker")
    sagemaker.create_cluster(**request)
    deadline = time.monotonic() + WAIT_S
    while sagemaker.describe_cluster(ClusterName=request["ClusterName"])["ClusterStatus"] != "InService":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def groups_of(aws: AwsStandIn, name: str) -> dict[str, Any]:
    """Return the cluster's groups by name."""
    described = aws.client("sagemaker").describe_cluster(ClusterName=name)
    return {group["InstanceGroupName"]: group for group in described["InstanceGroups"]}


def kit_diff(folder: Path, stack: str) -> str:
    """Return what the kit's own ``cdktf diff`` prints."""
    environment = {**os.environ, "PATH": search_path(), "PODWRIGHT_CONFIG": str(folder / "cluster.yaml"), "CI": "1"}
    answer = subprocess.run(
        ["cdktf", "diff", stack], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


@pytest.mark.terraform
@pytest.mark.usefixtures("one_provider")
def test_the_references_cluster_is_imported_and_nothing_is_left_to_change(
    capsys: pytest.CaptureFixture[str], project: Path, aws: AwsStandIn, reference: str
) -> None:
    """The file has AWS's values, the kit's own diff is empty, AWS was not changed; then the file scales one group."""
    inventory, calls, before = aws.inventory(), len(aws.changing_calls()), groups_of(aws, reference)
    assert main(["import", reference]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"cluster.yaml: {reference} in {aws.region}")
    text = (project / "cluster.yaml").read_text(encoding="utf-8")
    assert "# AWS does not say where nodes mount it: /fsx is assumed.\nlustre:" in text
    written = yaml.safe_load(text)
    groups = {group["name"]: group for group in written["cluster"]["instance_groups"]}
    roles = {"worker-group-1": "compute", "controller-machine": "controller", "login-group": "login"}
    assert {name: group["role"] for name, group in groups.items()} == roles
    assert (groups["worker-group-1"]["count"], groups["worker-group-1"]["partition"]) == (2, "ml.g5.12xlarge")
    assert [groups[name]["volume_gib"] for name in ("controller-machine", "login-group")] == [300, 0]
    assert written["cluster"]["slurm"]["source_s3_uri"] == f"s3://{BUCKET}/src/"
    assert written["tags"] == {"team": "0042"}
    assert {key: arn.rpartition("/")[2] for key, arn in written["role"].items() if key != "source"} == {
        "arn": groups_of(aws, reference)["login-group"]["ExecutionRole"].rpartition("/")[2],
        "controller_arn": "head",
    }
    assert "found no differences, so no changes are needed" in kit_diff(project, f"{reference}-cluster")
    assert (aws.inventory(), len(aws.changing_calls())) == (inventory, calls)

    file = project / "cluster.yaml"
    file.write_text(text.replace("count: 2", "count: 3"), encoding="utf-8")
    assert main(["deploy", "--only", "cluster", "--yes"]) == 0
    assert "cluster: 1 to update" in capsys.readouterr().out
    after = groups_of(aws, reference)
    assert after["worker-group-1"]["TargetCount"] == 3
    assert [after[name]["LifeCycleConfig"] for name in before] == [before[name]["LifeCycleConfig"] for name in before]


def test_a_file_that_exists_is_never_overwritten(capsys: pytest.CaptureFixture[str], project: Path) -> None:
    """A file, or a link that leads nowhere, ends the import before AWS is asked."""
    (project / "cluster.yaml").symlink_to("nowhere")
    assert main(["import", "any"]) == 2
    assert capsys.readouterr().err == (
        "podwright: cluster.yaml exists: name another file with --output, or move this one away\n"
    )


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"Orchestrator": {"Eks": {"ClusterArn": "arn:aws:eks:us-west-2:1:cluster/a"}}}, "orchestrated by EKS"),
        ({"ClusterStatus": "Updating"}, "it is Updating: wait"),
        ({"VpcConfig": {}}, "it has no VpcConfig"),
    ],
)
def test_a_cluster_that_is_not_understood_is_refused(
    aws: AwsStandIn, maker: ClusterMaker, answer: dict[str, Any], reason: str
) -> None:
    """The reason is one line, and nothing is written."""
    name = "understood"
    if name not in maker.made:
        maker.make(name)
    described = {**aws.client("sagemaker").describe_cluster(ClusterName=name), **answer}
    with pytest.raises(ArgumentError, match=reason) as raised:
        refuse(clusters.described(Session(region=aws.region), described))
    assert "\n" not in str(raised.value)


def test_a_cluster_without_a_known_file_system_is_refused(
    capsys: pytest.CaptureFixture[str], maker: ClusterMaker, project: Path
) -> None:
    """Neither API nor scripts name a file system, and the hint says how to name it."""
    maker.make("without-lustre")
    assert main(["import", "without-lustre"]) == 2
    assert "--lustre" in capsys.readouterr().err
    assert sorted(path.name for path in project.iterdir()) == ["cdktf.json", "terraform"]


@pytest.mark.usefixtures("project")
def test_a_cluster_of_podwright_is_refused(capsys: pytest.CaptureFixture[str], maker: ClusterMaker) -> None:
    """A cluster with podwright's tags has a settings file already."""
    maker.make("own", Tags=[{"Key": "podwright:construct-path", "Value": "own-cluster/cluster/cluster"}])
    assert main(["import", "own"]) == 2
    assert "podwright adopt" in capsys.readouterr().err
