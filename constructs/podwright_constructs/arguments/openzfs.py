"""Arguments of FSx for OpenZFS file systems.

https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateFileSystemOpenZFSConfiguration.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from typing_extensions import Doc

from podwright_constructs import facts
from podwright_constructs.arguments import PassedAs
from podwright_constructs.arguments.file_system import FileSystemArguments

_THROUGHPUTS = "; ".join(
    f"{deployment} {', '.join(map(str, choices))}" for deployment, choices in facts.OPENZFS_THROUGHPUTS_MBPS.items()
)


@dataclass(frozen=True, kw_only=True)
class _Mount:
    """The mount on nodes, of a new file system or an existing one."""

    mount_path: Annotated[str, Doc("Path where every node mounts the file system. Default: /home.")] = "/home"


@dataclass(frozen=True, kw_only=True)
class OpenZfsArguments(FileSystemArguments, _Mount):
    """A new FSx for OpenZFS file system, for home directories."""

    deployment_type: Annotated[
        Literal["SINGLE_AZ_1", "SINGLE_AZ_2", "SINGLE_AZ_HA_1", "SINGLE_AZ_HA_2", "MULTI_AZ_1"],
        Doc(
            "HA has a second server in the same zone, MULTI_AZ_1 in the network's second private subnet. "
            "Default: SINGLE_AZ_HA_2."
        ),
        PassedAs("deployment_type"),
    ] = "SINGLE_AZ_HA_2"
    capacity_gib: Annotated[
        int,
        Doc(f"Storage capacity, {facts.OPENZFS_CAPACITY_TEXT}. Default: {facts.MIN_OPENZFS_CAPACITY_GIB}."),
        PassedAs("storage_capacity"),
    ] = facts.MIN_OPENZFS_CAPACITY_GIB
    throughput_mbps: Annotated[
        int | None, Doc(f"Throughput in MB/s: {_THROUGHPUTS}. Default: the first of the type.")
    ] = None
    data_compression_type: Annotated[
        facts.OpenZfsCompression, Doc("How FSx compresses data that is written. Default: ZSTD.")
    ] = "ZSTD"


@dataclass(frozen=True, kw_only=True)
class ExistingOpenZfsArguments(_Mount):
    """An existing FSx for OpenZFS file system; nodes mount its root volume, /fsx."""

    dns_name: Annotated[str, Doc("DNS name, fs-….fsx.REGION.amazonaws.com.")]
