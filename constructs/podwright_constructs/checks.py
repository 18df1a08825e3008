"""What AWS would refuse, as pure functions from arguments to problems. Standard library only.

Each construct calls the one for its own arguments; whoever reads them from a file may call it too. A value that holds a
Terraform reference is known to Terraform alone and passes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Network
from itertools import chain

from podwright_constructs import facts
from podwright_constructs.catalog import InstanceType, cluster_instance_types, similar_names
from podwright_constructs.instance_group import ROLES, InstanceGroup
from podwright_constructs.problems import Problem

NODE_RECOVERIES = ("automatic", "none")
ON_DESTROY = ("retain", "destroy")


def training_network(
    *, availability_zone_id: str, cidr: str, public_subnet_cidr: str, private_subnet_cidr: str
) -> list[Problem]:
    """Problems of a network to be created: the zone's id, three blocks, and how they lie in each other."""
    blocks = {"cidr": cidr, "public_subnet_cidr": public_subnet_cidr, "private_subnet_cidr": private_subnet_cidr}
    zone = _matches(
        "availability_zone_id",
        availability_zone_id,
        facts.AVAILABILITY_ZONE_ID_PATTERN,
        "the id of a zone, like usw2-az1",
        "Names like us-west-2a mean another place in every account; ids do not.",
    )
    malformed = list(chain.from_iterable(_cidr(argument, block) for argument, block in blocks.items()))
    return [*zone, *(malformed or _layout(**blocks))]


def existing_network(*, vpc_id: str, subnet_ids: Sequence[str], security_group_id: str) -> list[Problem]:
    """Problems of the ids of a network that exists."""
    problems = [
        *_matches("vpc_id", vpc_id, re.compile(r"vpc-\w+"), "an id like vpc-0123456789abcdef0"),
        *_matches("security_group_id", security_group_id, re.compile(r"sg-\w+"), "an id like sg-0123456789abcdef0"),
    ]
    if not 1 <= len(subnet_ids) <= facts.MAX_SUBNETS:
        problems.append(Problem("subnet_ids", list(subnet_ids), f"1 to {facts.MAX_SUBNETS} subnets"))
    for index, subnet_id in enumerate(subnet_ids):
        allowed = "an id like subnet-0123456789abcdef0"
        problems += _matches(f"subnet_ids[{index}]", subnet_id, re.compile(r"subnet-\w+"), allowed)
    return problems


def lustre_file_system(*, capacity_gib: int, throughput_mbps_per_tib: int, mount_path: str) -> list[Problem]:
    """Problems of a Lustre file system to be created."""
    problems = [*_lustre_capacity(capacity_gib), *_mount_path(mount_path)]
    if throughput_mbps_per_tib not in facts.LUSTRE_THROUGHPUTS:
        allowed = facts.LUSTRE_THROUGHPUT_TEXT
        problems.append(Problem("throughput_mbps_per_tib", throughput_mbps_per_tib, allowed))
    return problems


def existing_lustre(*, dns_name: str, mount_name: str, mount_path: str) -> list[Problem]:
    """Problems of the names of a Lustre file system that exists."""
    allowed = "a DNS name like fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com"
    return [
        *_matches("dns_name", dns_name, facts.FSX_DNS_NAME_PATTERN, allowed),
        *_matches("mount_name", mount_name, facts.LUSTRE_MOUNT_NAME_PATTERN, "up to 8 letters, digits, _ and -"),
        *_mount_path(mount_path),
    ]


def training_bucket(*, bucket_prefix: str, on_destroy: str) -> list[Problem]:
    """Problems of a bucket to be created."""
    allowed = (
        f"lower-case letters, digits, dots and hyphens, beginning with {facts.BUCKET_NAME_PREFIX}, "
        f"at most {facts.MAX_BUCKET_PREFIX_LENGTH} characters"
    )
    problems = _bucket_name("bucket_prefix", bucket_prefix, facts.BUCKET_PREFIX_PATTERN, allowed)
    if not problems and len(bucket_prefix) > facts.MAX_BUCKET_PREFIX_LENGTH:
        problems.append(Problem("bucket_prefix", bucket_prefix, allowed))
    if on_destroy not in ON_DESTROY:
        problems.append(Problem("on_destroy", on_destroy, _one_of(ON_DESTROY)))
    return problems


def existing_bucket(*, name: str) -> list[Problem]:
    """Problems of the name of a bucket that exists."""
    allowed = f"3 to 63 lower-case letters, digits, dots and hyphens, beginning with {facts.BUCKET_NAME_PREFIX}"
    return _bucket_name("name", name, facts.BUCKET_NAME_PATTERN, allowed)


