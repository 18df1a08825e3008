"""The foundation stack: key, bucket, network, file systems, role and operations, each new or existing.

It has a role for each kind of instance group (controller, login, compute), whether or not the file has such a group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from constructs import Construct

from podwright.settings import names
from podwright.settings.access import CreatedKey, CreatedRole, NoKey
from podwright.settings.arguments import arguments
from podwright.settings.network import CreatedNetwork, CreatedSubnet
from podwright.settings.operations import CreatedAccounting, CreatedPrometheus, ExistingAccounting
from podwright.settings.operations import ExistingPrometheus as ExistingPrometheusSettings
from podwright.settings.root import Settings
from podwright.settings.storage import CreatedBucket, CreatedLustre, CreatedOpenZfs, NoOpenZfs
from podwright_constructs.accounting import AccountingDatabase, AccountingMariaDb, ExistingAccountingDatabase
from podwright_constructs.aws.data_iam_policy_document import DataIamPolicyDocumentStatementCondition
from podwright_constructs.bucket import Bucket, ExistingBucket, TrainingBucket
from podwright_constructs.flow_logs import BucketFlowLogs, CloudWatchFlowLogs
from podwright_constructs.key import EncryptionKey, ExistingKey, Key
from podwright_constructs.kit import TerraformOutput, TerraformStack
from podwright_constructs.lustre import ExistingLustre, Lustre, LustreFileSystem, file_system_id
from podwright_constructs.network import ExistingNetwork, Network, PrivateNetwork, TrainingNetwork
from podwright_constructs.openzfs import ExistingOpenZfs, OpenZfs, OpenZfsFileSystem
from podwright_constructs.prometheus import ExistingPrometheus, Prometheus, PrometheusWorkspace
from podwright_constructs.role import ExecutionRole, ExistingRole, Role
from podwright_constructs.s3_access import S3Access
from podwright_constructs.subnet_configuration import SubnetConfiguration
from podwright_stacks.backend import remember
from podwright_stacks.operations import operations
from podwright_stacks.owner import StateOwnerRecord
from podwright_stacks.provider import aws_provider
from podwright_stacks.tags import tag_construct_paths


class FoundationStack(TerraformStack):
    """The resources that outlive a cluster."""

    def __init__(self, scope: Construct, *, settings: Settings) -> None:
        super().__init__(scope, names.foundation_stack(settings.name))
        aws_provider(self, settings)
        remember(self, settings)
        StateOwnerRecord(self, settings=settings)
        self.key = _key(self, settings)
        self.bucket = _bucket(self, settings, self.key)
        self.network = _network(self, settings)
        _flow_logs(self, settings, self.network, self.bucket, self.key)
        self.lustre = _lustre(self, settings, self.network, self.key)
        self.openzfs = _openzfs(self, settings, self.network, self.key)
        self.accounting = _accounting(self, settings, self.network, self.key_arn)
        self.prometheus = _prometheus(self, settings, self.key_arn)
        self.roles = _roles(self, settings)
        self.notices = operations(self, settings, key_arn=self.key_arn, roles=self.roles)
        TerraformOutput(self, "VpcId", value=self.network.vpc_id)
        TerraformOutput(self, "BucketName", value=self.bucket.name)
        TerraformOutput(self, "LustreDnsName", value=self.lustre.dns_name)
        TerraformOutput(self, "LustreMountName", value=self.lustre.mount_name)
        TerraformOutput(self, "LustreFileSystemId", value=file_system_id(self.lustre.dns_name))
        if self.openzfs:
            TerraformOutput(self, "OpenZfsDnsName", value=self.openzfs.dns_name)
            TerraformOutput(self, "OpenZfsFileSystemId", value=file_system_id(self.openzfs.dns_name))
        for output, kind in (("RoleArn", "compute"), ("ControllerRoleArn", "controller"), ("LoginRoleArn", "login")):
            TerraformOutput(self, output, value=self.roles[kind].arn)
        if self.accounting:
            TerraformOutput(self, "AccountingEndpoint", value=self.accounting.endpoint)
            TerraformOutput(self, "AccountingSecretArn", value=self.accounting.secret_arn)
        if self.prometheus:
            TerraformOutput(self, "PrometheusRemoteWriteUrl", value=self.prometheus.remote_write_url)
        tag_construct_paths(self)

    @property
    def key_arn(self) -> str | None:
        """The ARN of the key that encrypts all data of the cluster; None for each service's own key."""
        return self.key.arn if self.key else None


