"""Rules that call the check of one construct each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from ipaddress import IPv4Network

from podwright.check.findings import Finding, KeyPath, error, findings_of, warning
from podwright.check.rules.cluster import NAMED, creates_named
from podwright.check.rules.rule import OWN_BUCKET, findings_of_arguments, findings_of_section, reads
from podwright.settings import names
from podwright.settings.access import CreatedRole, ExistingKey, ExistingRole
from podwright.settings.network import CreatedNetwork, CreatedSubnet, ExistingNetwork
from podwright.settings.root import Settings
from podwright.settings.section import Section
from podwright.settings.storage import (
    CreatedBucket,
    CreatedLustre,
    CreatedOpenZfs,
    ExistingBucket,
    ExistingLustre,
    ExistingOpenZfs,
)
from podwright_constructs import checks, facts
from podwright_constructs.checks.words import block_problems


def created_network(settings: Settings) -> Iterator[Finding]:
    """A zone's id, a block, the nesting of blocks or an endpoint of the created network is invalid."""
    network = settings.network
    if isinstance(network, CreatedNetwork):
        yield from findings_of_arguments(settings, ("network",), network, checks.training_network, "flow_logs")


def blocks_of_network(settings: Settings) -> Iterator[Finding]:
    """The network has more blocks than AWS allows without an increased quota, or one that Docker uses."""
    network = settings.network
    if not isinstance(network, CreatedNetwork):
        return
    cidr_by_path: dict[KeyPath, str] = {("network", "cidr"): network.cidr}
    cidr_by_path |= {
        ("network", "secondary_cidrs", index): block for index, block in enumerate(network.secondary_cidrs)
    }
    for path, block in cidr_by_path.items():
        if not block_problems("cidr", block) and IPv4Network(block).overlaps(IPv4Network(facts.DOCKER_RANGE)):
            message = f"{path[1]}: {block} overlaps {facts.DOCKER_RANGE}, the network of Docker on every node"
            yield warning(path, message, "use another block: containers cannot reach addresses in this one")
    blocks, default_max = 1 + len(network.secondary_cidrs), facts.DEFAULT_VPC_BLOCKS
    if default_max < blocks <= facts.MAX_VPC_BLOCKS:
        yield warning(
            ("network", "secondary_cidrs"),
            f"secondary_cidrs: the network has {blocks} blocks with cidr; AWS allows {default_max} by default",
            "use fewer and larger blocks, or ask AWS to raise the quota `IPv4 CIDR blocks per VPC`",
        )


def created_subnet(settings: Settings) -> Iterator[Finding]:
    """An id or the block of the new subnet is invalid, or it has neither a NAT gateway nor a route table."""
    network = settings.network
    if isinstance(network, CreatedSubnet):
        yield from findings_of_arguments(settings, ("network",), network, checks.private_network)


def existing_network(settings: Settings) -> Iterator[Finding]:
    """An id of the existing network is malformed."""
    network = settings.network
    if isinstance(network, ExistingNetwork):
        yield from findings_of_arguments(settings, ("network",), network, checks.existing_network)


def existing_key(settings: Settings) -> Iterator[Finding]:
    """The ARN of the existing key is malformed."""
    key = settings.key
    if isinstance(key, ExistingKey):
        yield from findings_of_arguments(settings, ("key",), key, checks.existing_key)


def created_bucket(settings: Settings) -> Iterator[Finding]:
    """The expiry of old versions or the access logs of the created bucket are invalid."""
    bucket = settings.bucket
    if isinstance(bucket, CreatedBucket):
        yield from findings_of_arguments(settings, ("bucket",), bucket, checks.bucket_options)


def existing_bucket(settings: Settings) -> Iterator[Finding]:
    """The name, key or account of the existing bucket is malformed, or roles may lack access to a bucket of its name.

    AWS's managed policy for nodes reads only buckets whose names begin with sagemaker-. Another name is a warning:
    roles that podwright creates have a policy of their own, and an existing role may have one, which `check --live`
    asks about.
    https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ClusterLifeCycleConfig.html
    """
    bucket = settings.bucket
    if isinstance(bucket, ExistingBucket):
        yield from findings_of_arguments(settings, ("bucket",), bucket, checks.existing_bucket)
        yield from _other_name(settings, bucket)


@reads("role.source", "bucket.name")
def _other_name(settings: Settings, bucket: ExistingBucket) -> Iterator[Finding]:
    prefix = facts.BUCKET_NAME_PREFIX
    if bucket.name.startswith(prefix) or checks.existing_bucket(name=bucket.name):
        return
    message = f"name: got {bucket.name}; AWS's managed policy for nodes reads only buckets named {prefix}…"
    if isinstance(settings.role, CreatedRole):
        hint = "the roles that podwright creates read this one; AWS advises a name with the prefix"
    else:
        hint = f"allow s3:GetObject in {bucket.name} to the existing role, or use a bucket named {prefix}…"
    yield warning(("bucket", "name"), message, hint)


