"""Check the arguments of an OpenZFS file system against FSx's limits.

https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateFileSystemOpenZFSConfiguration.html
"""

from __future__ import annotations

from podwright_constructs import facts
from podwright_constructs.checks.words import backup_problems, choice, matches, mount_path_problems, one_of, within
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
    """Check a new file system; no throughput asks for the default of its type."""
    problems = list(mount_path_problems(mount_path))
    throughputs = facts.OPENZFS_THROUGHPUTS_MBPS.get(deployment_type)
    if throughputs is None:
        problems += choice("deployment_type", deployment_type, tuple(facts.OPENZFS_THROUGHPUTS_MBPS))
    else:
        problems += choice("throughput_mbps", throughput_mbps, sorted(throughputs), f" for {deployment_type}")
    return [
        *problems,
        *within("capacity_gib", capacity_gib, facts.MIN_OPENZFS_CAPACITY_GIB, facts.MAX_OPENZFS_CAPACITY_GIB),
        *choice("compression", compression, facts.OPENZFS_COMPRESSIONS),
        *backup_problems(automatic_backup_retention_days, on_destroy),
    ]


def openzfs_subnets(*, deployment_type: str, subnet_count: int) -> list[Problem]:
    """Check that the network has the subnets that the deployment type needs."""
    needed = facts.OPENZFS_SUBNETS.get(deployment_type, 1)
    if subnet_count >= needed:
        return []
    others = one_of([name for name in facts.OPENZFS_THROUGHPUTS_MBPS if name not in facts.OPENZFS_SUBNETS])
    hint = f"{deployment_type} needs private subnets in {needed} zones, the network has {subnet_count}."
    return [Problem("conflict", ("deployment_type",), deployment_type, f"{others} in this network", hint)]


def existing_openzfs(*, dns_name: str, mount_path: str) -> list[Problem]:
    """Check the names of an existing file system."""
    need = "a DNS name like fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com"
    return [*matches("dns_name", dns_name, facts.FSX_DNS_NAME_PATTERN, need), *mount_path_problems(mount_path)]
