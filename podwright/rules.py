"""What a settings file must also satisfy, as pure functions from settings to findings.

Arguments of one construct are judged by that construct's own check. A rule's name, with hyphens, is the code of its
findings; its docstring explains the code to users.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from functools import wraps
from ipaddress import IPv4Network
from typing import Any

from pydantic.fields import FieldInfo

from podwright import names
from podwright.findings import Finding, KeyPath, Level
from podwright.regions import REGIONS, looks_like_region, zone_id_prefix
from podwright.settings import (
    CreatedLustre,
    CreatedNetwork,
    ExistingBucket,
    ExistingLustre,
    ExistingNetwork,
    ExistingRole,
    InstanceGroup,
    Section,
    Settings,
    UnknownValueError,
)
from podwright_constructs import checks, facts
from podwright_constructs.catalog import InstanceType, UnknownInstanceTypeError
from podwright_constructs.instance_group import InstanceGroup as GroupArguments
from podwright_constructs.problems import Problem

Rule = Callable[[Settings], Iterator[Finding]]
GROUPS: KeyPath = ("cluster", "instance_groups")


def broken(settings: Settings) -> list[Finding]:
    """What the settings break, rule by rule; a rule that needs a value which the file gives wrongly is left out."""
    return [replace(finding, code=code(rule)) for rule in RULES for finding in _judged(rule(settings))]


def code(rule: Rule) -> str:
    """The code of a rule's findings."""
    return rule.__name__.replace("_", "-")


def each_group(judge: Callable[[InstanceGroup, KeyPath], Iterator[Finding]]) -> Rule:
    """A rule about single instance groups, each judged even when another has a wrong value."""

    @wraps(judge)
    def rule(settings: Settings) -> Iterator[Finding]:
        for index, group in enumerate(settings.cluster.instance_groups):
            yield from _judged(judge(group, (*GROUPS, index)))

    return rule


# ---- the whole file ----------------------------------------------------------------------------


def known_region(settings: Settings) -> Iterator[Finding]:
    """The region's name has the wrong form (error), or podwright does not know it (warning: AWS adds regions)."""
    similar = get_close_matches(settings.region, REGIONS, n=3)
    hint = f"did you mean {' or '.join(similar)}?" if similar else "regions look like us-west-2"
    if not looks_like_region(settings.region):
        yield _error(("region",), f"region: {settings.region!r} is not a region", hint)
    elif settings.region not in REGIONS:
        yield _warning(("region",), f"region: {settings.region} is not one that podwright knows", hint)


def zone_in_region(settings: Settings) -> Iterator[Finding]:
    """The Availability Zone id belongs to another region."""
    network = settings.network
    if not isinstance(network, CreatedNetwork):
        return
    zone, prefix = network.availability_zone_id, zone_id_prefix(settings.region)
    if (
        not facts.AVAILABILITY_ZONE_ID_PATTERN.fullmatch(zone)
        or prefix is None
        or re.fullmatch(rf"{prefix}-az\d+", zone)
    ):
        return
    yield _error(
        ("network", "availability_zone_id"),
        f"availability_zone_id: {zone!r} is not in {settings.region}",
        f"ids of {settings.region} look like {prefix}-az1; "
        f"`aws ec2 describe-availability-zones --region {settings.region}` lists them",
    )


def cluster_name(settings: Settings) -> Iterator[Finding]:
    """The cluster's name is not one that SageMaker accepts."""
    for problem in _cluster_problems(cluster_name=settings.name, tags=()):
        yield _finding(("name",), replace(problem, argument="name"))


def tag_limits(settings: Settings) -> Iterator[Finding]:
    """Too many tags (podwright adds its own), or keys that AWS keeps for itself."""
    for problem in _cluster_problems(cluster_name="any", tags=tuple(names.tags(settings))):
        key = str(problem.given)
        yield _finding(("tags", key) if key in settings.tags else ("tags",), problem)


# ---- one resource each: what its construct would say ------------------------------------------


