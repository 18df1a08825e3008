"""Rules that call the check of one construct each."""

from __future__ import annotations

from collections.abc import Iterator

from podwright.check.findings import Finding, findings_of, warning
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
from podwright_constructs import checks, facts
from podwright_constructs.arguments.lustre import ExistingLustreArguments, LustreArguments
from podwright_constructs.arguments.openzfs import ExistingOpenZfsArguments, OpenZfsArguments


def created_network(settings: Settings) -> Iterator[Finding]:
    """A zone's id, a block, the nesting of blocks or an endpoint of the created network is invalid."""
    network = settings.network
    if isinstance(network, CreatedNetwork):
        yield from findings_of(("network",), checks.training_network(**arguments(network, "flow_logs")))


def blocks_of_network(settings: Settings) -> Iterator[Finding]:
    """The network has more blocks than AWS allows without an increased quota."""
    network = settings.network
    if not isinstance(network, CreatedNetwork):
        return
    blocks, most = 1 + len(network.secondary_cidrs), facts.DEFAULT_VPC_BLOCKS
    if most < blocks <= facts.MAX_VPC_BLOCKS:
        yield warning(
            ("network", "secondary_cidrs"),
            f"secondary_cidrs: the network has {blocks} blocks with cidr; AWS allows {most} by default",
            "use fewer and larger blocks, or ask AWS to raise the quota `IPv4 CIDR blocks per VPC`",
        )


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
    """The ARN of the permissions boundary or of a policy, or a statement, is malformed."""
    role = settings.role
    if isinstance(role, CreatedRole):
        yield from findings_of(("role",), checks.execution_role(name="any", **arguments(role, "statements")))
        for index, statement in enumerate(role.statements):
            problems = checks.statement_problems(actions=statement.actions, resources=statement.resources)
            yield from findings_of(("role", "statements", index), problems)


def existing_role(settings: Settings) -> Iterator[Finding]:
    """The ARN of the existing role is malformed."""
    role = settings.role
    if isinstance(role, ExistingRole):
        yield from findings_of(("role",), checks.existing_role(**arguments(role)))
