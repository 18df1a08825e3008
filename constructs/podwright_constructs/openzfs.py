"""Home directories on FSx for OpenZFS, existing or new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from constructs import Construct

from podwright_constructs import checks, facts
from podwright_constructs.arguments import passed
from podwright_constructs.arguments.openzfs import ExistingOpenZfsArguments, OpenZfsArguments
from podwright_constructs.aws.fsx_openzfs_file_system import FsxOpenzfsFileSystem
from podwright_constructs.construct import CheckedConstruct
from podwright_constructs.file_system import dns_name, lifecycle
from podwright_constructs.key import Key
from podwright_constructs.kit import ITerraformDependable
from podwright_constructs.metric import Metric
from podwright_constructs.network import Network
from podwright_constructs.ordering import before
from podwright_constructs.problems import refuse

# Nodes create home directories as root and give them to their owners; the security group limits the clients.
EXPORT_OPTIONS = ("rw", "crossmnt", "sync", "no_root_squash")


class OpenZfs(Protocol):
    """The attributes that a node needs to mount an OpenZFS file system."""

    @property
    def dns_name(self) -> str:
        """DNS name of its NFS server."""

    @property
    def mount_path(self) -> str:
        """Path where every node mounts it."""


@dataclass(frozen=True, kw_only=True)
class ExistingOpenZfs(ExistingOpenZfsArguments):
    """An existing file system that the nodes' security group can reach on TCP port 2049.

    Raises:
        InvalidArgumentsError: A name is malformed; all problems are in it.
    """

    def __post_init__(self) -> None:
        refuse(self, checks.existing_openzfs(self))


class OpenZfsFileSystem(CheckedConstruct):
    """A file system in the first subnet of a network, or with ``MULTI_AZ_1`` in the first two, the first preferred.

    https://docs.aws.amazon.com/fsx/latest/OpenZFSGuide/what-is-fsx.html

    Args:
        arguments: What to create.
        network: The network, whose security group admits NFS.
        key: The key that encrypts it. Default: FSx's own key.

    Raises:
        InvalidArgumentsError: FSx does not sell this combination, or there are too few subnets; all problems are in it.
    """

    def __init__(
        self, scope: Construct, id_: str, arguments: OpenZfsArguments, *, network: Network, key: Key | None = None
    ) -> None:
        deployment_type = arguments.deployment_type
        problems = checks.openzfs_file_system(arguments)
        subnet_count = len(network.subnet_ids)
        problems += checks.openzfs_subnets(deployment_type=deployment_type, subnet_count=subnet_count)
        refuse(self, problems)
        super().__init__(scope, id_)
        subnet_ids = network.subnet_ids[: facts.OPENZFS_SUBNETS.get(deployment_type, 1)]
        of_two_zones = len(subnet_ids) > 1
        file_system = FsxOpenzfsFileSystem(
            self,
            "file_system",
            **passed(arguments),
            throughput_capacity=arguments.throughput_mbps or facts.OPENZFS_THROUGHPUTS_MBPS[deployment_type][0],
            root_volume_configuration={
                "data_compression_type": arguments.data_compression_type,
                "nfs_exports": {"client_configurations": [{"clients": "*", "options": EXPORT_OPTIONS}]},
            },
            subnet_ids=subnet_ids,
            preferred_subnet_id=subnet_ids[0] if of_two_zones else None,
            route_table_ids=network.route_table_ids or None if of_two_zones else None,
            security_group_ids=[network.security_group_id],
            kms_key_id=key.arn if key else None,
            automatic_backup_retention_days=arguments.automatic_backup_retention_days,
            copy_tags_to_backups=True,
            skip_final_backup=arguments.on_destroy != "backup",
            # Terraform reads it from the state, so that `destroy --delete-file-systems` needs no deployment before.
            delete_options=["DELETE_CHILD_VOLUMES_AND_SNAPSHOTS"] if arguments.on_destroy != "backup" else None,
            tags={"Name": self.node.path.replace("/", "-")},
            depends_on=before(self, network.security_group_rules),
            lifecycle=lifecycle(arguments.on_destroy),
        )
        self.file_system, self.id = file_system, file_system.id
        self.dns_name = file_system.dns_name
        self.mount_path = arguments.mount_path
        self.ready: Sequence[ITerraformDependable] = [file_system]

    @staticmethod
    def from_names(*, dns_name: str, mount_path: str = "/home") -> ExistingOpenZfs:
        """Return a file system you have.

        Raises:
            InvalidArgumentsError: a name is malformed; all problems are in it.
        """
        return ExistingOpenZfs(dns_name=dns_name, mount_path=mount_path)

    @staticmethod
    def from_id(scope: Construct, id_: str, file_system_id: str, *, mount_path: str = "/home") -> ExistingOpenZfs:
        """Return a file system you have.

        Raises:
            InvalidArgumentsError: the id or the path is malformed.
        """
        return ExistingOpenZfs(dns_name=dns_name(scope, id_, file_system_id), mount_path=mount_path)

    def metric(self, name: str, statistic: Literal["Average", "Maximum", "Minimum", "Sum"] = "Average") -> Metric:
        """Return one of its metrics.

        https://docs.aws.amazon.com/fsx/latest/OpenZFSGuide/file-system-metrics.html
        """
        return Metric(namespace="AWS/FSx", name=name, dimensions={"FileSystemId": self.id}, statistic=statistic)

    def metric_used_capacity(self) -> Metric:
        """Return its used capacity in bytes."""
        return self.metric("UsedStorageCapacity")