def _key(stack: FoundationStack, settings: Settings) -> Key | None:
    key_settings = settings.key
    if isinstance(key_settings, CreatedKey):
        return EncryptionKey(stack, "key", alias=names.key_alias(settings.name))
    return None if isinstance(key_settings, NoKey) else ExistingKey(arn=key_settings.arn)


def _bucket(stack: FoundationStack, settings: Settings, key: Key | None) -> Bucket:
    bucket_settings = settings.bucket
    if isinstance(bucket_settings, CreatedBucket):
        return TrainingBucket(
            stack,
            "bucket",
            bucket_prefix=names.bucket_prefix(settings.name),
            key=key,
            receives_logs=isinstance(settings.network, CreatedNetwork) and settings.network.flow_logs == "bucket",
            **arguments(bucket_settings),
        )
    return ExistingBucket(**arguments(bucket_settings))


def _network(stack: FoundationStack, settings: Settings) -> Network:
    network_settings, nfs = settings.network, not isinstance(settings.openzfs, NoOpenZfs)
    if isinstance(network_settings, CreatedNetwork):
        extra = [SubnetConfiguration(**arguments(subnet)) for subnet in network_settings.extra_private_subnets]
        return TrainingNetwork(
            stack,
            "network",
            name=settings.name,
            nfs=nfs,
            extra_private_subnets=extra,
            **arguments(network_settings, "extra_private_subnets", "flow_logs"),
        )
    if isinstance(network_settings, CreatedSubnet):
        return PrivateNetwork(stack, "network", name=settings.name, nfs=nfs, **arguments(network_settings))
    return ExistingNetwork(**arguments(network_settings))


def _flow_logs(stack: FoundationStack, settings: Settings, network: Network, bucket: Bucket, key: Key | None) -> None:
    network_settings = settings.network
    if not isinstance(network_settings, CreatedNetwork):
        return
    if network_settings.flow_logs == "bucket":
        BucketFlowLogs(stack, "flow_logs", name=settings.name, vpc_id=network.vpc_id, bucket=bucket)
    elif network_settings.flow_logs == "cloudwatch":
        role_name = names.flow_logs_role_name(settings.name, settings.region)
        CloudWatchFlowLogs(
            stack,
            "flow_logs",
            name=settings.name,
            vpc_id=network.vpc_id,
            role_name=role_name,
            key=key,
            permissions_boundary_arn=settings.role.permissions_boundary_arn,
            role_path=settings.role.path,
        )


def _lustre(stack: FoundationStack, settings: Settings, network: Network, key: Key | None) -> Lustre:
    lustre_settings = settings.lustre
    if isinstance(lustre_settings, CreatedLustre):
        key = None if lustre_settings.deployment_type == "SCRATCH_2" else key
        return LustreFileSystem(stack, "lustre", lustre_settings, network=network, key=key)
    return ExistingLustre(**arguments(lustre_settings))


def _openzfs(stack: FoundationStack, settings: Settings, network: Network, key: Key | None) -> OpenZfs | None:
    openzfs_settings = settings.openzfs
    if isinstance(openzfs_settings, CreatedOpenZfs):
        return OpenZfsFileSystem(stack, "openzfs", openzfs_settings, network=network, key=key)
    return None if isinstance(openzfs_settings, NoOpenZfs) else ExistingOpenZfs(**arguments(openzfs_settings))