def created_lustre(settings: Settings) -> Iterator[Finding]:
    """FSx has no Lustre file system of this type, capacity, throughput or version, or a path is not absolute."""
    lustre = settings.lustre
    if isinstance(lustre, CreatedLustre):
        yield from findings_of_section(settings, ("lustre",), lustre, checks.lustre_file_system)
        yield from _links_with_own_bucket(settings, lustre)


@reads(*OWN_BUCKET)
def _links_with_own_bucket(settings: Settings, lustre: CreatedLustre) -> Iterator[Finding]:
    """Report links through which any user could replace scripts that every node runs as root."""
    for index, link in enumerate(lustre.data_repositories):
        bucket, _, prefix = link.s3_uri.removeprefix("s3://").partition("/")
        prefix = f"{prefix.rstrip('/')}/" if prefix else ""
        script_prefixes = names.readable_prefixes(settings.name) if names.is_own_bucket(settings, bucket) else ()
        if link.export_changes and any(
            prefix.startswith(f"{script_prefix}/") or f"{script_prefix}/".startswith(prefix)
            for script_prefix in script_prefixes
        ):
            message = (
                f"s3_uri: {link.s3_uri} holds what every node runs as root, and users of the folder could write it"
            )
            path = ("lustre", "data_repositories", index, "s3_uri")
            yield error(path, message, "use another bucket or prefix, or `export_changes: false`")


def existing_lustre(settings: Settings) -> Iterator[Finding]:
    """The DNS name or mount name of the existing Lustre file system is malformed."""
    lustre = settings.lustre
    if isinstance(lustre, ExistingLustre):
        yield from findings_of(("lustre",), checks.existing_lustre(lustre))


def created_openzfs(settings: Settings) -> Iterator[Finding]:
    """FSx has no OpenZFS file system of this type, capacity or throughput, or the mount path is not absolute."""
    openzfs = settings.openzfs
    if isinstance(openzfs, CreatedOpenZfs):
        yield from findings_of_section(settings, ("openzfs",), openzfs, checks.openzfs_file_system)


def existing_openzfs(settings: Settings) -> Iterator[Finding]:
    """The DNS name of the existing OpenZFS file system is malformed."""
    openzfs = settings.openzfs
    if isinstance(openzfs, ExistingOpenZfs):
        yield from findings_of(("openzfs",), checks.existing_openzfs(openzfs))
        if isinstance(settings.lustre, ExistingLustre) and openzfs.dns_name == settings.lustre.dns_name:
            message = f"dns_name: {openzfs.dns_name} is the Lustre file system"
            yield error(("openzfs", "dns_name"), message, "give the name of an OpenZFS file system, or delete openzfs")


def created_role(settings: Settings) -> Iterator[Finding]:
    """The boundary's or a policy's ARN, the path or a statement is malformed, or a policy is too long."""
    role = settings.role
    if isinstance(role, CreatedRole):
        yield from findings_of_arguments(settings, ("role",), role, checks.execution_role, "statements", name="any")
        for index, statement in enumerate(role.statements):
            problems = checks.statement_problems(actions=statement.actions, resources=statement.resources)
            yield from findings_of(("role", "statements", index), problems)
            for position, condition in enumerate(statement.conditions):
                path = ("role", "statements", index, "conditions", position)
                yield from findings_of_arguments(settings, path, condition, checks.condition_problems)
        yield from _policies_of_administrators(role)
        if len(role.policy_arns) > (default_max := facts.DEFAULT_ROLE_POLICIES):
            message = (
                f"policy_arns: got {len(role.policy_arns)} policies; AWS allows {default_max} for a role by default"
            )
            hint = "merge some of them, or ask AWS to raise the quota `Managed policies attached to an IAM role`"
            yield warning(("role", "policy_arns"), message, hint)
        yield from _length_of_policies(settings, role)


@reads(
    *("role.statements", "nodes.s3_mounts", "cluster.instance_groups.role", "cluster.instance_groups.key_arn"),
    *("cluster.instance_groups.subnet_ids", "cluster.instance_groups.security_group_ids"),
    "cluster.extra_security_group_ids",
)
def _length_of_policies(settings: Settings, role: CreatedRole) -> Iterator[Finding]:
    for kind in ("controller", "login", "compute"):
        groups = [group for group in settings.cluster.instance_groups if group.role == kind]
        problems = checks.execution_role(
            name="any",
            s3_access=settings.nodes.s3_mounts,
            statements_length=sum(map(_length, role.statements)),
            volume_key_arns=sorted({group.key_arn for group in groups if group.key_arn}),
            override_subnet_ids=[subnet_id for group in groups for subnet_id in group.subnet_ids],
            override_security_group_ids=[
                *settings.cluster.extra_security_group_ids,
                *(group_id for group in groups for group_id in group.security_group_ids),
            ],
        )
        too_long = [problem for problem in problems if problem.path == ("policy",)]
        yield from findings_of(("role",), too_long)


