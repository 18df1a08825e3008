"""What nodes may do in the account: a role you have, or one made here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cdktf import ITerraformDependable
from constructs import Construct

from podwright_constructs import checks
from podwright_constructs.aws.data_caller_identity import DataCallerIdentity
from podwright_constructs.aws.data_iam_policy_document import (
    DataIamPolicyDocument,
    DataIamPolicyDocumentStatement,
    DataIamPolicyDocumentStatementCondition,
)
from podwright_constructs.aws.data_partition import DataPartition
from podwright_constructs.aws.data_region import DataRegion
from podwright_constructs.aws.iam_role import IamRole
from podwright_constructs.aws.iam_role_policy import IamRolePolicy
from podwright_constructs.bucket import Bucket
from podwright_constructs.network import Network
from podwright_constructs.problems import refuse

LOG_GROUPS = "/aws/sagemaker/Clusters"  # also the namespace of the metrics


class Role(Protocol):
    """What a cluster asks of its nodes' role."""

    @property
    def arn(self) -> str:
        """Its ARN."""

    @property
    def ready(self) -> Sequence[ITerraformDependable]:
        """What must exist before a node starts: the permissions."""


@dataclass(frozen=True, kw_only=True)
class ExistingRole:
    """A role you have, which sagemaker.amazonaws.com may assume.

    Raises:
        InvalidArgumentsError: the ARN is malformed.
    """

    arn: str
    ready: Sequence[ITerraformDependable] = ()

    def __post_init__(self) -> None:
        refuse(self, checks.existing_role(arn=self.arn))


class ExecutionRole(Construct):
    """The managed policy for nodes and what a VPC of yours needs, narrowed to one bucket and one network.

    It reads the bucket and writes nowhere: nodes run what lies there as root, so a node that could write it could take
    over all others.
    https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-prerequisites-iam.html

    Raises:
        InvalidArgumentsError: IAM would refuse the name.
    """

    def __init__(self, scope: Construct, id_: str, *, name: str, bucket: Bucket, network: Network) -> None:
        refuse(self, checks.execution_role(name=name))
        super().__init__(scope, id_)
        self._partition = DataPartition(self, "partition").partition
        self._region = DataRegion(self, "region").id
        self._account = DataCallerIdentity(self, "caller").account_id
        trust = DataIamPolicyDocument(self, "trust", statement=[self._assumed_by_sagemaker()])
        permissions = DataIamPolicyDocument(
            self,
            "permissions",
            statement=[*self._logs_and_metrics(), *self._bucket(bucket), self._session(), *self._interfaces(network)],
        )
        role = IamRole(self, "role", name=name, assume_role_policy=trust.json)
        policy = IamRolePolicy(self, "policy", name="hyperpod-node", role=role.name, policy=permissions.json)
        self.arn = role.arn
        self.ready: Sequence[ITerraformDependable] = [policy]

    def _arn(self, service: str, resource: str) -> str:
        return f"arn:{self._partition}:{service}:{self._region}:{self._account}:{resource}"

    def _assumed_by_sagemaker(self) -> DataIamPolicyDocumentStatement:
        return {
            "actions": ["sts:AssumeRole"],
            "principals": [{"type": "Service", "identifiers": ["sagemaker.amazonaws.com"]}],
            "condition": [self._equals("aws:SourceAccount", self._account)],
        }

    def _logs_and_metrics(self) -> list[DataIamPolicyDocumentStatement]:
        return [
            {
                "sid": "CreateLogGroups",
                "actions": ["logs:CreateLogGroup"],
                "resources": [self._arn("logs", f"log-group:{LOG_GROUPS}/*")],
            },
            {
                "sid": "WriteLogs",
                "actions": ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"],
                "resources": [self._arn("logs", f"log-group:{LOG_GROUPS}/*:log-stream:*")],
            },
            {
                "sid": "WriteMetrics",
                "actions": ["cloudwatch:PutMetricData"],
                "resources": ["*"],  # metrics have no ARN
                "condition": [self._equals("cloudwatch:namespace", LOG_GROUPS)],
            },
        ]

    def _bucket(self, bucket: Bucket) -> list[DataIamPolicyDocumentStatement]:
        arn = f"arn:{self._partition}:s3:::{bucket.name}"
        same_account = self._equals("aws:ResourceAccount", self._account)
        return [
            {"sid": "ListBucket", "actions": ["s3:ListBucket"], "resources": [arn], "condition": [same_account]},
            {"sid": "ReadBucket", "actions": ["s3:GetObject"], "resources": [f"{arn}/*"], "condition": [same_account]},
        ]

    def _session(self) -> DataIamPolicyDocumentStatement:
        return {
            "sid": "AcceptSessions",
            "actions": [
                "ssmmessages:CreateControlChannel",
                "ssmmessages:CreateDataChannel",
                "ssmmessages:OpenControlChannel",
                "ssmmessages:OpenDataChannel",
            ],
            "resources": ["*"],  # channels have no ARN
        }

    def _interfaces(self, network: Network) -> list[DataIamPolicyDocumentStatement]:
        """Nodes live in AWS's account and reach the VPC through interfaces that this role makes there."""
        interfaces = self._arn("ec2", "network-interface/*")
        # A shared subnet is its owner's, an instance is the service's.
        foreign = f"arn:{self._partition}:ec2:{self._region}:*"
        members = [
            f"{foreign}:security-group/{network.security_group_id}",
            *(f"{foreign}:subnet/{subnet_id}" for subnet_id in network.subnet_ids),
        ]
        return [
            {
                "sid": "CreateInterfaces",
                "actions": ["ec2:CreateNetworkInterface"],
                "resources": [interfaces, *members],
            },
            {
                "sid": "ManageInterfaces",
                "actions": [
                    "ec2:CreateNetworkInterfacePermission",
                    "ec2:CreateTags",
                    "ec2:DeleteNetworkInterface",
                    "ec2:DeleteNetworkInterfacePermission",
                ],
                "resources": [interfaces],
            },
            {
                "sid": "DetachInterfaces",
                "actions": ["ec2:DetachNetworkInterface"],
                "resources": [interfaces, f"{foreign}:instance/*"],
            },
            {
                "sid": "DescribeNetworkAndFileSystems",
                "actions": [
                    "ec2:DescribeDhcpOptions",
                    "ec2:DescribeNetworkInterfaces",
                    "ec2:DescribeSecurityGroups",
                    "ec2:DescribeSubnets",
                    "ec2:DescribeVpcs",
                    "fsx:DescribeFileSystems",  # of EFA-enabled Lustre
                ],
                "resources": ["*"],  # these actions know no resource
            },
        ]

    @staticmethod
    def _equals(variable: str, value: str) -> DataIamPolicyDocumentStatementCondition:
        return {"test": "StringEquals", "variable": variable, "values": [value]}