def execution_role(*, name: str) -> list[Problem]:
    """Problems of a role to be created."""
    return _matches("name", name, facts.ROLE_NAME_PATTERN, "1 to 64 letters, digits and +=,.@-_")


def existing_role(*, arn: str) -> list[Problem]:
    """Problems of the ARN of a role that exists."""
    return _matches("arn", arn, facts.ROLE_ARN_PATTERN, "an ARN like arn:aws:iam::111122223333:role/nodes")


def existing_lifecycle_scripts(*, source_s3_uri: str, on_create: str) -> list[Problem]:
    """Problems of the place of scripts that lie in S3 already."""
    place = re.compile(rf"s3://{facts.BUCKET_NAME_PREFIX}[^/]+(/.*)?")
    allowed = f"an address that begins with s3://{facts.BUCKET_NAME_PREFIX}"
    return [
        *_matches("source_s3_uri", source_s3_uri, place, allowed),
        *_matches("on_create", on_create, re.compile(r"\S{1,128}"), "the name of a file below source_s3_uri"),
    ]


def cluster(
    *, cluster_name: str, instance_groups: Sequence[InstanceGroup], node_recovery: str, tags: Sequence[str]
) -> list[Problem]:
    """Problems of a cluster and of all its instance groups; ``tags`` are the keys."""
    problems = _name("cluster_name", cluster_name, facts.MAX_CLUSTER_NAME_LENGTH)
    if node_recovery not in NODE_RECOVERIES:
        problems.append(Problem("node_recovery", node_recovery, _one_of(NODE_RECOVERIES)))
    if len(tags) > facts.MAX_CLUSTER_TAGS:
        problems.append(Problem("tags", f"{len(tags)} tags", f"at most {facts.MAX_CLUSTER_TAGS}"))
    problems += [Problem("tags", key, "keys that do not begin with aws:") for key in tags if key.startswith("aws:")]
    return problems + cluster_instance_groups(instance_groups)


def cluster_instance_groups(groups: Sequence[InstanceGroup]) -> list[Problem]:
    """Problems of each group, then of the groups together."""
    problems = [
        Problem(f"instance_groups[{index}].{problem.argument}", problem.given, problem.allowed, problem.hint)
        for index, group in enumerate(groups)
        for problem in instance_group(group)
    ]
    return problems + list(_composition(groups))


def instance_group(group: InstanceGroup) -> list[Problem]:
    """Problems of one group, its arguments named without a prefix."""
    problems = _name("name", group.name, facts.MAX_CLUSTER_NAME_LENGTH)
    if group.role not in ROLES:
        problems.append(Problem("role", group.role, _one_of(ROLES)))
    least = facts.MIN_INSTANCE_COUNT if group.role == "compute" else 1
    most = 1 if group.role == "controller" else facts.MAX_INSTANCE_COUNT
    if not least <= group.count <= most:
        allowed = "1" if least == most else f"{least} to {most}"
        problems.append(Problem("count", group.count, f"{allowed} for a {group.role} group"))
    if not facts.MIN_VOLUME_GIB <= group.volume_gib <= facts.MAX_VOLUME_GIB:
        problems.append(Problem("volume_gib", group.volume_gib, f"{facts.MIN_VOLUME_GIB} to {facts.MAX_VOLUME_GIB}"))
    return [*problems, *_partition(group), *_instance_type(group)]


def _partition(group: InstanceGroup) -> Iterator[Problem]:
    if group.partition is None:
        return
    if group.role != "compute":
        yield Problem("partition", group.partition, "none", f"Only compute groups join a partition, not {group.role}.")
    elif not facts.CLUSTER_NAME_PATTERN.fullmatch(group.partition):
        yield Problem("partition", group.partition, "letters, digits and hyphens, no hyphen first or last")


def _instance_type(group: InstanceGroup) -> Iterator[Problem]:
    if group.instance_type not in cluster_instance_types():
        similar = " or ".join(similar_names(group.instance_type))
        hint = f"Did you mean {similar}?" if similar else "Names look like ml.p5.48xlarge."
        yield Problem("instance_type", group.instance_type, "a type that SageMaker accepts in a cluster", hint)
        return
    most = InstanceType.of(group.instance_type).max_threads_per_core
    if not facts.MIN_THREADS_PER_CORE <= group.threads_per_core <= most:
        allowed = f"{_one_of(range(facts.MIN_THREADS_PER_CORE, most + 1))} on {group.instance_type}"
        yield Problem("threads_per_core", group.threads_per_core, allowed)


