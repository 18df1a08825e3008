"""The file system that all nodes share: an FSx for Lustre you have, or one made here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from cdktf import Fn
from constructs import Construct

from podwright_constructs import checks, facts
from podwright_constructs.aws.fsx_data_repository_association import (
    FsxDataRepositoryAssociation,
    FsxDataRepositoryAssociationS3,
)
from podwright_constructs.aws.fsx_lustre_file_system import (
    FsxLustreFileSystem,
    FsxLustreFileSystemDataReadCacheConfiguration,
    FsxLustreFileSystemMetadataConfiguration,
)
from podwright_constructs.data_repository import DataRepository
from podwright_constructs.file_system import KEEP_SECURITY_GROUPS
from podwright_constructs.key import Key
from podwright_constructs.network import Network
from podwright_constructs.ordering import before
from podwright_constructs.problems import Problem, refuse

EVENTS = ("NEW", "CHANGED", "DELETED")


class Lustre(Protocol):
    """What a node needs to mount a Lustre file system."""

    @property
    def dns_name(self) -> str:
        """DNS name of the metadata server."""

    @property
    def mount_name(self) -> str:
        """The name FSx gave it, the part after ``@tcp:/``."""

    @property
    def mount_path(self) -> str:
        """Where every node mounts it."""

    @property
    def efa(self) -> bool:
        """Whether nodes can reach it over EFA."""


@dataclass(frozen=True, kw_only=True)
class ExistingLustre:
    """A file system you have, reachable from the nodes' security group; ``efa`` says that it was made with EFA.

    Raises:
        InvalidArgumentsError: a name is malformed; all problems are in it.
    """

    dns_name: str
    mount_name: str
    mount_path: str = "/fsx"
    efa: bool = False

    def __post_init__(self) -> None:
        problems = checks.existing_lustre(
            dns_name=self.dns_name, mount_name=self.mount_name, mount_path=self.mount_path
        )
        refuse(self, problems)


class LustreFileSystem(Construct):
    """A file system in the first subnet of a network; by default PERSISTENT_2 on SSD.

    https://docs.aws.amazon.com/fsx/latest/LustreGuide/using-fsx-lustre.html

    Args:
        network: where it is; its security group admits Lustre.
        deployment_type: PERSISTENT_2 for what lasts, SCRATCH_2 for what can be lost, PERSISTENT_1 where there is no 2.
        storage_type: HDD goes with PERSISTENT_1, INTELLIGENT_TIERING with PERSISTENT_2.
        capacity_gib: none for the smallest one; INTELLIGENT_TIERING has none.
        throughput_mbps_per_tib: MB/s for each TiB; none for the default of the type.
        throughput_mbps: MB/s of INTELLIGENT_TIERING, where it does not hang on the capacity; none for the least.
        read_cache: an SSD before HDD or INTELLIGENT_TIERING.
        metadata_iops: of PERSISTENT_2; none for what FSx finds right for the capacity.
        efa: whether nodes reach it over EFA, and their GPUs directly.
        key: what it is encrypted with; none for FSx's own key, SCRATCH_2 has no other.
        on_destroy: whether a last backup is made.
        data_repositories: prefixes of S3 that folders show.

    Raises:
        InvalidArgumentsError: a combination that FSx does not sell; all problems are in it.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        network: Network,
        deployment_type: Literal["PERSISTENT_2", "PERSISTENT_1", "SCRATCH_2"] = "PERSISTENT_2",
        storage_type: Literal["SSD", "HDD", "INTELLIGENT_TIERING"] = "SSD",
        capacity_gib: int | None = None,
        throughput_mbps_per_tib: int | None = None,
        throughput_mbps: int | None = None,
        read_cache: bool = False,
        compression: Literal["LZ4", "NONE"] = "LZ4",
        version: Literal["2.15", "2.12", "2.10"] = "2.15",
        metadata_iops: int | None = None,
        efa: bool = False,
        automatic_backup_retention_days: int = 0,
        on_destroy: Literal["backup", "destroy"] = "destroy",
        data_repositories: Sequence[DataRepository] = (),
        key: Key | None = None,
        mount_path: str = "/fsx",
    ) -> None:
        problems = checks.lustre_file_system(
            deployment_type=deployment_type,
            storage_type=storage_type,
            capacity_gib=capacity_gib,
            throughput_mbps_per_tib=throughput_mbps_per_tib,
            throughput_mbps=throughput_mbps,
            read_cache=read_cache,
            compression=compression,
            version=version,
            metadata_iops=metadata_iops,
            efa=efa,
            automatic_backup_retention_days=automatic_backup_retention_days,
            on_destroy=on_destroy,
            data_repositories=data_repositories,
            mount_path=mount_path,
        )
        if key and deployment_type == "SCRATCH_2":
            hint = "FSx encrypts scratch file systems with a key of its own."
            problems.append(Problem("conflict", ("key",), key.arn, "no key with SCRATCH_2", hint))
        refuse(self, problems)
        super().__init__(scope, id_)
        persistent = deployment_type != "SCRATCH_2"
        tiering = storage_type == "INTELLIGENT_TIERING"
        capacities = checks.lustre_capacities(deployment_type, storage_type, throughput_mbps_per_tib, efa=efa)
        file_system = FsxLustreFileSystem(
            self,
            "file_system",
            deployment_type=deployment_type,
            storage_type=storage_type,
            storage_capacity=capacity_gib or (capacities.least if capacities else None),
            per_unit_storage_throughput=checks.lustre_throughput(
                deployment_type, storage_type, throughput_mbps_per_tib
            ),
            throughput_capacity=throughput_mbps or facts.LUSTRE_TIERING_THROUGHPUT_STEP_MBPS if tiering else None,
            drive_cache_type=("READ" if read_cache else "NONE") if storage_type == "HDD" else None,
            data_read_cache_configuration=_read_cache(read_cache=read_cache) if tiering else None,
            metadata_configuration=_metadata(deployment_type, version, metadata_iops, tiering=tiering),
            efa_enabled=True if efa else None,
            file_system_type_version=version,
            data_compression_type=compression,
            kms_key_id=key.arn if key else None,
            automatic_backup_retention_days=automatic_backup_retention_days if persistent else None,
            copy_tags_to_backups=True if persistent else None,
            skip_final_backup=on_destroy == "destroy",
            subnet_ids=[network.subnet_ids[0]],
            security_group_ids=[network.security_group_id],
            tags={"Name": self.node.path.replace("/", "-")},
            depends_on=before(self, network.security_group_rules),
            lifecycle=KEEP_SECURITY_GROUPS,
        )
        for repository in data_repositories:
            self._link(file_system, repository)
        self.dns_name = file_system.dns_name
        self.mount_name = file_system.mount_name
        self.mount_path = mount_path
        self.efa = efa

    def _link(self, file_system: FsxLustreFileSystem, repository: DataRepository) -> None:
        """https://docs.aws.amazon.com/fsx/latest/LustreGuide/create-dra-linked-data-repo.html."""
        policies: FsxDataRepositoryAssociationS3 = {}
        if repository.import_changes:
            policies["auto_import_policy"] = {"events": EVENTS}
        if repository.export_changes:
            policies["auto_export_policy"] = {"events": EVENTS}
        FsxDataRepositoryAssociation(
            self,
            f"repository_{repository.path.strip('/').replace('/', '_')}",
            file_system_id=file_system.id,
            file_system_path=repository.path,
            data_repository_path=repository.s3_uri,
            batch_import_meta_data_on_create=repository.import_changes,
            delete_data_in_filesystem=False,
            s3=policies or None,
        )


def file_system_id(dns_name: str) -> str:
    """``fs-…``, which is the beginning of an FSx DNS name."""
    return str(Fn.element(Fn.split(".", dns_name), 0))


def _read_cache(*, read_cache: bool) -> FsxLustreFileSystemDataReadCacheConfiguration:
    return {"sizing_mode": "PROPORTIONAL_TO_THROUGHPUT_CAPACITY" if read_cache else "NO_CACHE"}


def _metadata(
    deployment_type: str, version: str, metadata_iops: int | None, *, tiering: bool
) -> FsxLustreFileSystemMetadataConfiguration | None:
    """How many operations on names per second; only file systems of the newest kind let one say it."""
    if deployment_type != "PERSISTENT_2" or version != "2.15":
        return None
    if tiering:
        metadata_iops = metadata_iops or facts.LUSTRE_TIERING_METADATA_IOPS[0]
    if metadata_iops is None:
        return {"mode": "AUTOMATIC"}
    return {"mode": "USER_PROVISIONED", "iops": metadata_iops}
