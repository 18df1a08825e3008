"""The shared file system of all nodes: FSx for Lustre, existing or new."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from constructs import Construct

from podwright_constructs import checks, facts
from podwright_constructs.arguments import passed
from podwright_constructs.arguments.data_repository import DataRepository
from podwright_constructs.arguments.lustre import ExistingLustreArguments, LustreArguments
from podwright_constructs.aws.fsx_data_repository_association import (
    FsxDataRepositoryAssociation,
    FsxDataRepositoryAssociationS3,
)
from podwright_constructs.aws.fsx_lustre_file_system import (
    FsxLustreFileSystem,
    FsxLustreFileSystemDataReadCacheConfiguration,
    FsxLustreFileSystemLogConfiguration,
    FsxLustreFileSystemMetadataConfiguration,
    FsxLustreFileSystemRootSquashConfiguration,
)
from podwright_constructs.construct import CheckedConstruct
from podwright_constructs.file_system import dns_name, lifecycle
from podwright_constructs.key import Key
from podwright_constructs.kit import Fn
from podwright_constructs.metric import Metric
from podwright_constructs.network import Network
from podwright_constructs.ordering import before
from podwright_constructs.problems import Problem, refuse

EVENTS = ("NEW", "CHANGED", "DELETED")


class Lustre(Protocol):
    """The attributes that a node needs to mount a Lustre file system."""

    @property
    def dns_name(self) -> str:
        """DNS name of the metadata server."""

    @property
    def mount_name(self) -> str:
        """Mount name that FSx assigned, the part after ``@tcp:/``."""

    @property
    def mount_path(self) -> str:
        """Path where every node mounts it."""

    @property
    def efa(self) -> bool:
        """True if nodes can reach it over EFA."""


@dataclass(frozen=True, kw_only=True)
class ExistingLustre(ExistingLustreArguments):
    """An existing file system that the nodes' security group can reach.

    Raises:
        InvalidArgumentsError: A name is malformed; all problems are in it.
    """

    def __post_init__(self) -> None:
        refuse(self, checks.existing_lustre(self))


class LustreFileSystem(CheckedConstruct):
    """A file system in the first subnet of a network; by default PERSISTENT_2 on SSD.

    https://docs.aws.amazon.com/fsx/latest/LustreGuide/using-fsx-lustre.html

    Args:
        arguments: What to create.
        network: The network, whose security group admits Lustre.
        key: The key that encrypts it; SCRATCH_2 takes none. Default: FSx's own key.

    Attributes:
        id: its id, ``fs-…``.
        dns_name: what nodes mount.
        mount_name: the part after ``@tcp:/``.
        file_system: the resource, ``aws_fsx_lustre_file_system``.

    Raises:
        InvalidArgumentsError: FSx does not sell this combination; all problems are in it.
    """

    def __init__(
        self, scope: Construct, id_: str, arguments: LustreArguments, *, network: Network, key: Key | None = None
    ) -> None:
        problems = checks.lustre_file_system(arguments)
        persistent = arguments.deployment_type != "SCRATCH_2"
        if key and not persistent:
            hint = "FSx encrypts scratch file systems with a key of its own."
            problems.append(Problem("conflict", ("key",), key.arn, "no key with SCRATCH_2", hint))
        refuse(self, problems)
        super().__init__(scope, id_)
        tiering = arguments.storage_type == "INTELLIGENT_TIERING"
        capacities = checks.lustre_capacities(arguments)
        throughput = arguments.throughput_mbps or facts.LUSTRE_TIERING_THROUGHPUT_STEP_MBPS
        file_system = FsxLustreFileSystem(
            self,
            "file_system",
            **passed(arguments),
            storage_capacity=arguments.capacity_gib or (capacities.minimum if capacities else None),
            per_unit_storage_throughput=checks.lustre_throughput(arguments),
            throughput_capacity=throughput if tiering else None,
            drive_cache_type=("READ" if arguments.read_cache else "NONE") if arguments.storage_type == "HDD" else None,
            data_read_cache_configuration=_read_cache(read_cache=arguments.read_cache) if tiering else None,
            metadata_configuration=_metadata(arguments),
            root_squash_configuration=_root_squash(arguments),
            log_configuration=_logging(arguments),
            efa_enabled=True if arguments.efa else None,
            kms_key_id=key.arn if key else None,
            automatic_backup_retention_days=arguments.automatic_backup_retention_days if persistent else None,
            copy_tags_to_backups=True if persistent else None,
            skip_final_backup=arguments.on_destroy != "backup",
            subnet_ids=[network.subnet_ids[0]],
            security_group_ids=[network.security_group_id],
            tags={"Name": self.node.path.replace("/", "-")},
            depends_on=before(self, network.security_group_rules),
            lifecycle=lifecycle(arguments.on_destroy),
        )
        for repository in arguments.data_repositories:
            self._link(file_system, repository)
        self.file_system, self.id = file_system, file_system.id
        self.dns_name = file_system.dns_name
        self.mount_name = file_system.mount_name
        self.mount_path = arguments.mount_path
        self.efa = arguments.efa

    @staticmethod
    def from_names(*, dns_name: str, mount_name: str, efa: bool = False) -> ExistingLustre:
        """Return a file system you have.

        Raises:
            InvalidArgumentsError: a name is malformed; all problems are in it.
        """
        return ExistingLustre(dns_name=dns_name, mount_name=mount_name, efa=efa)

    @staticmethod
    def from_id(
        scope: Construct, id_: str, file_system_id: str, *, mount_name: str, efa: bool = False
    ) -> ExistingLustre:
        """Return a file system you have. Terraform cannot ask for its mount name: FSx chose it.

        Raises:
            InvalidArgumentsError: the id or the name is malformed.
        """
        return ExistingLustre(dns_name=dns_name(scope, id_, file_system_id), mount_name=mount_name, efa=efa)

    def metric(self, name: str, statistic: Literal["Average", "Maximum", "Minimum", "Sum"] = "Sum") -> Metric:
        """Return one of its metrics.

        https://docs.aws.amazon.com/fsx/latest/LustreGuide/fs-metrics.html
        """
        return Metric(namespace="AWS/FSx", name=name, dimensions={"FileSystemId": self.id}, statistic=statistic)

    def metric_free_capacity(self) -> Metric:
        """Return its free capacity in bytes."""
        return self.metric("FreeDataStorageCapacity")

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
            **passed(repository),
            file_system_id=file_system.id,
            batch_import_meta_data_on_create=repository.import_changes,
            delete_data_in_filesystem=False,
            s3=policies or None,
        )


def file_system_id(dns_name: str) -> str:
    """Return ``fs-…``, the first part of an FSx DNS name."""
    return str(Fn.element(Fn.split(".", dns_name), 0))


def _read_cache(*, read_cache: bool) -> FsxLustreFileSystemDataReadCacheConfiguration:
    return {"sizing_mode": "PROPORTIONAL_TO_THROUGHPUT_CAPACITY" if read_cache else "NO_CACHE"}


def _root_squash(arguments: LustreArguments) -> FsxLustreFileSystemRootSquashConfiguration | None:
    if arguments.root_squash is None:
        return None
    return {"root_squash": arguments.root_squash, "no_squash_nids": arguments.no_squash_nids}


def _logging(arguments: LustreArguments) -> FsxLustreFileSystemLogConfiguration | None:
    if arguments.log_level is None:
        return None
    if arguments.log_group_arn is None:
        return {"level": arguments.log_level}
    return {"level": arguments.log_level, "destination": arguments.log_group_arn}


def _metadata(arguments: LustreArguments) -> FsxLustreFileSystemMetadataConfiguration | None:
    """Return the metadata configuration, which only PERSISTENT_2 with Lustre 2.15 has."""
    if arguments.deployment_type != "PERSISTENT_2" or arguments.file_system_type_version != "2.15":
        return None
    metadata_iops = arguments.metadata_iops
    if arguments.storage_type == "INTELLIGENT_TIERING":
        metadata_iops = metadata_iops or facts.LUSTRE_TIERING_METADATA_IOPS[0]
    if metadata_iops is None:
        return {"mode": "AUTOMATIC"}
    return {"mode": "USER_PROVISIONED", "iops": metadata_iops}