def _accounting(
    stack: FoundationStack, settings: Settings, network: Network, key_arn: str | None
) -> AccountingDatabase | None:
    accounting_settings = settings.accounting
    if isinstance(accounting_settings, CreatedAccounting):
        return AccountingMariaDb(
            stack,
            "accounting",
            name=names.database_name(settings.name),
            network=network,
            region=settings.region,
            key_arn=key_arn,
            require_tls=settings.cluster.slurm.source == "lifecycle",
            **arguments(accounting_settings, "database_name"),
        )
    if isinstance(accounting_settings, ExistingAccounting):
        return ExistingAccountingDatabase(**arguments(accounting_settings, "database_name"))
    return None


def _prometheus(stack: FoundationStack, settings: Settings, key_arn: str | None) -> Prometheus | None:
    prometheus_settings = settings.prometheus
    if isinstance(prometheus_settings, CreatedPrometheus):
        return PrometheusWorkspace(stack, "prometheus", name=names.operations_name(settings.name), key_arn=key_arn)
    if isinstance(prometheus_settings, ExistingPrometheusSettings):
        return ExistingPrometheus(**arguments(prometheus_settings))
    return None


def _roles(stack: FoundationStack, settings: Settings) -> dict[str, Role]:
    """Return a role for each kind of instance group, whether or not the file has one.

    A role that went with its last group would go before the group's nodes, which the other stack has.
    """
    role_settings = settings.role
    if not isinstance(role_settings, CreatedRole):
        arns = role_settings.arns()
        keys = {"controller": "controller_arn", "login": "login_arn", "compute": "arn"}
        return {kind: ExistingRole(arn=arns.get(key, role_settings.arn)) for kind, key in keys.items()}
    ldap = settings.nodes.ldap
    # Users of other nodes may use the role there: controllers hand the directory's password on to root.
    secrets = [stack.accounting.secret_arn] if stack.accounting else []
    secrets += [ldap.bind_secret_arn] if ldap and ldap.bind_secret_arn else []
    created: tuple[tuple[str, str, Callable[[str, str], str], list[str]], ...] = (
        ("controller", "controller_role", names.controller_role_name, secrets),
        ("login", "login_role", names.login_role_name, []),
        ("compute", "role", names.role_name, []),
    )
    return {
        kind: _role(
            stack, settings, role_settings, kind, id_=id_, name=name(settings.name, settings.region), secret_arns=arns
        )
        for kind, id_, name, arns in created
    }


def _role(
    stack: FoundationStack,
    settings: Settings,
    role_settings: CreatedRole,
    kind: str,
    *,
    id_: str,
    name: str,
    secret_arns: Sequence[str],
) -> ExecutionRole:
    groups = [group for group in settings.cluster.instance_groups if group.role == kind]
    role = ExecutionRole(
        stack,
        id_,
        name=name,
        bucket=stack.bucket,
        network=stack.network,
        cluster_name=settings.name,
        read_prefixes=names.readable_prefixes(settings.name),
        write_prefixes=names.writable_prefixes(settings.name),
        secret_arns=secret_arns,
        secret_key_arn=stack.key_arn if secret_arns else None,
        s3_access=[S3Access(**arguments(mount, "path")) for mount in settings.nodes.s3_mounts],
        volume_key_arns=sorted({group.key_arn for group in groups if group.key_arn}),
        override_subnet_ids=[subnet_id for group in groups for subnet_id in group.subnet_ids],
        override_security_group_ids=[
            *settings.cluster.extra_security_group_ids,
            *(group_id for group in groups for group_id in group.security_group_ids),
        ],
        prometheus_workspace_arn=stack.prometheus.arn if stack.prometheus else None,
        permissions_boundary_arn=role_settings.permissions_boundary_arn,
        path=role_settings.path,
        policy_arns=role_settings.policy_arns,
    )
    for statement in role_settings.statements:
        condition: list[DataIamPolicyDocumentStatementCondition] = [
            {"test": item.test, "variable": item.variable, "values": item.values} for item in statement.conditions
        ]
        role.add_statement({"actions": statement.actions, "resources": statement.resources, "condition": condition})
    return role
