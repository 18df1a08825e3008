"""What you keep: network, bucket, file system and role, each created or yours."""

from __future__ import annotations

from cdktf import TerraformOutput, TerraformStack
from constructs import Construct

from podwright import names
from podwright.settings import CreatedBucket, CreatedLustre, CreatedNetwork, CreatedRole, Settings
from podwright_constructs.bucket import Bucket, ExistingBucket, TrainingBucket
from podwright_constructs.lustre import ExistingLustre, Lustre, LustreFileSystem
from podwright_constructs.network import ExistingNetwork, Network, TrainingNetwork
from podwright_constructs.role import ExecutionRole, ExistingRole, Role
from stacks.provider import aws_provider


class FoundationStack(TerraformStack):
    """Everything that outlives a cluster."""

    def __init__(self, scope: Construct, *, settings: Settings) -> None:
        super().__init__(scope, names.foundation_stack(settings.name))
        aws_provider(self, settings)
        self.network = _network(self, settings)
        self.bucket = _bucket(self, settings)
        self.lustre = _lustre(self, settings, self.network)
        self.role = _role(self, settings, self.bucket, self.network)
        TerraformOutput(self, "VpcId", value=self.network.vpc_id)
        TerraformOutput(self, "BucketName", value=self.bucket.name)
        TerraformOutput(self, "LustreDnsName", value=self.lustre.dns_name)
        TerraformOutput(self, "LustreMountName", value=self.lustre.mount_name)
        TerraformOutput(self, "RoleArn", value=self.role.arn)


def _network(stack: FoundationStack, settings: Settings) -> Network:
    wanted = settings.network
    if isinstance(wanted, CreatedNetwork):
        return TrainingNetwork(
            stack,
            "network",
            name=settings.name,
            availability_zone_id=wanted.availability_zone_id,
            cidr=wanted.cidr,
            public_subnet_cidr=wanted.public_subnet_cidr,
            private_subnet_cidr=wanted.private_subnet_cidr,
        )
    return ExistingNetwork(
        vpc_id=wanted.vpc_id, subnet_ids=wanted.subnet_ids, security_group_id=wanted.security_group_id
    )


def _bucket(stack: FoundationStack, settings: Settings) -> Bucket:
    wanted = settings.bucket
    if isinstance(wanted, CreatedBucket):
        prefix = names.bucket_prefix(settings.name)
        return TrainingBucket(stack, "bucket", bucket_prefix=prefix, on_destroy=wanted.on_destroy)
    return ExistingBucket(name=wanted.name)


def _lustre(stack: FoundationStack, settings: Settings, network: Network) -> Lustre:
    wanted = settings.lustre
    if isinstance(wanted, CreatedLustre):
        return LustreFileSystem(
            stack,
            "lustre",
            network=network,
            capacity_gib=wanted.capacity_gib,
            throughput_mbps_per_tib=wanted.throughput_mbps_per_tib,
            mount_path=wanted.mount_path,
        )
    return ExistingLustre(dns_name=wanted.dns_name, mount_name=wanted.mount_name, mount_path=wanted.mount_path)


def _role(stack: FoundationStack, settings: Settings, bucket: Bucket, network: Network) -> Role:
    wanted = settings.role
    if isinstance(wanted, CreatedRole):
        return ExecutionRole(stack, "role", name=names.role_name(settings.name), bucket=bucket, network=network)
    return ExistingRole(arn=wanted.arn)
