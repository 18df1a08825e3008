"""Clusters in the AWS stand-in, made through SageMaker's and IAM's own APIs, not by podwright."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from podwright_rehearsal.aws import AwsStandIn

BUCKET = "sagemaker-scripts"
WAIT_S = 300
TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "sagemaker.amazonaws.com"}}],
}


@dataclass(frozen=True)
class ClusterMaker:
    """Makes clusters in one network of the stand-in's account."""

    aws: AwsStandIn
    made: dict[str, str] = field(default_factory=dict)  # name to ARN

    @cached_property
    def subnet_id(self) -> str:
        """A subnet with 4,091 free addresses."""
        ec2 = self.aws.client("ec2")
        vpc = ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
        return str(
            ec2.create_subnet(VpcId=vpc, CidrBlock="10.1.0.0/20", AvailabilityZone=f"{self.aws.region}a")["Subnet"][
                "SubnetId"
            ]
        )

    @cached_property
    def security_group_id(self) -> str:
        """A security group that lets all traffic pass between its members."""
        ec2 = self.aws.client("ec2")
        vpc = ec2.describe_subnets(SubnetIds=[self.subnet_id])["Subnets"][0]["VpcId"]
        group_id = ec2.create_security_group(GroupName="nodes", Description="-", VpcId=vpc)["GroupId"]
        everything = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group_id}]}]
        ec2.authorize_security_group_ingress(GroupId=group_id, IpPermissions=everything)
        ec2.authorize_security_group_egress(GroupId=group_id, IpPermissions=everything)
        return str(group_id)

    @cached_property
    def role_arn(self) -> str:
        """The nodes' role."""
        iam = self.aws.client("iam")
        return str(iam.create_role(RoleName="node", AssumeRolePolicyDocument=json.dumps(TRUST))["Role"]["Arn"])

    def make(
        self,
        name: str,
        *,
        workers: int = 2,
        api_mode: bool = False,
        storage: Sequence[Mapping[str, Any]] = (),
        workers_have: Mapping[str, Any] | None = None,
        **properties: Any,
    ) -> str:
        """Create a cluster with one controller and a group of workers in the partition gpu; return its ARN.

        Args:
            name: of the cluster.
            workers: nodes of the group.
            api_mode: let HyperPod set Slurm up; else lifecycle scripts, whose parameters are in S3.
            storage: InstanceStorageConfigs of all groups.
            workers_have: further properties of the group of workers.
            properties: further properties of AWS::SageMaker::Cluster.
        """
        groups = [self._group("controller", "ml.m5.xlarge", 1), self._group("workers", "ml.g5.12xlarge", workers)]
        groups[1].update(workers_have or {})
        if api_mode:
            groups[0]["SlurmConfig"] = {"NodeType": "Controller"}
            groups[1]["SlurmConfig"] = {"NodeType": "Compute", "PartitionNames": ["gpu"]}
            properties = {"Orchestrator": {"Slurm": {"SlurmConfigStrategy": "Managed"}}, **properties}
        else:
            scripts = {"SourceS3Uri": self._scripts(name), "OnCreate": "on_create.sh"}
            groups = [{**group, "LifeCycleConfig": scripts} for group in groups]
        if storage:
            groups = [{**group, "InstanceStorageConfigs": list(storage)} for group in groups]
        model = {
            "ClusterName": name,
            "VpcConfig": {"SecurityGroupIds": [self.security_group_id], "Subnets": [self.subnet_id]},
            "NodeRecovery": "Automatic",
            "InstanceGroups": groups,
            **properties,
        }
        return self._create(model)

    def _create(self, model: Mapping[str, Any]) -> str:
        control = self.aws.client("cloudcontrol")
        answer = control.create_resource(TypeName="AWS::SageMaker::Cluster", DesiredState=json.dumps(model))
        deadline = time.monotonic() + WAIT_S
        event = answer["ProgressEvent"]
        while event["OperationStatus"] == "IN_PROGRESS" and time.monotonic() < deadline:
            time.sleep(0.05)
            event = control.get_resource_request_status(RequestToken=event["RequestToken"])["ProgressEvent"]
        assert event["OperationStatus"] == "SUCCESS", event
        self.made[model["ClusterName"]] = event["Identifier"]
        return str(event["Identifier"])

    def _group(self, name: str, instance_type: str, count: int) -> dict[str, Any]:
        return {
            "InstanceGroupName": name,
            "InstanceType": instance_type,
            "InstanceCount": count,
            "ExecutionRole": self.role_arn,
        }

    def _scripts(self, prefix: str) -> str:
        """Write a prefix of lifecycle scripts and return its address."""
        s3 = self.aws.client("s3")
        if BUCKET not in [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]:
            s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": self.aws.region})
        parameters = {
            "version": "1.0.0",
            "workload_manager": "slurm",
            "controller_group": "controller",
            "worker_groups": [{"instance_group_name": "workers", "partition_name": "gpu"}],
        }
        s3.put_object(Bucket=BUCKET, Key=f"{prefix}/provisioning_parameters.json", Body=json.dumps(parameters).encode())
        s3.put_object(Bucket=BUCKET, Key=f"{prefix}/on_create.sh", Body=b"#!/bin/sh\n")
        return f"s3://{BUCKET}/{prefix}"
