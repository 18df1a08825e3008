"""Check the arguments of an OpenZFS file system against FSx's limits.

https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateFileSystemOpenZFSConfiguration.html
"""

from __future__ import annotations

from podwright_constructs import facts
from podwright_constructs.arguments.openzfs import ExistingOpenZfsArguments, OpenZfsArguments
from podwright_constructs.checks.file_system import file_system_problems
from podwright_constructs.checks.words import choice, matches, mount_path_problems, one_of, within
from podwright_constructs.problems import Problem


def openzfs_file_system(openzfs: OpenZfsArguments) -> list[Problem]:
    """Check a new file system."""
    problems = list(mount_path_problems(openzfs.mount_path))
    throughputs = facts.OPENZFS_THROUGHPUTS_MBPS.get(openzfs.deployment_type)
    if throughputs is None:
        problems += choice("deployment_type", openzfs.deployment_type, tuple(facts.OPENZFS_THROUGHPUTS_MBPS))
    else:
        context = f" for {openzfs.deployment_type}"
        problems += choice("throughput_mbps", openzfs.throughput_mbps, sorted(throughputs), context)
    min_gib, max_gib = facts.MIN_OPENZFS_CAPACITY_GIB, facts.MAX_OPENZFS_CAPACITY_GIB
    return [
        *problems,
        *within("capacity_gib", openzfs.capacity_gib, min_gib, max_gib),
        *choice("data_compression_type", openzfs.data_compression_type, facts.OPENZFS_COMPRESSIONS),
        *file_system_problems(openzfs),
    ]


def openzfs_subnets(*, deployment_type: str, subnet_count: int) -> list[Problem]:
    """Check that the network has the subnets that the deployment type needs."""
    needed = facts.OPENZFS_SUBNETS.get(deployment_type, 1)
    if subnet_count >= needed:
        return []
    single_zone_types = one_of([name for name in facts.OPENZFS_THROUGHPUTS_MBPS if name not in facts.OPENZFS_SUBNETS])
    hint = f"{deployment_type} needs private subnets in {needed} zones, the network has {subnet_count}."
    return [Problem("conflict", ("deployment_type",), deployment_type, f"{single_zone_types} in this network", hint)]


def existing_openzfs(openzfs: ExistingOpenZfsArguments) -> list[Problem]:
    """Check the names of an existing file system."""
    need = "a DNS name like fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com"
    return [
        *matches("dns_name", openzfs.dns_name, facts.FSX_DNS_NAME_PATTERN, need),
        *mount_path_problems(openzfs.mount_path),
    ]