def created_network(settings: Settings) -> Iterator[Finding]:
    """The network cannot be created: the zone's id, a block, or how the blocks lie in each other."""
    network = settings.network
    if isinstance(network, CreatedNetwork):
        yield from _findings(("network",), checks.training_network(**_arguments(network)))


def existing_network(settings: Settings) -> Iterator[Finding]:
    """The ids of your network do not have the form that AWS gives them."""
    network = settings.network
    if isinstance(network, ExistingNetwork):
        yield from _findings(("network",), checks.existing_network(**_arguments(network)))


def created_lustre(settings: Settings) -> Iterator[Finding]:
    """FSx has no Lustre file system of this capacity or throughput, or the mount path is not absolute."""
    lustre = settings.lustre
    if isinstance(lustre, CreatedLustre):
        yield from _findings(("lustre",), checks.lustre_file_system(**_arguments(lustre)))


def existing_lustre(settings: Settings) -> Iterator[Finding]:
    """The names of your file system do not have the form that FSx gives them."""
    lustre = settings.lustre
    if isinstance(lustre, ExistingLustre):
        yield from _findings(("lustre",), checks.existing_lustre(**_arguments(lustre)))


def existing_lustre_in_region(settings: Settings) -> Iterator[Finding]:
    """Your file system is in another region than the cluster: nodes would mount it over a long way, if at all."""
    lustre = settings.lustre
    if not isinstance(lustre, ExistingLustre):
        return
    match = re.search(r"\.fsx\.([a-z0-9-]+)\.amazonaws\.", lustre.dns_name)
    if match and match[1] != settings.region:
        yield _warning(
            ("lustre", "dns_name"),
            f"dns_name: the file system is in {match[1]}, the cluster in {settings.region}",
            f"use a file system in {settings.region}",
        )


def existing_bucket(settings: Settings) -> Iterator[Finding]:
    """The name of your bucket is not one that S3 has or that HyperPod reads scripts from."""
    bucket = settings.bucket
    if isinstance(bucket, ExistingBucket):
        yield from _findings(("bucket",), checks.existing_bucket(**_arguments(bucket)))


def existing_role(settings: Settings) -> Iterator[Finding]:
    """The ARN of your role is not the ARN of a role."""
    role = settings.role
    if isinstance(role, ExistingRole):
        yield from _findings(("role",), checks.existing_role(**_arguments(role)))


# ---- instance groups ---------------------------------------------------------------------------


@each_group
def instance_group(group: InstanceGroup, path: KeyPath) -> Iterator[Finding]:
    """An instance group has a name, type, count, partition or volume that a cluster cannot have."""
    yield from _findings(path, checks.instance_group(_group_arguments(group)))


@each_group
def compute_partition(group: InstanceGroup, path: KeyPath) -> Iterator[Finding]:
    """A compute group does not say which Slurm partition its nodes join; jobs name the partition they run in."""
    if group.role == "compute" and group.partition is None:
        yield _error(path, f"compute group {group.name} has no partition", "add `partition: NAME`, such as gpu")


def group_composition(settings: Settings) -> Iterator[Finding]:
    """A cluster has one controller group, at most one login group, a compute group, and names that differ."""
    groups = settings.cluster.instance_groups
    seen = [group.name for group in groups]
    for problem in checks.cluster_instance_groups([_group_arguments(group) for group in groups]):
        if problem.argument != "instance_groups":  # about one group: the rule above
            continue
        repeated = [index for index, name in enumerate(seen) if name == problem.given and name in seen[:index]]
        if repeated:
            yield _finding((*GROUPS, repeated[0], "name"), replace(problem, argument="name"))
        else:
            yield _finding(GROUPS, problem)


