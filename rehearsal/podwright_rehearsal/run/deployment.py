"""Deploy the user's stacks into the account of the AWS stand-in with the real kit, Terraform and AWS provider.

Terraform's state is in the rehearsal's folder, apart from the user's.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podwright import checkout
from podwright.operations.deployment.kit import find_program, kit_name, search_path
from podwright.operations.deployment.terraform import terraform_environment
from podwright.settings import names
from podwright.settings.root import Settings
from podwright_bootstrap.contract import API_PARAMETERS_NAME, PROVISIONING_PARAMETERS_NAME
from podwright_constructs import lifecycle_archive
from podwright_constructs.catalog import InstanceType
from podwright_rehearsal import processes
from podwright_rehearsal.aws import AwsStandIn
from podwright_rehearsal.clusters.rehearsed import Node
from podwright_rehearsal.clusters.set_up_by_api import MountedFileSystem
from podwright_rehearsal.run import retained
from podwright_rehearsal.run.progress import StepFailed

SKIP_SYNTH = "--skip-synth"  # the stacks in the output folder are up to date
# `terraform init` locks the provider for this machine; hashes for others are of no use in a rehearsal's folder.
SKIP_PROVIDER_LOCK = "--skip-provider-lock"
# What cdktf prints of Terraform: ``STACK  aws_vpc.network_vpc_4E8F0223: Creation complete after 2s [id=vpc-1]``.
_DONE = re.compile(
    r"(?P<type>\w+)\.(?P<name>\w+?)(?:_[0-9A-F]{8})?(?: \([^)]*\))?: "
    r"(?P<verb>Creation|Modifications|Destruction) complete after (?P<time>\w+)"
)
_WORDS = {"Creation": "created", "Modifications": "updated", "Destruction": "destroyed"}


@dataclass
class Deployment:
    """The kit's commands, and SageMaker's description of the cluster."""

    config: Path
    settings: Settings
    aws: AwsStandIn
    project: Path  # the kit's working directory: state lands here, never in the user's folder
    logs: Path
    on_line: Callable[[str], None]

    def deploy(self) -> int:
        """``cdktf deploy '*'``; return how many resources Terraform says it added."""
        content = json.loads((checkout.ROOT / "cdktf.json").read_text())
        content |= {"app": f"{sys.executable} {checkout.ROOT / 'main.py'}", "output": str(self.project / "cdktf.out")}
        (self.project / "cdktf.json").write_text(json.dumps(content, indent=2))
        retained.make_bucket_of_states(self.aws.client, self.settings)
        lines = self._kit("deploy", "*", "--auto-approve")
        return sum(int(line.split("Resources: ")[1].split()[0]) for line in lines if "Apply complete!" in line)

    def plan_nothing(self) -> None:
        """``cdktf diff`` of each stack, synthesized once; raises ``StepFailed`` if Terraform plans a change."""
        stacks = (names.foundation_stack(self.settings.name), names.cluster_stack(self.settings.name))
        for stack, options in zip(stacks, ((), (SKIP_SYNTH,)), strict=True):
            if not any("No changes." in line for line in self._kit("diff", stack, *options)):
                raise StepFailed(f"the second plan of {stack} has changes", log=self.log("diff"))

    def destroy(self) -> None:
        """Run ``cdktf destroy '*'`` for the second plan's resources, and for those that users retain."""
        for file in (self.project / "cdktf.out" / "stacks").glob("*/cdk.tf.json"):
            file.write_text(file.read_text().replace('"prevent_destroy": true', '"prevent_destroy": false'))
        retained.release(self.aws.client)
        self._kit("destroy", "*", "--auto-approve", SKIP_SYNTH)
        retained.remove(self.aws.client, self.settings)

    def log(self, verb: str) -> Path:
        """Return the log of one of the kit's commands."""
        return self.logs / f"{kit_name()}-{verb}.log"

    @property
    def cluster_arn(self) -> str:
        """The deployed cluster's ARN."""
        return str(self._describe_cluster()["ClusterArn"])

    @property
    def log_group(self) -> str:
        """The CloudWatch log group that HyperPod writes the nodes' output to."""
        return f"/aws/sagemaker/Clusters/{self.settings.name}/{self.cluster_arn.rpartition('/')[2]}"

    def nodes(self) -> list[Node]:
        """Return the deployed cluster's nodes in the order of the instance groups."""
        client = self.aws.client("sagemaker")
        listed = client.list_cluster_nodes(ClusterName=self.settings.name)["ClusterNodeSummaries"]
        details = (
            client.describe_cluster_node(ClusterName=self.settings.name, NodeId=node["InstanceId"]) for node in listed
        )
        order = [group.name for group in self.settings.cluster.instance_groups]
        return sorted(
            (self._node(item["NodeDetails"]) for item in details), key=lambda node: order.index(node.instance_group)
        )

    def subnet_cidr(self) -> str:
        """Return the CIDR block of the nodes' subnet."""
        subnet = self._describe_cluster()["VpcConfig"]["Subnets"][0]
        return str(self.aws.client("ec2").describe_subnets(SubnetIds=[subnet])["Subnets"][0]["CidrBlock"])

    def replace_instance(self, instance_id: str) -> str:
        """Replace an instance as HyperPod's node recovery does; return the new id. Name and address stay."""
        hostname = next(node.hostname for node in self.nodes() if node.instance_id == instance_id)
        self.aws.client("sagemaker").batch_replace_cluster_nodes(ClusterName=self.settings.name, NodeIds=[instance_id])
        return next(node.instance_id for node in self.nodes() if node.hostname == hostname)

    def download_lifecycle(self, folder: Path) -> Path:
        """Download everything below the cluster's SourceS3Uri, as HyperPod does on a new node.

        Raises:
            StepFailed: there is something else than this version's scripts, and hosts run scripts as root.
        """
        expected = lifecycle_archive.pack(checkout.LIFECYCLE_SCRIPTS, into=self.project / "lifecycle")
        names = {self.parameters_name, *(file.name for file in expected.iterdir())}
        objects = list(self._lifecycle_objects())
        if {item["name"] for item in objects} != names:
            names_in_bucket = ", ".join(sorted(item["name"] for item in objects))
            raise StepFailed(f"the bucket has {names_in_bucket}, this version {', '.join(sorted(names))}")
        for item in objects:
            self.aws.client("s3").download_file(item["bucket"], item["key"], str(folder / item["name"]))
        for file in expected.iterdir():
            if (folder / file.name).read_bytes() != file.read_bytes():
                raise StepFailed(f"{file.name} in the bucket is not this version's")
        return folder

    @property
    def is_by_api(self) -> bool:
        """Return True if the service sets Slurm up before scripts run."""
        return "Slurm" in (self._describe_cluster().get("Orchestrator") or {})

    def mounts(self) -> list[MountedFileSystem]:
        """Return the file systems that the service mounts on every node."""
        storage = self._describe_cluster()["InstanceGroups"][0].get("InstanceStorageConfigs", ())
        mounts = []
        for config in storage:
            if lustre := config.get("FsxLustreConfig"):
                source = f"{lustre['DnsName']}@tcp:/{lustre['MountName']}"
                mounts.append(MountedFileSystem(kind="lustre", source=source, path=lustre["MountPath"]))
            if home := config.get("FsxOpenZfsConfig"):
                mounts.append(MountedFileSystem(kind="nfs", source=f"{home['DnsName']}:/fsx", path=home["MountPath"]))
        return mounts

    @property
    def parameters_name(self) -> str:
        """The name of the file with parameters beside the scripts."""
        return API_PARAMETERS_NAME if self.is_by_api else PROVISIONING_PARAMETERS_NAME

    def _lifecycle_objects(self) -> Iterator[dict[str, str]]:
        uri = self._describe_cluster()["InstanceGroups"][0]["LifeCycleConfig"]["SourceS3Uri"]
        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        for page in self.aws.client("s3").get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            for item in page.get("Contents", ()):
                yield {"bucket": bucket, "key": item["Key"], "name": item["Key"].removeprefix(prefix).lstrip("/")}

    def _node(self, details: dict[str, Any]) -> Node:
        group = next(
            group for group in self.settings.cluster.instance_groups if group.name == details["InstanceGroupName"]
        )
        kind = InstanceType.of(group.instance_type)
        return Node(
            hostname=details["PrivateDnsHostname"].partition(".")[0],
            private_ip=details["PrivatePrimaryIp"],
            instance_id=details["InstanceId"],
            instance_group=group.name,
            instance_type=group.instance_type,
            role=group.role,
            partition=group.partition,
            accelerators=kind.accelerator_count,
            vcpus=kind.vcpus,
            memory_mib=int(kind.memory_gib * 1024),
        )

    def _describe_cluster(self) -> dict[str, Any]:
        return dict(self.aws.client("sagemaker").describe_cluster(ClusterName=self.settings.name))

    def _kit(self, verb: str, *arguments: str) -> list[str]:
        """Run one command of the kit and return its lines; raise ``StepFailed`` if it fails."""
        lines: list[str] = []

        def keep(line: str) -> None:
            lines.append(line)
            if words := in_words(line):
                self.on_line(words)

        code = processes.run_logged(
            [find_program(), verb, *arguments, SKIP_PROVIDER_LOCK],
            log=self.log(verb),
            cwd=self.project,
            environment=self._environment(),
            on_line=keep,
        )
        if code:
            raise StepFailed(f"{kit_name()} {verb} ended with exit code {code}", log=self.log(verb))
        return lines

    def _environment(self) -> dict[str, str]:
        variables = {
            "PATH": search_path(),
            "CI": "1",
            "PODWRIGHT_CONFIG": str(self.config),
            processes.MARKER: str(self.project.parent),
        }
        return {**os.environ, **self.aws.environment(), **terraform_environment(self.project), **variables}


def in_words(line: str) -> str | None:
    """Return a finished resource, as ``created network_vpc (aws_vpc, 2s)``; None for Terraform's other lines."""
    done = _DONE.search(line)
    return f"{_WORDS[done['verb']]} {done['name']} ({done['type']}, {done['time']})" if done else None
