"""Arguments of FSx for Lustre file systems.

https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateFileSystemLustreConfiguration.html
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from typing_extensions import Doc

from podwright_constructs import facts
from podwright_constructs.arguments import PassedAs
from podwright_constructs.arguments.data_repository import DataRepository
from podwright_constructs.arguments.file_system import FileSystemArguments

_THROUGHPUTS = "; ".join(
    f"{deployment} {storage} {', '.join(map(str, choices))}"
    for (deployment, storage), choices in facts.LUSTRE_THROUGHPUTS.items()
)
_FEW_METADATA_IOPS = ", ".join(
    str(iops) for iops in facts.LUSTRE_METADATA_IOPS if iops < facts.LUSTRE_METADATA_IOPS_STEP
)


@dataclass(frozen=True, kw_only=True)
class _Mount:
    """The mount on nodes, of a new file system or an existing one."""

    mount_path: Annotated[str, Doc("Path where every node mounts the file system. Default: /fsx.")] = "/fsx"


@dataclass(frozen=True, kw_only=True)
class LustreArguments(FileSystemArguments, _Mount):
    """A new FSx for Lustre file system."""

    deployment_type: Annotated[
        Literal["PERSISTENT_2", "PERSISTENT_1", "SCRATCH_2"],
        Doc(
            "PERSISTENT_1 where a region has no PERSISTENT_2; SCRATCH_2 for data that can be lost. "
            "Default: PERSISTENT_2."
        ),
        PassedAs("deployment_type"),
    ] = "PERSISTENT_2"
    storage_type: Annotated[
        Literal["SSD", "HDD", "INTELLIGENT_TIERING"],
        Doc("HDD needs PERSISTENT_1, INTELLIGENT_TIERING needs PERSISTENT_2. Default: SSD."),
        PassedAs("storage_type"),
    ] = "SSD"
    capacity_gib: Annotated[
        int | None,
        Doc(
            f"Storage capacity; of SSD {facts.MIN_LUSTRE_CAPACITY_GIB} or a multiple of "
            f"{facts.LUSTRE_CAPACITY_STEP_GIB}. INTELLIGENT_TIERING takes no capacity. Default: the smallest one."
        ),
    ] = None
    throughput_mbps_per_tib: Annotated[
        int | None, Doc(f"Throughput in MB/s for each TiB: {_THROUGHPUTS}. Default: the first of the type.")
    ] = None
    throughput_mbps: Annotated[
        int | None,
        Doc(
            "Throughput of INTELLIGENT_TIERING in MB/s, a multiple of "
            f"{facts.LUSTRE_TIERING_THROUGHPUT_STEP_MBPS}. Default: {facts.LUSTRE_TIERING_THROUGHPUT_STEP_MBPS}."
        ),
    ] = None
    read_cache: Annotated[
        bool, Doc("Add an SSD read cache in front of HDD or INTELLIGENT_TIERING. Default: false.")
    ] = False
    data_compression_type: Annotated[
        facts.LustreCompression,
        Doc("How FSx compresses data that is written. Default: LZ4."),
        PassedAs("data_compression_type"),
    ] = "LZ4"
    file_system_type_version: Annotated[
        facts.LustreVersion,
        Doc("Lustre's version. Default: 2.15."),
        PassedAs("file_system_type_version"),
    ] = "2.15"
    metadata_iops: Annotated[
        int | None,
        Doc(
            f"Metadata operations per second of PERSISTENT_2: {_FEW_METADATA_IOPS} or a multiple of "
            f"{facts.LUSTRE_METADATA_IOPS_STEP}. "
            "Default: FSx chooses by capacity."
        ),
    ] = None
    efa: Annotated[
        bool,
        Doc("Let nodes reach the file system over EFA; needs PERSISTENT_2 and a larger capacity. Default: false."),
    ] = False
    root_squash: Annotated[
        str | None,
        Doc(
            "UID:GID that root of every client has on the file system; 0:0 turns it off again. Nodes need "
            "no_squash_nids. Default: root is root."
        ),
    ] = None
    no_squash_nids: Annotated[
        Sequence[str],
        Doc(
            "Clients whose root stays root, addresses or ranges such as 10.0.[16-31].[0-255]@tcp, at most "
            f"{facts.MAX_NO_SQUASH_NIDS}. Default: none."
        ),
    ] = ()
    log_level: Annotated[
        facts.LustreLogLevel | None,
        Doc("Events of data repositories that FSx writes to CloudWatch Logs. Default: FSx writes none."),
    ] = None
    log_group_arn: Annotated[
        str | None,
        Doc("Your log group for them; its name begins with /aws/fsx. Default: FSx's own, /aws/fsx/lustre."),
    ] = None
    data_repositories: Annotated[
        Sequence[DataRepository],
        Doc(
            f"S3 prefixes that folders show, at most {facts.MAX_DATA_REPOSITORIES}. Default: no prefix.",
        ),
    ] = ()


@dataclass(frozen=True, kw_only=True)
class ExistingLustreArguments(_Mount):
    """An existing FSx for Lustre file system."""

    dns_name: Annotated[str, Doc("DNS name, fs-….fsx.REGION.amazonaws.com.")]
    mount_name: Annotated[str, Doc("Mount name, from `aws fsx describe-file-systems`.")]
    efa: Annotated[
        bool, Doc("Whether the file system was created with EFA; nodes with EFA then use it. Default: false.")
    ] = False