def addresses(settings: Settings) -> Iterator[Finding]:
    """The private subnet has fewer addresses than the nodes (error) or than their EFA interfaces (warning) need.

    AWS keeps five addresses of each subnet: https://docs.aws.amazon.com/vpc/latest/userguide/subnet-sizing.html
    """
    network = settings.network
    if not isinstance(network, CreatedNetwork) or checks.training_network(**_arguments(network)):
        return
    groups = settings.cluster.instance_groups
    free = usable_addresses(network.private_subnet_cidr)
    nodes = sum(group.count for group in groups)
    interfaces = sum(group.count * _interfaces(group.instance_type) for group in groups)
    given = f"private_subnet_cidr: {network.private_subnet_cidr} has {free} addresses for nodes"
    path = ("network", "private_subnet_cidr")
    if nodes > free:
        yield _error(path, f"{given}, but there are {nodes}", "use a larger block within cidr")
    elif interfaces > free:
        yield _warning(
            path,
            f"{given}; with EFA they may take {interfaces}",
            "use a larger block within cidr, or efa-only interfaces",
        )


RULES: tuple[Rule, ...] = (
    known_region,
    zone_in_region,
    cluster_name,
    tag_limits,
    created_network,
    existing_network,
    created_lustre,
    existing_lustre,
    existing_lustre_in_region,
    existing_bucket,
    existing_role,
    instance_group,
    compute_partition,
    group_composition,
    addresses,
)


# ---- helpers -----------------------------------------------------------------------------------


def _judged(findings: Iterator[Finding]) -> Iterator[Finding]:
    """The findings up to where one would need a value that the file gives wrongly."""
    with suppress(UnknownValueError):
        yield from findings


def usable_addresses(cidr: str) -> int:
    """How many addresses of a subnet are free for network interfaces."""
    return IPv4Network(cidr).num_addresses - facts.RESERVED_ADDRESSES_PER_SUBNET


def _interfaces(instance_type: str) -> int:
    """Network interfaces of one node, each with an address; 1 for a type that another rule refuses."""
    try:
        return max(1, InstanceType.of(instance_type).efa_interfaces)
    except UnknownInstanceTypeError:
        return 1


def _arguments(section: Section) -> dict[str, Any]:
    """A section's values as the keyword arguments of its construct, which have the same names."""
    fields = type(section).model_fields
    return {name: _argument(section, name, fields[name]) for name in fields if name != "source"}


def _argument(section: Section, name: str, field: FieldInfo) -> Any:
    """A value; for an unknown text or number one that passes every check, so that the other arguments are judged."""
    try:
        return getattr(section, name)
    except UnknownValueError:
        if field.annotation is str:
            return "${unknown}"  # a Terraform reference
        if field.annotation is int:
            return 1 if field.is_required() else field.default
        raise


def _group_arguments(group: InstanceGroup) -> GroupArguments:
    return GroupArguments(**_arguments(group))


def _cluster_problems(*, cluster_name: str, tags: Sequence[str]) -> list[Problem]:
    """What the cluster's construct says about its name and tags alone."""
    recovery = checks.NODE_RECOVERIES[0]
    problems = checks.cluster(cluster_name=cluster_name, instance_groups=(), node_recovery=recovery, tags=tags)
    return [problem for problem in problems if problem.argument in {"cluster_name", "tags"}]


def _findings(section: KeyPath, problems: Iterable[Problem]) -> Iterator[Finding]:
    """A construct's problems at the places of its arguments: ``subnet_ids[1]`` is (…, "subnet_ids", 1)."""
    for problem in problems:
        keys = re.findall(r"\w+", problem.argument)
        yield _finding((*section, *(int(key) if key.isdigit() else key for key in keys)), problem)


def _finding(path: KeyPath, problem: Problem) -> Finding:
    verb = "have" if problem.argument.endswith("s") else "be"  # tags cannot have 51 tags
    message = f"{problem.argument} cannot {verb} {problem.given}"
    return _error(path, message, f"allowed: {problem.allowed}. {problem.hint}".rstrip(". "))


def _error(path: KeyPath, message: str, hint: str) -> Finding:
    return Finding(Level.ERROR, "", path, message, hint)


def _warning(path: KeyPath, message: str, hint: str) -> Finding:
    return Finding(Level.WARNING, "", path, message, hint)
