"""Arguments of FSx for OpenZFS file systems.

https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateFileSystemOpenZFSConfiguration.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from typing_extensions import Doc

from podwright_constructs import facts

_THROUGHPUTS = "; ".join(
    f"{deployment} {', '.join(map(str, choices))}" for deployment, choices in facts.OPENZFS_THROUGHPUTS_MBPS.items()
)


@dataclass(frozen=True, kw_only=True)
class OpenZfsArguments:
    """A new FSx for OpenZFS file system, for home directories."""

    deployment_type: Annotated[
        Literal["SINGLE_AZ_1", "SINGLE_AZ_2", "SINGLE_AZ_HA_1", "SINGLE_AZ_HA_2", "MULTI_AZ_1"],
        Doc(
            "HA has a second server in the same zone, MULTI_AZ_1 in the network's second private subnet. "
            "Default: SINGLE_AZ_HA_2."
        ),
    ] = "SINGLE_AZ_HA_2"
    capacity_gib: Annotated[
        int,
        Doc(f"Storage capacity, {facts.OPENZFS_CAPACITY_TEXT}. Default: {facts.MIN_OPENZFS_CAPACITY_GIB}."),
    ] = facts.MIN_OPENZFS_CAPACITY_GIB
    throughput_mbps: Annotated[
        int | None, Doc(f"Throughput in MB/s: {_THROUGHPUTS}. Default: the first of the type.")
    ] = None
    data_compression_type: Annotated[
        Literal["ZSTD", "LZ4", "NONE"], Doc("How FSx compresses data that is written. Default: ZSTD.")
    ] = "ZSTD"
    automatic_backup_retention_days: Annotated[
        int,
        Doc(
            f"Days that automatic daily backups are kept, 0 to {facts.MAX_BACKUP_RETENTION_DAYS}. "
            "Default: 0, no automatic backups."
        ),
    ] = 0
    on_destroy: Annotated[
        Literal["backup", "destroy"],
        Doc("backup makes a last backup before the file system is deleted, destroy does not. Default: destroy."),
    ] = "destroy"
    mount_path: Annotated[str, Doc("Path where every node mounts the file system. Default: /home.")] = "/home"


@dataclass(frozen=True, kw_only=True)
class ExistingOpenZfsArguments:
    """An existing FSx for OpenZFS file system; nodes mount its root volume, /fsx."""

    dns_name: Annotated[str, Doc("DNS name, fs-….fsx.REGION.amazonaws.com.")]
    mount_path: Annotated[str, Doc("Path where every node mounts the file system. Default: /home.")] = "/home"
