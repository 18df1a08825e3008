"""The nodes' IAM role: existing or new."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import jsii
from constructs import Construct, IValidation

from podwright_constructs import checks, facts
from podwright_constructs.aws.data_caller_identity import DataCallerIdentity
from podwright_constructs.aws.data_iam_policy_document import (
    DataIamPolicyDocument,
    DataIamPolicyDocumentStatement,
    DataIamPolicyDocumentStatementCondition,
)
from podwright_constructs.aws.iam_role import IamRole
from podwright_constructs.aws.iam_role_policy import IamRolePolicy
from podwright_constructs.aws.iam_role_policy_attachment import IamRolePolicyAttachment
from podwright_constructs.bucket import Bucket
from podwright_constructs.construct import CheckedConstruct
from podwright_constructs.grants import KEY_ACTIONS_OF_OBJECTS, ReceivesGrants, with_policy_variables
from podwright_constructs.kit import Fn, ITerraformDependable
from podwright_constructs.network import Network
from podwright_constructs.problems import is_token, refuse
from podwright_constructs.s3_access import S3Access


class Role(Protocol):
    """The attributes of a role that a cluster needs."""

    @property
    def arn(self) -> str:
        """Its ARN."""

    @property
    def ready(self) -> Sequence[ITerraformDependable]:
        """The resources that a node depends on: the permissions."""


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


class ExecutionRole(CheckedConstruct, ReceivesGrants):
    """The managed policy for nodes and permissions for your VPC, narrowed to prefixes of one bucket and one network.

    It writes none of the prefixes it reads: nodes run what lies there as root, so a node that could write it could
    take over all others.
    https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-prerequisites-iam.html

    Args:
        scope: as of every construct.
        id_: as of every construct.
        name: unique in the account, whatever the region.
        bucket: where scripts and training program are.
        network: where the nodes are.
        cluster_name: whose log groups its nodes write. Default: those of every cluster in the account and region.
        read_prefixes: of the bucket, without a slash at the end.
        write_prefixes: for runs and logs.
        secret_arns: what its nodes read, such as the accounting database's password.
        secret_key_arn: KMS key of these secrets.
        s3_access: buckets besides, which nodes mount.
        volume_key_arns: KMS keys of the nodes' volumes.
        override_subnet_ids: of groups that are not in the network's own subnets.
        override_security_group_ids: of groups that are not in the network's own security group.
        prometheus_workspace_arn: where nodes write their metrics.
        permissions_boundary_arn: policy that limits whatever this role is given.
        path: IAM path of the role, such as ``/teams/llm/``. Default: ``/``.
        policy_arns: managed policies besides.

    Attributes:
        arn: its ARN.
        name: its name.
        role: the resource, ``aws_iam_role``.
        ready: what a node depends on, its permissions.

    Raises:
        InvalidArgumentsError: IAM would refuse the role, or nodes could write their scripts; all problems are in it.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        name: str,
        bucket: Bucket,
        network: Network,
        cluster_name: str | None = None,
        read_prefixes: Sequence[str] = ("lifecycle", "training"),
        write_prefixes: Sequence[str] = ("runs", "logs"),
        secret_arns: Sequence[str] = (),
        secret_key_arn: str | None = None,
        s3_access: Sequence[S3Access] = (),
        volume_key_arns: Sequence[str] = (),
        override_subnet_ids: Sequence[str] = (),
        override_security_group_ids: Sequence[str] = (),
        prometheus_workspace_arn: str | None = None,
        permissions_boundary_arn: str | None = None,
        path: str | None = None,
        policy_arns: Sequence[str] = (),
    ) -> None:
        problems = checks.execution_role(
            name=name,
            bucket_name=bucket.name,
            read_prefixes=read_prefixes,
            write_prefixes=write_prefixes,
            s3_access=s3_access,
            permissions_boundary_arn=permissions_boundary_arn,
            path=path,
            policy_arns=policy_arns,
            volume_key_arns=volume_key_arns,
            override_subnet_ids=override_subnet_ids,
            override_security_group_ids=override_security_group_ids,
        )
        refuse(self, problems)
        super().__init__(scope, id_)
        self._find_place()
        self._own_bucket, self._own_prefixes = bucket.name, read_prefixes
        self._account = DataCallerIdentity(self, "caller").account_id
        trust = DataIamPolicyDocument(self, "trust", statement=[self._assumed_by_sagemaker()])
        statements = [
            *self._logs_and_metrics(f"{facts.LOG_GROUPS}/{cluster_name}" if cluster_name else facts.LOG_GROUPS),
            *self._bucket(bucket, read_prefixes, write_prefixes),
            self._session(),
            *self._interfaces(
                subnet_ids=[*network.subnet_ids, *override_subnet_ids],
                security_group_ids=[network.security_group_id, *override_security_group_ids],
            ),
            *self._mounts(s3_access),
            *self._keys(bucket, secret_key_arn, volume_key_arns, sorted({a.key_arn for a in s3_access if a.key_arn})),
            *self._reads(secret_arns),
            *self._remote_write(prometheus_workspace_arn),
        ]
        self._permissions = DataIamPolicyDocument(self, "permissions", statement=with_policy_variables(statements))
        self.role = IamRole(
            self,
            "role",
            name=name,
            assume_role_policy=trust.json,
            path=path,
            permissions_boundary=permissions_boundary_arn,
        )
        self.name, self.arn = self.role.name, self.role.arn
        policy = IamRolePolicy(self, "policy", name="hyperpod-node", role=self.name, policy=self._permissions.json)
        attached = [self._attach(number, policy_arn) for number, policy_arn in enumerate(policy_arns)]
        self.ready: Sequence[ITerraformDependable] = [policy, *attached]

    @staticmethod
    def from_arn(arn: str) -> ExistingRole:
        """Return a role you have.

        Raises:
            InvalidArgumentsError: the ARN is malformed.
        """
        return ExistingRole(arn=arn)

    def _attach(self, number: int, policy_arn: str) -> IamRolePolicyAttachment:
        return IamRolePolicyAttachment(self, f"attached_{number}", role=self.name, policy_arn=policy_arn)

    def _arn(self, service: str, resource: str) -> str:
        return f"arn:{self._partition}:{service}:{self._region}:{self._account}:{resource}"

    def _assumed_by_sagemaker(self) -> DataIamPolicyDocumentStatement:
        """Trust the service without a condition on aws:SourceAccount: no page says that HyperPod sends it.

        https://docs.aws.amazon.com/sagemaker/latest/dg/security-confused-deputy-prevention.html lists who does.
        """
        return {
            "actions": ["sts:AssumeRole"],
            "principals": [{"type": "Service", "identifiers": ["sagemaker.amazonaws.com"]}],
        }

    def _logs_and_metrics(self, log_groups: str) -> list[DataIamPolicyDocumentStatement]:
        return [
            {
                "sid": "CreateLogGroups",
                "actions": ["logs:CreateLogGroup"],
                "resources": [self._arn("logs", f"log-group:{log_groups}/*")],
            },
            {
                "sid": "WriteLogs",
                "actions": ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"],
                "resources": [self._arn("logs", f"log-group:{log_groups}/*:log-stream:*")],
            },
            {
                "sid": "WriteMetrics",
                "actions": ["cloudwatch:PutMetricData"],
                "resources": ["*"],  # metrics have no ARN
                "condition": [self._equals("cloudwatch:namespace", facts.LOG_GROUPS)],
            },
        ]

    def _bucket(
        self, bucket: Bucket, read: Sequence[str], write: Sequence[str]
    ) -> list[DataIamPolicyDocumentStatement]:
        arn = f"arn:{self._partition}:s3:::{bucket.name}"
        same_account = self._equals("aws:ResourceAccount", bucket.account_id or self._account)
        below: DataIamPolicyDocumentStatementCondition = {
            "test": "StringLike",
            "variable": "s3:prefix",
            "values": [f"{prefix}/*" for prefix in (*read, *write)],
        }
        return [
            {  # whatever other policies of this role allow
                "sid": "NeverWriteWhatNodesRun",
                "effect": "Deny",
                "actions": ["s3:DeleteObject*", "s3:PutObject*", "s3:RestoreObject"],
                "resources": [f"{arn}/{prefix}/*" for prefix in read],
            },
            {
                "sid": "ListPrefixes",
                "actions": ["s3:ListBucket"],
                "resources": [arn],
                "condition": [same_account, below],
            },
            {
                "sid": "ReadPrefixes",
                "actions": ["s3:GetObject"],
                "resources": [f"{arn}/{prefix}/*" for prefix in (*read, *write)],
                "condition": [same_account],
            },
            {
                "sid": "WritePrefixes",
                "actions": ["s3:AbortMultipartUpload", "s3:PutObject"],
                "resources": [f"{arn}/{prefix}/*" for prefix in write],
                "condition": [same_account],
            },
        ]

    def _mounts(self, accesses: Sequence[S3Access]) -> Iterator[DataIamPolicyDocumentStatement]:
        """Return the permissions that Mountpoint needs on each bucket.

        https://github.com/awslabs/mountpoint-s3/blob/main/doc/CONFIGURATION.md#iam-permissions
        """
        for number, access in enumerate(accesses):
            yield from self._access(access, f"ListMount{number}", f"UseMount{number}")

    def _keys(
        self,
        bucket: Bucket,
        secret_key_arn: str | None,
        volume_key_arns: Sequence[str],
        mount_key_arns: Sequence[str],
    ) -> Iterator[DataIamPolicyDocumentStatement]:
        """Yield statements that allow each key through one service only: objects, secrets, and volumes through a grant.

        https://docs.aws.amazon.com/sagemaker/latest/dg/smcluster-cmk.html
        """
        if bucket.key_arn:
            yield self._use_key("UseKeyOfBucket", KEY_ACTIONS_OF_OBJECTS, [bucket.key_arn], "s3")
        if mount_key_arns:
            yield self._use_key("UseKeysOfMounts", KEY_ACTIONS_OF_OBJECTS, mount_key_arns, "s3")
        if secret_key_arn:
            yield self._use_key("UseKeyOfSecrets", ["kms:Decrypt"], [secret_key_arn], "secretsmanager")
        if volume_key_arns:
            actions = ["kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKeyWithoutPlaintext"]
            yield self._use_key("UseKeysOfVolumes", actions, volume_key_arns, "ec2", "sagemaker")
            grant = self._use_key("GrantKeysOfVolumes", ["kms:CreateGrant"], volume_key_arns, "ec2", "sagemaker")
            for_services: DataIamPolicyDocumentStatementCondition = {
                "test": "Bool",
                "variable": "kms:GrantIsForAWSResource",
                "values": ["true"],
            }
            yield {**grant, "condition": [*grant["condition"], for_services]}

    @staticmethod
    def _reads(secret_arns: Sequence[str]) -> list[DataIamPolicyDocumentStatement]:
        if not secret_arns:
            return []
        actions = ["secretsmanager:DescribeSecret", "secretsmanager:GetSecretValue"]
        return [{"sid": "ReadSecrets", "actions": actions, "resources": list(secret_arns)}]

    @staticmethod
    def _remote_write(workspace_arn: str | None) -> list[DataIamPolicyDocumentStatement]:
        if workspace_arn is None:
            return []
        return [{"sid": "WriteToPrometheus", "actions": ["aps:RemoteWrite"], "resources": [workspace_arn]}]

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

    def _interfaces(
        self, *, subnet_ids: Sequence[str], security_group_ids: Sequence[str]
    ) -> list[DataIamPolicyDocumentStatement]:
        """Nodes live in AWS's account and reach the VPC through interfaces that this role makes there.

        Conditions name the subnets where EC2 knows them: not of a tag that comes with a new interface, which has the
        action that makes it instead. Whose instances an interface may be attached to is not narrowed: no page names the
        accounts of HyperPod's nodes.
        https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html
        """
        interfaces = self._arn("ec2", "network-interface/*")
        # A shared subnet is its owner's, an instance is the service's.
        foreign = f"arn:{self._partition}:ec2:{self._region}:*"
        subnets = [f"{foreign}:subnet/{subnet_id}" for subnet_id in dict.fromkeys(subnet_ids)]
        groups = [f"{foreign}:security-group/{group_id}" for group_id in dict.fromkeys(security_group_ids)]
        in_subnets: DataIamPolicyDocumentStatementCondition = {
            "test": "ArnLike",
            "variable": "ec2:Subnet",
            "values": subnets,
        }
        return [
            {
                "sid": "CreateInterfaces",
                "actions": ["ec2:CreateNetworkInterface"],
                "resources": [interfaces, *groups, *subnets],
            },
            {
                "sid": "TagNewInterfaces",
                "actions": ["ec2:CreateTags"],
                "resources": [interfaces],
                "condition": [self._equals("ec2:CreateAction", "CreateNetworkInterface")],
            },
            {
                "sid": "ManageInterfaces",
                "actions": [
                    "ec2:CreateNetworkInterfacePermission",
                    "ec2:CreateTags",
                    "ec2:DeleteNetworkInterface",
                    "ec2:DeleteNetworkInterfacePermission",
                    "ec2:DetachNetworkInterface",
                ],
                "resources": [interfaces],
                "condition": [in_subnets],
            },
            {
                "sid": "DetachFromInstances",
                "actions": ["ec2:DetachNetworkInterface"],
                "resources": [f"{foreign}:instance/*"],
            },
            {
                "sid": "DescribeNetworkAndFileSystems",
                "actions": [
                    "ec2:DescribeDhcpOptions",
                    "ec2:DescribeNetworkInterfaces",
                    "ec2:DescribeSecurityGroups",
                    "ec2:DescribeSubnets",
                    "ec2:DescribeVpcs",
                    "fsx:DescribeFileSystems",  # Only EFA-enabled Lustre needs it.
                ],
                "resources": ["*"],  # these actions know no resource
            },
        ]

    @staticmethod
    def _equals(variable: str, value: str) -> DataIamPolicyDocumentStatementCondition:
        return {"test": "StringEquals", "variable": variable, "values": [value]}


