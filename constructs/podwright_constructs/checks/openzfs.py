"""What FSx would refuse of an OpenZFS file system.

https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateFileSystemOpenZFSConfiguration.html
"""

from __future__ import annotations

from podwright_constructs import facts
from podwright_constructs.checks.words import backup_problems, matches, mount_path_problems, one_of
from podwright_constructs.problems import Problem


def openzfs_file_system(
    *,
    mount_path: str,
    deployment_type: str = "SINGLE_AZ_HA_2",
    capacity_gib: int = 64,
    throughput_mbps: int | None = None,
    compression: str = "ZSTD",
    automatic_backup_retention_days: int = 0,
    on_destroy: str = "destroy",
) -> list[Problem]:
    """Problems of an OpenZFS file system to be created; no throughput asks for the default of its type."""
    problems = list(mount_path_problems(mount_path))
    throughputs = facts.OPENZFS_THROUGHPUTS_MBPS.get(deployment_type)
    if throughputs is None:
        allowed = one_of(tuple(facts.OPENZFS_THROUGHPUTS_MBPS))
        problems.append(Problem("deployment_type", deployment_type, allowed))
    elif throughput_mbps is not None and throughput_mbps not in throughputs:
        allowed = f"{one_of(sorted(throughputs))} for {deployment_type}"
        problems.append(Problem("throughput_mbps", throughput_mbps, allowed))
    if not facts.MIN_OPENZFS_CAPACITY_GIB <= capacity_gib <= facts.MAX_OPENZFS_CAPACITY_GIB:
        problems.append(Problem("capacity_gib", capacity_gib, facts.OPENZFS_CAPACITY_TEXT))
    if compression not in facts.OPENZFS_COMPRESSIONS:
        problems.append(Problem("compression", compression, one_of(facts.OPENZFS_COMPRESSIONS)))
    return [*problems, *backup_problems(automatic_backup_retention_days, on_destroy)]


def openzfs_subnets(*, deployment_type: str, subnet_count: int) -> list[Problem]:
    """The problem of a type that needs more subnets than the network has."""
    needed = facts.OPENZFS_SUBNETS.get(deployment_type, 1)
    if subnet_count >= needed:
        return []
    allowed = one_of([name for name in facts.OPENZFS_THROUGHPUTS_MBPS if name not in facts.OPENZFS_SUBNETS])
    hint = f"It needs private subnets in {needed} zones, the network has {subnet_count}."
    return [Problem("deployment_type", deployment_type, f"{allowed} in this network", hint)]


def existing_openzfs(*, dns_name: str, mount_path: str) -> list[Problem]:
    """Problems of the names of an OpenZFS file system that exists."""
    allowed = "a DNS name like fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com"
    return [*matches("dns_name", dns_name, facts.FSX_DNS_NAME_PATTERN, allowed), *mount_path_problems(mount_path)]
