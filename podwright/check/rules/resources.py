"""Rules that call the check of one construct each."""

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
    """A zone's id, a block, the nesting of blocks or an endpoint of the created network is invalid."""
    network = settings.network
    if isinstance(network, CreatedNetwork):
        yield from findings_of(("network",), checks.training_network(**arguments(network, "flow_logs")))


def created_subnet(settings: Settings) -> Iterator[Finding]:
    """An id or the block of the new subnet is invalid, or it has neither a NAT gateway nor a route table."""
    network = settings.network
    if isinstance(network, CreatedSubnet):
        yield from findings_of(("network",), checks.private_network(**arguments(network)))


def existing_network(settings: Settings) -> Iterator[Finding]:
    """An id of the existing network is malformed."""
    network = settings.network
    if isinstance(network, ExistingNetwork):
        yield from findings_of(("network",), checks.existing_network(**arguments(network)))


def existing_key(settings: Settings) -> Iterator[Finding]:
    """The ARN of the existing key is malformed."""
    key = settings.key
    if isinstance(key, ExistingKey):
        yield from findings_of(("key",), checks.existing_key(**arguments(key)))


def created_bucket(settings: Settings) -> Iterator[Finding]:
    """The expiry of old versions or the access logs of the created bucket are invalid."""
    bucket = settings.bucket
    if isinstance(bucket, CreatedBucket):
        yield from findings_of(("bucket",), checks.bucket_options(**arguments(bucket)))


def existing_bucket(settings: Settings) -> Iterator[Finding]:
    """S3 or HyperPod refuses the name of the existing bucket, or its key's ARN is malformed."""
    bucket = settings.bucket
    if isinstance(bucket, ExistingBucket):
        yield from findings_of(("bucket",), checks.existing_bucket(**arguments(bucket)))


def created_lustre(settings: Settings) -> Iterator[Finding]:
    """FSx has no Lustre file system of this type, capacity, throughput or version, or a path is not absolute."""
    lustre = settings.lustre
    if isinstance(lustre, CreatedLustre):
        yield from findings_of(("lustre",), checks.lustre_file_system(LustreArguments(**arguments(lustre))))


def existing_lustre(settings: Settings) -> Iterator[Finding]:
    """The DNS name or mount name of the existing Lustre file system is malformed."""
    lustre = settings.lustre
    if isinstance(lustre, ExistingLustre):
        yield from findings_of(("lustre",), checks.existing_lustre(ExistingLustreArguments(**arguments(lustre))))


def created_openzfs(settings: Settings) -> Iterator[Finding]:
    """FSx has no OpenZFS file system of this type, capacity or throughput, or the mount path is not absolute."""
    openzfs = settings.openzfs
    if isinstance(openzfs, CreatedOpenZfs):
        yield from findings_of(("openzfs",), checks.openzfs_file_system(OpenZfsArguments(**arguments(openzfs))))


def existing_openzfs(settings: Settings) -> Iterator[Finding]:
    """The DNS name of the existing OpenZFS file system is malformed."""
    openzfs = settings.openzfs
    if isinstance(openzfs, ExistingOpenZfs):
        yield from findings_of(("openzfs",), checks.existing_openzfs(ExistingOpenZfsArguments(**arguments(openzfs))))


def created_role(settings: Settings) -> Iterator[Finding]:
    """The ARN of the permissions boundary is malformed."""
    role = settings.role
    if isinstance(role, CreatedRole):
        yield from findings_of(("role",), checks.execution_role(name="any", **arguments(role)))


def existing_role(settings: Settings) -> Iterator[Finding]:
    """The ARN of the existing role is malformed."""
    role = settings.role
    if isinstance(role, ExistingRole):
        yield from findings_of(("role",), checks.existing_role(**arguments(role)))
