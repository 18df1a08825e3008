"""Rules about one resource each: what its construct would say."""

from __future__ import annotations

from collections.abc import Iterator

from podwright.check.findings import Finding, findings_of
from podwright.settings.access import CreatedRole, ExistingKey, ExistingRole
from podwright.settings.arguments import arguments
from podwright.settings.network import CreatedNetwork, CreatedSubnet, ExistingNetwork
from podwright.settings.root import Settings
from podwright.settings.storage import (
    CreatedBucket,
    CreatedLustre,
    CreatedOpenZfs,
    ExistingBucket,
    ExistingLustre,
    ExistingOpenZfs,
)
from podwright_constructs import checks
from podwright_constructs.arguments.lustre import ExistingLustreArguments, LustreArguments
from podwright_constructs.arguments.openzfs import ExistingOpenZfsArguments, OpenZfsArguments


def created_network(settings: Settings) -> Iterator[Finding]:
    """The network cannot be created: a zone's id, a block, how the blocks lie in each other, or an endpoint."""
    network = settings.network
    if isinstance(network, CreatedNetwork):
        yield from findings_of(("network",), checks.training_network(**arguments(network, "flow_logs")))


def created_subnet(settings: Settings) -> Iterator[Finding]:
    """The new private subnet in your VPC cannot be: an id, its block, or neither a NAT gateway nor a route table."""
    network = settings.network
    if isinstance(network, CreatedSubnet):
        yield from findings_of(("network",), checks.private_network(**arguments(network)))


def existing_network(settings: Settings) -> Iterator[Finding]:
    """The ids of your network do not have the form that AWS gives them."""
    network = settings.network
    if isinstance(network, ExistingNetwork):
        yield from findings_of(("network",), checks.existing_network(**arguments(network)))


def existing_key(settings: Settings) -> Iterator[Finding]:
    """The ARN of your key is not the ARN of a key."""
    key = settings.key
    if isinstance(key, ExistingKey):
        yield from findings_of(("key",), checks.existing_key(**arguments(key)))


def created_bucket(settings: Settings) -> Iterator[Finding]:
    """The bucket cannot be created so: how long old versions stay, or where its access logs go."""
    bucket = settings.bucket
    if isinstance(bucket, CreatedBucket):
        yield from findings_of(("bucket",), checks.bucket_options(**arguments(bucket)))


def existing_bucket(settings: Settings) -> Iterator[Finding]:
    """The name of your bucket is not one that S3 has or that HyperPod reads scripts from, or its key is no key."""
    bucket = settings.bucket
    if isinstance(bucket, ExistingBucket):
        yield from findings_of(("bucket",), checks.existing_bucket(**arguments(bucket)))


def created_lustre(settings: Settings) -> Iterator[Finding]:
    """FSx has no Lustre file system of this type, capacity, throughput or version, or a path is not absolute."""
    lustre = settings.lustre
    if isinstance(lustre, CreatedLustre):
        yield from findings_of(("lustre",), checks.lustre_file_system(LustreArguments(**arguments(lustre))))


def existing_lustre(settings: Settings) -> Iterator[Finding]:
    """The names of your file system do not have the form that FSx gives them."""
    lustre = settings.lustre
    if isinstance(lustre, ExistingLustre):
        yield from findings_of(("lustre",), checks.existing_lustre(ExistingLustreArguments(**arguments(lustre))))


def created_openzfs(settings: Settings) -> Iterator[Finding]:
    """FSx has no OpenZFS file system of this type, capacity or throughput, or the mount path is not absolute."""
    openzfs = settings.openzfs
    if isinstance(openzfs, CreatedOpenZfs):
        yield from findings_of(("openzfs",), checks.openzfs_file_system(OpenZfsArguments(**arguments(openzfs))))


def existing_openzfs(settings: Settings) -> Iterator[Finding]:
    """The DNS name of your OpenZFS file system does not have the form that FSx gives it."""
    openzfs = settings.openzfs
    if isinstance(openzfs, ExistingOpenZfs):
        yield from findings_of(("openzfs",), checks.existing_openzfs(ExistingOpenZfsArguments(**arguments(openzfs))))


def created_role(settings: Settings) -> Iterator[Finding]:
    """The ARN of the policy that limits the role is none."""
    role = settings.role
    if isinstance(role, CreatedRole):
        yield from findings_of(("role",), checks.execution_role(name="any", **arguments(role)))


def existing_role(settings: Settings) -> Iterator[Finding]:
    """The ARN of your role is not the ARN of a role."""
    role = settings.role
    if isinstance(role, ExistingRole):
        yield from findings_of(("role",), checks.existing_role(**arguments(role)))