class GrantedRole(CheckedConstruct, ReceivesGrants):
    """A role made elsewhere, with a policy of this stack in it that says what the stack's grants allow.

    The role's other policies stay as they are; the policy goes when the stack is destroyed. ``ExecutionRole.from_arn``
    is for a role that needs nothing from this stack.

    Args:
        arn: of the role, which is in the stack's account.
        policy_name: unique in the role. Default: the construct's path, its hash and the region; of two apps that have
            the same path in one region, one needs a name.

    Attributes:
        arn: its ARN.
        name: its name.
        policy: the resource, ``aws_iam_role_policy``.
        ready: what a node depends on, the policy.

    Raises:
        InvalidArgumentsError: the ARN or the name is malformed, or the role is a service's.
    """

    def __init__(self, scope: Construct, id_: str, *, arn: str, policy_name: str | None = None) -> None:
        refuse(self, checks.granted_role(arn=arn, policy_name=policy_name))
        super().__init__(scope, id_)
        self._find_place()
        self.arn = arn
        self.name = str(Fn.element(Fn.reverse(Fn.split("/", arn)), 0)) if is_token(arn) else arn.rpartition("/")[2]
        self._permissions = DataIamPolicyDocument(self, "permissions")
        # One role may have policies of several regions, and paths such as a-b/c and a/b-c.
        path = re.sub(r"[^A-Za-z0-9_+=,.@-]", "-", self.node.path)[:90]
        name = policy_name or f"{path}-{self.node.addr[-8:]}-{self._region}"
        self.policy = IamRolePolicy(self, "policy", name=name, role=self.name, policy=self._permissions.json)
        self.ready: Sequence[ITerraformDependable] = [self.policy]
        self.node.add_validation(_NotEmpty(self._permissions))


@jsii.implements(IValidation)
class _NotEmpty:
    """IAM refuses a policy without statements, after everything else was made."""

    def __init__(self, document: DataIamPolicyDocument) -> None:
        self._document = document

    def validate(self) -> list[str]:
        """Return what is wrong."""
        if self._document.has_any("statement"):
            return []
        return ["nothing is granted to this role: call a grant_… with it, or use ExecutionRole.from_arn"]