def _composition(groups: Sequence[InstanceGroup]) -> Iterator[Problem]:
    if not 1 <= len(groups) <= facts.MAX_INSTANCE_GROUPS:
        yield Problem("instance_groups", f"{len(groups)} groups", f"1 to {facts.MAX_INSTANCE_GROUPS} groups")
    names = Counter(group.name for group in groups)
    for name, times in names.items():
        if times > 1:
            yield Problem("instance_groups", name, "each name once", f"{times} groups are called {name}.")
    roles = Counter(group.role for group in groups)
    if roles["controller"] != 1:
        yield Problem("instance_groups", f"{roles['controller']} controller groups", "exactly 1")
    if roles["login"] > 1:
        yield Problem("instance_groups", f"{roles['login']} login groups", "at most 1")
    if not roles["compute"]:
        yield Problem("instance_groups", "no compute group", "at least 1", "Jobs run on compute groups alone.")


def _cidr(argument: str, block: str) -> list[Problem]:
    if _is_reference(block):
        return []
    shortest, longest = facts.MIN_CIDR_PREFIX_LENGTH, facts.MAX_CIDR_PREFIX_LENGTH
    allowed = f"an IPv4 block of {facts.VPC_PREFIX_TEXT}, like 10.0.0.0/{shortest}"
    try:
        network = IPv4Network(block)
    except ValueError as error:
        return [Problem(argument, block, allowed, f"Python's reading of it: {error}.")]
    return [] if shortest <= network.prefixlen <= longest else [Problem(argument, block, allowed)]


def _layout(*, cidr: str, public_subnet_cidr: str, private_subnet_cidr: str) -> Iterator[Problem]:
    subnets = {"public_subnet_cidr": public_subnet_cidr, "private_subnet_cidr": private_subnet_cidr}
    if any(_is_reference(block) for block in (cidr, *subnets.values())):
        return
    for argument, block in subnets.items():
        if not IPv4Network(block).subnet_of(IPv4Network(cidr)):
            yield Problem(argument, block, f"a block inside cidr, {cidr}")
    if IPv4Network(public_subnet_cidr).overlaps(IPv4Network(private_subnet_cidr)):
        yield Problem("private_subnet_cidr", private_subnet_cidr, f"a block that does not overlap {public_subnet_cidr}")


def _lustre_capacity(capacity_gib: int) -> Iterator[Problem]:
    least, step = facts.MIN_LUSTRE_CAPACITY_GIB, facts.LUSTRE_CAPACITY_STEP_GIB
    if capacity_gib == least or (capacity_gib > 0 and capacity_gib % step == 0):
        return
    below = max(step, capacity_gib // step * step)
    closest = min((least, below, below + step), key=lambda size: abs(size - capacity_gib))
    yield Problem("capacity_gib", capacity_gib, facts.LUSTRE_CAPACITY_TEXT, f"The closest is {closest}.")


def _mount_path(mount_path: str) -> list[Problem]:
    return _matches("mount_path", mount_path, facts.MOUNT_PATH_PATTERN, "an absolute path like /fsx")


def _name(argument: str, name: str, max_length: int) -> list[Problem]:
    allowed = f"1 to {max_length} letters, digits and hyphens, no hyphen first or last"
    if len(name) > max_length and not _is_reference(name):
        return [Problem(argument, name, allowed, f"It has {len(name)} characters.")]
    return _matches(argument, name, facts.CLUSTER_NAME_PATTERN, allowed)


def _bucket_name(argument: str, name: str, pattern: re.Pattern[str], allowed: str) -> list[Problem]:
    problems = _matches(argument, name, pattern, allowed)
    if not problems and not _is_reference(name) and not name.startswith(facts.BUCKET_NAME_PREFIX):
        hint = f"SageMaker reads lifecycle scripts only from buckets whose name begins with {facts.BUCKET_NAME_PREFIX}."
        problems.append(Problem(argument, name, allowed, hint))
    return problems


def _matches(argument: str, value: str, pattern: re.Pattern[str], allowed: str, hint: str = "") -> list[Problem]:
    if _is_reference(value) or pattern.fullmatch(value):
        return []
    return [Problem(argument, value, allowed, hint)]


def _is_reference(value: str) -> bool:
    return "${" in value or "TfToken[" in value


def _one_of(choices: Sequence[object]) -> str:
    *others, last = map(str, choices)
    return f"{', '.join(others)} or {last}" if others else last