def _length(statement: Section) -> int:
    """Return the length of a statement as JSON."""
    return len(json.dumps(statement.model_dump(), separators=(",", ":")))


def _policies_of_administrators(role: CreatedRole) -> Iterator[Finding]:
    for index, arn in enumerate(role.policy_arns):
        if arn.partition(":policy/")[2] in facts.POLICIES_OF_ADMINISTRATORS:
            message = f"policy_arns[{index}]: with {arn} a job on any node could take over the account"
            yield warning(
                ("role", "policy_arns", index), message, "give nodes the actions that they need, in `statements`"
            )


@reads("account_id")
def arns_of_one_account(settings: Settings) -> Iterator[Finding]:
    """The roles, or a role's policies, are in two accounts; IAM and SageMaker use only the cluster's account."""
    role = settings.role
    if isinstance(role, ExistingRole):
        arn_by_path: dict[KeyPath, str] = {("role", key): arn for key, arn in role.arns().items()}
    else:
        arn_by_path = {("role", "policy_arns", index): arn for index, arn in enumerate(role.policy_arns)}
    arn_by_path[("role", "permissions_boundary_arn")] = role.permissions_boundary_arn or ""
    arn_by_path[("assume_role", "role_arn")] = settings.assume_role.role_arn if settings.assume_role else ""
    accounts = {path: match[1] for path, arn in arn_by_path.items() if (match := _ACCOUNT.match(arn))}
    for path, account in accounts.items():
        if account != (cluster_account := settings.account_id or next(iter(accounts.values()))):
            word = next(str(key) for key in reversed(path) if isinstance(key, str))
            yield error(
                path,
                f"{word}: got an ARN of account {account}, need one of {cluster_account}",
                "a cluster has one account",
            )


_ACCOUNT = re.compile(r"arn:aws[a-z-]*:iam::([0-9]{12}):")


def role_of_deployment(settings: Settings) -> Iterator[Finding]:
    """The role that deployments assume is no ARN of a role, or IAM takes no such external id or session name."""
    assumed = settings.assume_role
    if assumed:
        yield from findings_of_arguments(settings, ("assume_role",), assumed, checks.assumed_role)


def ignored_tags(settings: Settings) -> Iterator[Finding]:
    """Terraform would ignore podwright's own tags, or those of the file."""
    ignored = settings.ignore_tags
    if not ignored:
        return
    are_known = settings.are_valid("name", "tags")
    own_tags = {*names.tags(settings), names.CONSTRUCT_PATH_TAG} if are_known else {names.CLUSTER_TAG}
    if settings.are_valid(*NAMED) and creates_named(settings):
        own_tags.add(names.NAME_TAG)
    hint = "name only tags that others set: each plan would set podwright's again, and commands find resources by them"
    for index, key in enumerate(ignored.keys):
        if key in own_tags:
            yield error(("ignore_tags", "keys", index), f"keys: {key} is a tag that podwright sets", hint)
    for index, prefix in enumerate(ignored.key_prefixes):
        if tags := sorted(key for key in own_tags if key.startswith(prefix)):
            path = ("ignore_tags", "key_prefixes", index)
            yield error(path, f"key_prefixes: {prefix!r} is the beginning of {tags[0]}, which podwright sets", hint)


def account_of_deployment(settings: Settings) -> Iterator[Finding]:
    """``account_id`` is not the number of an AWS account: 12 digits, in quotes because some begin with 0."""
    account_id = settings.account_id
    if account_id is not None and not facts.ACCOUNT_ID_PATTERN.fullmatch(account_id):
        hint = "`aws sts get-caller-identity` prints that of your credentials"
        yield error(("account_id",), f"account_id: got {account_id!r}, need 12 digits", hint)


def existing_role(settings: Settings) -> Iterator[Finding]:
    """The ARN of an existing role or of a boundary, or the path of new roles, is malformed."""
    role = settings.role
    if isinstance(role, ExistingRole):
        for key, arn in role.arns().items():
            yield from findings_of(("role",), checks.existing_role(argument=key, arn=arn))
        yield from findings_of(("role",), checks.permissions_boundary(role.permissions_boundary_arn))
        yield from findings_of(("role",), checks.role_path(role.path))
