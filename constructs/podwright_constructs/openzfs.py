"""Where people's homes are: an FSx for OpenZFS file system you have, or one made here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from cdktf import ITerraformDependable
from constructs import Construct

from podwright_constructs import checks, facts
from podwright_constructs.aws.fsx_openzfs_file_system import FsxOpenzfsFileSystem
from podwright_constructs.file_system import KEEP_SECURITY_GROUPS
from podwright_constructs.key import Key
from podwright_constructs.network import Network
from podwright_constructs.ordering import before
from podwright_constructs.problems import refuse

DeploymentType = Literal["SINGLE_AZ_1", "SINGLE_AZ_2", "SINGLE_AZ_HA_1", "SINGLE_AZ_HA_2", "MULTI_AZ_1"]
# Nodes make homes as root and give them to their owners; the security group says who is a client.
EXPORT_OPTIONS = ("rw", "crossmnt", "sync", "no_root_squash")


class OpenZfs(Protocol):
    """What a node needs to mount an OpenZFS file system."""

    @property
    def dns_name(self) -> str:
        """DNS name of its NFS server."""

    @property
    def mount_path(self) -> str:
        """Where every node mounts it."""


@dataclass(frozen=True, kw_only=True)
class ExistingOpenZfs:
    """A file system you have, reachable from the nodes' security group on TCP port 2049.

    Raises:
        InvalidArgumentsError: a name is malformed; all problems are in it.
    """

    dns_name: str
    mount_path: str = "/home"

    def __post_init__(self) -> None:
        refuse(self, checks.existing_openzfs(dns_name=self.dns_name, mount_path=self.mount_path))


class OpenZfsFileSystem(Construct):
    """A file system in the first subnet of a network, or with ``MULTI_AZ_1`` in the first two, the first preferred.

    https://docs.aws.amazon.com/fsx/latest/OpenZFSGuide/what-is-fsx.html

    Args:
        network: where it is; its security group admits NFS.
        deployment_type: AWS's word; which one a region has is in the guide.
        throughput_mbps: MB/s; none for the default of the type.
        key: what it is encrypted with; none for FSx's own key.
        on_destroy: whether a last backup is made.

    Raises:
        InvalidArgumentsError: a combination that FSx does not sell, or too few subnets; all problems are in it.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        network: Network,
        deployment_type: DeploymentType = "SINGLE_AZ_HA_2",
        capacity_gib: int = 64,
        throughput_mbps: int | None = None,
        compression: Literal["ZSTD", "LZ4", "NONE"] = "ZSTD",
        automatic_backup_retention_days: int = 0,
        on_destroy: Literal["backup", "destroy"] = "destroy",
        key: Key | None = None,
        mount_path: str = "/home",
    ) -> None:
        problems = checks.openzfs_file_system(
            deployment_type=deployment_type,
            capacity_gib=capacity_gib,
            throughput_mbps=throughput_mbps,
            compression=compression,
            automatic_backup_retention_days=automatic_backup_retention_days,
            on_destroy=on_destroy,
            mount_path=mount_path,
        )
        subnet_count = len(network.subnet_ids)
        problems += checks.openzfs_subnets(deployment_type=deployment_type, subnet_count=subnet_count)
        refuse(self, problems)
        super().__init__(scope, id_)
        subnet_ids = network.subnet_ids[: facts.OPENZFS_SUBNETS.get(deployment_type, 1)]
        of_two_zones = len(subnet_ids) > 1
        file_system = FsxOpenzfsFileSystem(
            self,
            "file_system",
            deployment_type=deployment_type,
            storage_capacity=capacity_gib,
            throughput_capacity=throughput_mbps or facts.OPENZFS_THROUGHPUTS_MBPS[deployment_type][0],
            root_volume_configuration={
                "data_compression_type": compression,
                "nfs_exports": {"client_configurations": [{"clients": "*", "options": EXPORT_OPTIONS}]},
            },
            subnet_ids=subnet_ids,
            preferred_subnet_id=subnet_ids[0] if of_two_zones else None,
            route_table_ids=network.route_table_ids or None if of_two_zones else None,
            security_group_ids=[network.security_group_id],
            kms_key_id=key.arn if key else None,
            automatic_backup_retention_days=automatic_backup_retention_days,
            copy_tags_to_backups=True,
            skip_final_backup=on_destroy == "destroy",
            delete_options=["DELETE_CHILD_VOLUMES_AND_SNAPSHOTS"] if on_destroy == "destroy" else None,
            tags={"Name": self.node.path.replace("/", "-")},
            depends_on=before(self, network.security_group_rules),
            lifecycle=KEEP_SECURITY_GROUPS,
        )
        self.dns_name = file_system.dns_name
        self.mount_path = mount_path
        self.ready: Sequence[ITerraformDependable] = [file_system]
